"""Admissions as an axis beside vLLM's whole-prompt reservation, on one workload."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.expand import expand
from orchestrator.sweep import load_sweep
from profiles.errors import InputError
from tests.orchestrator.sweep_make import base, write_sweep
from tests.orchestrator.test_cli_sweep import ROOT, run

SWEEP = ROOT / "sweeps" / "infinilm_admission.yaml"


def test_the_sweep_runs(tmp_path: Path) -> None:
    result = run(SWEEP, tmp_path, "--no-track")
    assert result.exit_code == 0
    assert "5 points: 5 runs finished, 0 points equal to one of them, 0 failed" in result.output
    rows = pq.read_table(tmp_path / "infinilm_admission" / "results.parquet").to_pylist()
    by_axis = {
        (
            row["axes/engine.engine"],
            row["axes/engine.admission"],
            row["axes/engine.scheduler_reserve_full_isl"],
        ): row
        for row in rows
    }
    legacy = by_axis["infinilm", "legacy", True]
    exact = by_axis["infinilm", "exact-scan", True]
    counted = by_axis["infinilm", "incremental", True]
    p50, p95, rate = "wave2/ttft_ms/p50", "wave2/ttft_ms/p95", "throughput/output_tokens_per_s"
    assert legacy[p50] == pytest.approx(7680, rel=1e-3)
    assert exact[p50] < 0.3 * legacy[p50]
    assert exact[p95] > legacy[p95] and exact[rate] < legacy[rate]
    assert counted["kv/peak_reserved_decode_blocks"] == exact["kv/peak_reserved_decode_blocks"] > 0
    for name in (p50, p95, rate, "makespan_ms"):
        assert counted[name] == exact[name]
    for reserve in (True, False):
        assert by_axis["vllm", None, reserve]["requests/finished"] == 384


def test_what_infinilm_does_not_know_makes_no_other_run(tmp_path: Path) -> None:
    path = write_sweep(
        tmp_path,
        base=base(engine={"num_gpu_blocks_override": 40, "engine": "infinilm"}),
        axes={
            "engine.admission": ["legacy", "exact-scan"],
            "engine.scheduler_reserve_full_isl": [True, False],
        },
    )
    points = expand(load_sweep(path), path)
    assert len({point.point_id for point in points}) == 4
    assert len({point.run_id for point in points}) == 2
    assert {point.usable_blocks for point in points} == {40}


def test_a_cell_without_admission_is_named(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={"engine.engine": ["vllm", "infinilm"]})
    with pytest.raises(InputError) as caught:
        expand(load_sweep(path), path)
    assert "point 1 (engine.engine infinilm)" in str(caught.value)
    assert "engine.admission: got None, expected legacy, exact-scan or" in str(caught.value)
