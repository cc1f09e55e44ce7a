"""Which points' tables a sweep keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.sweep_make import BLOCKS, TRUTH, rows, run_sweep, write_sweep

ISL = "engine.scheduler_reserve_full_isl"


@pytest.mark.parametrize(("keep", "count"), [("none", 0), ("best", 5), ("all", 14)])
def test_tables_that_are_kept(tmp_path: Path, keep: str, count: int) -> None:
    axes = {BLOCKS: [10, 15, 20, 25, 28, 31, 33], ISL: [True, False]}
    path = write_sweep(tmp_path, axes=axes, truth=TRUTH, execution={"keep_requests": keep})
    session, _ = run_sweep(path, tmp_path / "out")
    kept = sorted((tmp_path / "out" / "small").glob("points/*/*.parquet"))
    assert len(kept) == 2 * count
    if count == 5:
        scores = sorted(
            (row["err_pct/mean_abs"], row["index"], row["point_id"]) for row in rows(session)
        )
        assert {path.parent.name for path in kept} == {point_id for *_, point_id in scores[:5]}
    before = {path: path.stat().st_mtime_ns for path in kept}
    run_sweep(path, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in before} == before, "once"


def test_all_tables_are_kept_without_a_truth_too(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]}, execution={"keep_requests": "all"})
    run_sweep(path, tmp_path / "out")
    assert len(list((tmp_path / "out" / "small").glob("points/*/*.parquet"))) == 4
