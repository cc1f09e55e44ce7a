"""What a sweep leaves in its folder: the same after any interruption, and the tables it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.expand import SweepPoint
from orchestrator.plan import Plan
from orchestrator.session import Session
from tests.orchestrator.sweep_make import (
    BLOCKS,
    TRUTH,
    UTILIZATION,
    Watch,
    rows,
    run_sweep,
    write_sweep,
)

ISL = "engine.scheduler_reserve_full_isl"
AXES = {BLOCKS: [10, 20, 40, 60, 100, 200, 300], ISL: [True, False], UTILIZATION: [0.5, 0.9]}


class Interrupted(Watch):
    """Somebody presses Ctrl-C after so many outcomes."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def advance(self, plan: Plan, outcome: dict[str, Any], point: SweepPoint) -> None:
        super().advance(plan, outcome, point)
        if len(self.outcomes) == self._after:
            raise KeyboardInterrupt


def test_resumed_after_any_interruption(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes=AXES, truth=TRUTH)
    expected = run_sweep(path, tmp_path / "plain")[0].store.results_path.read_bytes()

    for stop in (1, 4, 9):
        session = Session.open(path, tmp_path / f"out{stop}")
        with pytest.raises(KeyboardInterrupt):
            session.run(Interrupted(stop), address=None, serial=True, track=False)
        partly = [row["status"] for row in rows(session)]
        assert "not_run" in partly
        resumed, watch = run_sweep(path, tmp_path / f"out{stop}")
        assert resumed.plan.resumed > 0
        assert resumed.store.results_path.read_bytes() == expected
        assert len(watch.outcomes) == 14 - resumed.plan.resumed


@pytest.mark.parametrize(("keep", "count"), [("none", 0), ("best", 5), ("all", 14)])
def test_tables_that_are_kept(tmp_path: Path, keep: str, count: int) -> None:
    axes = {BLOCKS: [10, 15, 20, 25, 28, 31, 33], ISL: [True, False]}
    path = write_sweep(tmp_path, axes=axes, truth=TRUTH, execution={"keep_requests": keep})
    session, _ = run_sweep(path, tmp_path / "out")
    kept = sorted((tmp_path / "out" / "small").glob("points/*/*.parquet"))
    assert len(kept) == 2 * count
    if count == 5:
        first: dict[float, str] = {}  # of points with one result
        for row in sorted(rows(session), key=lambda r: (r["err_pct/mean_abs"], r["index"])):
            first.setdefault(row["err_pct/mean_abs"], row["point_id"])
        assert len(first) < 14
        assert {path.parent.name for path in kept} == set(list(first.values())[:5])
    before = {path: path.stat().st_mtime_ns for path in kept}
    run_sweep(path, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in before} == before, "once"


def test_all_tables_are_kept_without_a_truth_too(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]}, execution={"keep_requests": "all"})
    run_sweep(path, tmp_path / "out")
    assert len(list((tmp_path / "out" / "small").glob("points/*/*.parquet"))) == 4
