"""A real result of `vllm bench serve` as workload and truth: the server's settings are found in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compare import compare
from simulator.simulation import run
from tests.orchestrator.sweep_make import points_of

ROOT = Path(__file__).resolve().parents[2]


def test_the_servers_settings_are_the_best_point() -> None:
    errors = {}
    for point in points_of(ROOT / "sweeps" / "bench_run.yaml"):
        assert point.truth is not None
        found = compare(run(point.prepared), point.truth)
        errors[tuple(point.axes.values())] = found.mean_abs_pct
        assert found.num_headline == 15
        assert found.requests is not None
        assert (found.requests.matched, found.requests.matched_by) == (60, "id")
    best = min(errors, key=errors.__getitem__)
    assert best == (57, 16)
    assert errors[best] == pytest.approx(9.84, abs=0.01)
