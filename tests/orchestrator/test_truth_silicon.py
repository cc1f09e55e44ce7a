"""Truth that comes with aiconfigurator-core, axes of the truth, and the quickstart that uses both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.truth import load_truth
from orchestrator.truth_config import SiliconRow, TruthConfig
from orchestrator.truth_silicon import can_be_a_loop, measured_rows
from profiles.errors import InputError
from tests.orchestrator.sweep_make import BLOCKS, TRUTH, points_of, rows, run_sweep, write_sweep
from tests.profiles.models import LLAMA_8B

pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core is not installed")

ROOT = Path(__file__).resolve().parents[2]
ROW: dict[str, Any] = {
    "system": "h200_sxm",
    "model": "meta-llama/Llama-3.1-70B",
    "tensor_parallel_size": 4,
    "quantization": "fp8",
    "isl": 1024,
    "osl": 1024,
    "concurrency": 16,
}
NVIDIA_8B = LLAMA_8B.model_copy(update={"name": "nvidia/Llama-3.1-8B-Instruct-FP8"})


def test_a_row_as_a_truth() -> None:
    truth = load_truth(TruthConfig(aiconfigurator=SiliconRow(**ROW)), Path())
    assert truth.metrics["tpot_ms"]["mean"] == pytest.approx(10.937177, abs=1e-6)
    assert truth.metrics["ttft_ms"]["mean"] == pytest.approx(126.211154, abs=1e-6)
    assert truth.num_requests is None
    assert truth.settings["tensor_parallel_size"] == 4


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [
        ("system", "h100", "h100_sxm"),
        ("concurrency", 5, "64"),
        ("model", "gpt2", "nvidia/Llama-3.1-8B-Instruct-FP8"),
    ],
)
def test_what_was_not_measured(field: str, value: Any, known: str) -> None:
    with pytest.raises(InputError) as caught:
        load_truth(TruthConfig(aiconfigurator=SiliconRow(**ROW | {field: value})), Path())
    assert (caught.value.field, caught.value.value) == (field, value)
    assert known in caught.value.expected


MINIMAX = ROW | {"system": "b300_sxm", "model": "MiniMaxAI/MiniMax-M2.5", "concurrency": 64}


def test_of_several_versions_one_is_named() -> None:
    for version in (None, "0.1.0"):
        with pytest.raises(InputError, match=r"vllm_version: .* one of 0\.19\.0, nightly"):
            load_truth(
                TruthConfig(aiconfigurator=SiliconRow(**MINIMAX, vllm_version=version)), Path()
            )
    truth = load_truth(
        TruthConfig(aiconfigurator=SiliconRow(**MINIMAX, vllm_version="0.19.0")), Path()
    )
    assert truth.metrics["ttft_ms"]["mean"] == pytest.approx(129.050898, abs=1e-6)


def test_repeated_measurements_count_once_each() -> None:
    """Four rows of b200_sxm: two of them are the same measurement."""
    row = MINIMAX | {"system": "b200_sxm", "tensor_parallel_size": 2, "concurrency": 128}
    truth = load_truth(TruthConfig(aiconfigurator=SiliconRow(**row)), Path())
    three = (329.827548, 337.238376, 317.295214)
    assert truth.metrics["ttft_ms"]["mean"] == pytest.approx(sum(three) / 3, abs=1e-6)
    assert "mean of 3 measurements" in truth.notes[0]


def test_experts_on_ranks_of_their_own_are_another_engine() -> None:
    from orchestrator.truth_silicon import _rows

    given = {
        "backend": "vllm",
        "mode": "agg",
        "silicon_data_source": "silicon_concurrency=8",
        "backend_version": "0.19.0",
        "gemm_quant_mode": "fp8",
        "system": "b200_sxm",
        "model_path": "m",
        "isl": "8",
        "osl": "8",
        "tp_size": "4.0",
        "pp_size": "",
        "attention_dp_size": "1",
        "silicon_ttft_ms": "1",
        "silicon_tpot_ms": "1",
    }
    experts = [("4", "1"), ("1", "4"), ("", ""), ("2", "2"), ("1", "1"), ("0", "0"), ("2", "1")]
    rows = [given | {"moe_tp_size": tp, "moe_ep_size": ep} for tp, ep in experts]
    used = [len(list(_rows(iter([row])))) for row in rows]  # type: ignore[arg-type]
    assert used == [1, 0, 1, 0, 1, 1, 0]


def test_rows_of_models_without_experts_are_all_there() -> None:
    dense = Counter(
        one.row.model
        for one in measured_rows()
        if "Llama" in one.row.model or "32B" in one.row.model
    )
    assert dense == {
        "Qwen/Qwen3-32B": 90,  # three more name no concurrency
        "meta-llama/Llama-3.1-70B": 165,
        "nvidia/Llama-3.1-8B-Instruct-FP8": 21,
    }


def test_rows_that_cannot_be_a_closed_loop() -> None:
    """112 clients of 1000 prompt tokens: their matrices alone take 0.9 s of a 1.2 s round."""
    wanted = ("nvidia/Llama-3.1-8B-Instruct-FP8", 1, 1000, 100, 112)
    (one,) = (
        one
        for one in measured_rows()
        if (row := one.row)
        and (row.model, row.tensor_parallel_size, row.isl, row.osl, row.concurrency) == wanted
    )
    assert not can_be_a_loop(one, NVIDIA_8B)
    assert can_be_a_loop(replace(one, tpot_ms=2 * one.tpot_ms), NVIDIA_8B)


def test_axes_of_the_truth(tmp_path: Path) -> None:
    path = write_sweep(
        tmp_path,
        axes={BLOCKS: [20, 30]},
        zipped=[
            {
                "workload.generate.seed": [1, 2],
                "truth.percentiles.makespan_ms": [10.0, 20.0],
            }
        ],
        truth=TRUTH,
    )
    points = points_of(path)
    assert [p.truth.makespan_ms for p in points if p.truth] == [10.0, 20.0, 10.0, 20.0]
    assert "makespan" not in points[0].name
    session, _ = run_sweep(path, tmp_path / "out")
    found = [row["axes/truth.percentiles.makespan_ms"] for row in rows(session)]
    assert found == [10.0, 20.0, 10.0, 20.0]


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        ("truth.percentiles.makespan_ms", -1, "greater than 0"),
        ("truth.percentile", 1, "no such field"),
        ("truth.recorded", "x", "exactly one of"),
    ],
)
def test_wrong_axes_of_the_truth(tmp_path: Path, axis: str, value: Any, expected: str) -> None:
    path = write_sweep(tmp_path, axes={axis: [value]}, truth=TRUTH)
    with pytest.raises(InputError, match=expected) as caught:
        points_of(path)
    assert caught.value.source == str(path)
    assert caught.value.field in (f"axes.{axis}", "truth")


def test_the_quickstart_is_near_the_measured_cards() -> None:
    """Nothing is fitted: what H100 and H200 did is met within a few per cent."""
    from orchestrator.compare import compare
    from simulator.simulation import run

    for point in points_of(ROOT / "sweeps" / "quickstart.yaml"):
        if point.axes["workload.generate.arrivals.concurrency"] != 16:
            continue
        assert point.truth is not None
        errors = compare(run(point.prepared), point.truth).err_pct
        if point.axes["card"] != "b200_sxm":
            assert abs(errors["tpot_ms"]["mean"]) < 10
            assert abs(errors["ttft_ms"]["mean"]) < 25
