"""Latency metrics against numpy on the raw values, and their definitions by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import simulate
from simulator.metrics import PERCENTILES, latency_metrics, weighted_statistics
from tests.simulator.make import Ask, play
from tests.simulator.point import make_point
from tests.simulator.points import PRESSURE

NO_INTERVALS = np.zeros(0, np.int64)


def table(*rows: tuple[int, int | None, int | None, int]) -> pa.Table:
    """(arrival, first token, last token, output tokens); without a last token: not finished."""
    arrival, first, last, output = zip(*rows, strict=True)
    return pa.table(
        {
            "arrival_ns": pa.array(arrival, pa.int64()),
            "first_token_ns": pa.array(first, pa.int64()),
            "last_token_ns": pa.array(last, pa.int64()),
            "output_tokens": pa.array(output, pa.int32()),
            "finished": pa.array([ns is not None for ns in last], pa.bool_()),
        }
    )


def metrics(*rows: tuple[int, int | None, int | None, int]) -> dict[str, dict[str, float]]:
    return latency_metrics(table(*rows), NO_INTERVALS, NO_INTERVALS)


def expected(values: Any) -> dict[str, Any]:
    return {
        "mean": pytest.approx(np.mean(values)),
        **{f"p{p}": pytest.approx(np.percentile(values, p)) for p in PERCENTILES},
    }


def test_definitions() -> None:
    found = metrics((1_000_000, 5_000_000, 25_000_000, 11))
    assert found["ttft_ms"]["mean"] == found["ttft_ms"]["p99"] == 4.0
    assert found["tpot_ms"]["mean"] == 2.0
    assert found["latency_ms"]["mean"] == 24.0
    assert "itl_ms" not in found


def test_one_token_has_a_tpot_of_zero() -> None:
    assert metrics((0, 5, 5, 1))["tpot_ms"] == expected([0.0])


def test_percentiles_interpolate() -> None:
    found = metrics(*((0, 1_000_000 * k, 1_000_000 * k, 1) for k in (4, 1, 2)))
    assert found["ttft_ms"] == {
        "mean": pytest.approx(7 / 3),
        "p50": 2.0,
        "p90": pytest.approx(3.6),
        "p95": pytest.approx(3.8),
        "p99": pytest.approx(3.96),
    }


def test_only_those_who_finished_count() -> None:
    found = metrics((0, 1_000_000, 2_000_000, 2), (0, 9_000_000, None, 1), (0, None, None, 0))
    assert found["ttft_ms"] == expected([1.0])


def test_nobody_finished() -> None:
    assert metrics((0, None, None, 0), (0, 5, None, 1)) == {}


def test_late_arrivals_lose_no_precision() -> None:
    year = 365 * 86400 * 10**9
    found = metrics((year, year + 1, year + 3, 2))
    assert found["ttft_ms"]["mean"] == 1e-6
    assert found["latency_ms"]["mean"] == 3e-6


runs = st.lists(
    st.tuples(st.integers(0, 50).map(lambda n: n * 1_234_567), st.integers(1, 40)), min_size=1
)


@given(runs=runs)
def test_weighted_percentiles_are_those_of_the_expanded_series(
    runs: list[tuple[int, int]],
) -> None:
    values = np.array([value for value, _ in runs]) / 1e6
    counts = np.array([count for _, count in runs])
    assert weighted_statistics(values, counts) == expected(np.repeat(values, counts))


@given(runs=runs, order=st.randoms(use_true_random=False))
def test_how_a_series_is_cut_into_runs_does_not_matter(
    runs: list[tuple[int, int]], order: Any
) -> None:
    pieces = [(value, 1) for value, count in runs for _ in range(count)]
    order.shuffle(pieces)
    statistics = [
        weighted_statistics(np.array([v for v, _ in some]) / 1e6, np.array([c for _, c in some]))
        for some in (runs, pieces)
    ]
    assert statistics[0] == statistics[1]  # to the last bit


@pytest.mark.parametrize("overlapped", [False, True])
def test_of_a_run(overlapped: bool) -> None:
    result = simulate(make_point(**PRESSURE, engine__async_scheduling=overlapped), steps=True)
    rows = result.requests.to_pylist()
    latency = result.summary["latency"]
    assert latency["ttft_ms"] == expected(
        [(row["first_token_ns"] - row["arrival_ns"]) / 1e6 for row in rows]
    )
    assert latency["latency_ms"] == expected(
        [(row["last_token_ns"] - row["arrival_ns"]) / 1e6 for row in rows]
    )
    assert latency["tpot_ms"] == expected(
        [
            (row["last_token_ns"] - row["first_token_ns"]) / max(1, row["output_tokens"] - 1) / 1e6
            for row in rows
        ]
    )
    # Every token of every request, from the steps that gave them out.
    assert result.steps is not None
    prompts = {row["request_id"]: row["prompt_tokens"] for row in rows}
    outputs = {row["request_id"]: 0 for row in rows}
    last: dict[str, int] = {}
    waits = []
    for step in result.steps.to_pylist():
        columns = zip(
            step["requests"], step["scheduled_tokens"], step["computed_tokens"], strict=True
        )
        for name, scheduled, computed in columns:
            if scheduled + computed < prompts[name] + outputs[name]:
                continue
            outputs[name] += 1
            if name in last:
                waits.append((step["update_ns"] - last[name]) / 1e6)
            last[name] = step["update_ns"]
    assert outputs == {row["request_id"]: row["output_tokens"] for row in rows}
    assert latency["itl_ms"] == expected(waits)


def test_inter_token_times_are_logged_once_each() -> None:
    played = play(Ask(10, 4), Ask(10, 1), Ask(10, 3, arrival=1500))
    log = played.engine.log
    counts = log.intervals[: log.sizes[0].num_intervals]["count"]
    assert int(counts.sum()) == 3 + 0 + 2
