"""A part of a truth: its requests alone, and a result compared in the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.compare import compare
from orchestrator.truth import Truth, TruthConfig, load_truth
from orchestrator.truth_part import Part
from profiles.errors import InputError
from tests.orchestrator.truth_make import (
    LEFT_OUT,
    TTFTS_MS,
    make_result,
    write_bench,
    write_recorded,
)


def truth_of(tmp_path: Path, **part: Any) -> Truth:
    config = {"recorded": str(write_recorded(tmp_path)), "part": part}
    return load_truth(TruthConfig.model_validate(config), tmp_path)


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ({"every": 2}, [0, 2]),
        ({"every": 2, "first": 1}, [1, 3]),
        ({"every": 2, "rest": True}, [1, 3]),
        ({"every": 3, "rest": True}, [1, 2]),
        ({"window_s": [0.0, 0.5]}, [0, 1]),
        ({"window_s": [0.5, 9.0]}, [2, 3]),
    ],
)
def test_rows(tmp_path: Path, part: dict[str, Any], rows: list[int]) -> None:
    truth = truth_of(tmp_path, **part)
    assert truth.rows is not None
    assert truth.rows.tolist() == rows
    assert truth.metrics["ttft_ms"]["mean"] == pytest.approx(np.mean([TTFTS_MS[r] for r in rows]))
    assert truth.requests is not None
    assert truth.requests.name(0) == f"'bench-{rows[0]}'"
    assert (truth.makespan_ms, truth.series, truth.throughput) == (None, {}, {})


def test_a_share_and_its_rest_are_everything_once(tmp_path: Path) -> None:
    some = truth_of(tmp_path, share=0.5, seed=7).rows
    rest = truth_of(tmp_path, share=0.5, seed=7, rest=True).rows
    assert some is not None and rest is not None
    assert sorted([*some, *rest]) == [0, 1, 2, 3]
    assert len(some) == 2


def test_parts_are_other_truths(tmp_path: Path) -> None:
    whole = load_truth(TruthConfig(recorded=write_recorded(tmp_path)), tmp_path)
    even = truth_of(tmp_path, every=2)
    odd = truth_of(tmp_path, every=2, first=1)
    assert len({whole.content_id, even.content_id, odd.content_id}) == 3
    assert truth_of(tmp_path, every=2, first=0).content_id == even.content_id
    assert truth_of(tmp_path, every=2, rest=True).content_id == odd.content_id


def test_a_result_is_compared_in_these_rows_alone(tmp_path: Path) -> None:
    result = make_result(ttft=1.1, tpot=1.0)
    comparison = compare(result, truth_of(tmp_path, every=2, first=1))
    flat = comparison.flat()
    assert comparison.num_headline == 15
    assert flat["err_pct/ttft_ms/mean"] == pytest.approx(10.0)
    assert flat["err_pct/tpot_ms/p99"] == pytest.approx(0.0, abs=1e-6)
    assert (flat["requests/matched"], flat["requests/unmatched"]) == (2, 0)
    assert flat["requests/ttft_ms/sum_abs_pct"] == pytest.approx(10.0)
    # TTFT 10 % late; latency by 60 ms of 2200.
    assert flat["err_pct/requests"] == pytest.approx((10 + 0 + 60 / 22) / 3)
    assert not any("metrics of" in note for note in comparison.notes)


def test_a_part_of_another_workload_is_refused(tmp_path: Path) -> None:
    truth = truth_of(tmp_path, every=4, first=3)
    result = make_result()
    shorter = type(result)(
        summary=result.summary, requests=result.requests.slice(0, 3), timeseries=result.timeseries
    )
    with pytest.raises(InputError, match="a workload of 3, in its order"):
        compare(shorter, truth)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({}, "part: got None, expected exactly one of every"),
        ({"every": 2, "share": 0.5}, "exactly one of every"),
        ({"every": 2, "first": 2}, "part.first: got 2, expected less than every"),
        ({"window_s": [5.0, 5.0]}, "from before to"),
        ({"window_s": [50.0, 60.0]}, "at least one request"),
        ({"half": True}, "known fields"),
    ],
)
def test_wrong_parts(tmp_path: Path, part: dict[str, Any], message: str) -> None:
    from profiles.errors import parse_model

    data = {"recorded": str(write_recorded(tmp_path)), "part": part}
    with pytest.raises(InputError, match=message):
        load_truth(parse_model(TruthConfig, data, "truth.yaml"), tmp_path)


def test_statistics_alone_have_no_parts(tmp_path: Path) -> None:
    from tests.orchestrator.sweep_make import TRUTH

    config = TruthConfig.model_validate(TRUTH | {"part": {"every": 2}})
    with pytest.raises(InputError, match="this one has statistics alone"):
        load_truth(config, tmp_path)


def test_a_window_needs_times_of_arrival(tmp_path: Path) -> None:
    path = write_bench(tmp_path / "bench.json", {"start_times": LEFT_OUT})
    config = TruthConfig(vllm_bench=path, part=Part(window_s=(0.0, 1.0)))
    with pytest.raises(InputError, match=r"part.window_s: .*says when requests arrived"):
        load_truth(config, tmp_path)
