"""The runner: tasks, retries, failures, resume, and the same results whatever the way."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator import executors
from orchestrator.executors import Finished, Task
from orchestrator.journal import read_journal
from orchestrator.outcome import ESSENTIAL
from orchestrator.plan import Plan
from orchestrator.runner import Runner, TooManyFailures
from orchestrator.session import Session
from orchestrator.store import SweepStore
from orchestrator.sweep import load_sweep
from orchestrator.worker import Limits, run_jobs
from tests.orchestrator.sweep_make import (
    BLOCKS,
    TRUTH,
    UTILIZATION,
    Watch,
    points_of,
    run_sweep,
    write_sweep,
)

ISL = "engine.scheduler_reserve_full_isl"
AXES = {BLOCKS: [10, 20, 40, 60, 100, 200, 300], ISL: [True, False], UTILIZATION: [0.5, 0.9]}
Run = Callable[[Task], Finished]


class Made:
    """An executor of a test: `run` says what becomes of a task; the last submitted comes first."""

    def __init__(self, run: Run, window: int = 4) -> None:
        self.window, self._run = window, run
        self.tasks: deque[Task] = deque()
        self.sizes: list[int] = []
        self.most = 0

    def submit(self, task: Task) -> None:
        self.tasks.append(task)
        self.sizes.append(len(task.jobs))
        self.most = max(self.most, len(self.tasks))

    def wait(self, timeout_s: float) -> list[Finished]:
        return [self._run(self.tasks.pop()) for _ in range(min(2, len(self.tasks)))]

    def in_flight(self) -> int:
        return len(self.tasks)

    def close(self) -> None:
        self.tasks.clear()


def drive(path: Path, out: Path, run: Run) -> tuple[Runner, Made, Watch]:
    sweep, watch = load_sweep(path), Watch()
    runner = Runner(Plan(points_of(path)), SweepStore(out), sweep.execution, watch)
    made = Made(run)
    runner.run(lambda parts: made)
    return runner, made, watch


def finished(task: Task, wall_s: float = 0.01) -> Finished:
    return Finished(
        task,
        [
            {
                "point_id": job.point_id,
                "status": "finished",
                "wall_s": wall_s,
                "metrics": dict.fromkeys(ESSENTIAL, 1.0)
                | {f"metric/{i}": i + 0.5 for i in range(60)},
                "notes": ["the same for all"],
            }
            for job in task.jobs
        ],
    )


@pytest.mark.parametrize("points_per_task", [None, 1, 3, 100])
@pytest.mark.parametrize("order", ["in order", "the last first"])
def test_results_are_the_same_whatever_the_way(
    tmp_path: Path, points_per_task: int | None, order: str
) -> None:
    path = write_sweep(tmp_path, axes=AXES, truth=TRUTH)
    expected = run_sweep(path, tmp_path / "plain")[0].store.results_path.read_bytes()
    path = write_sweep(
        tmp_path, axes=AXES, truth=TRUTH, execution={"points_per_task": points_per_task}
    )
    session, watch = Session.open(path, tmp_path / "out"), Watch()
    runner = Runner(session.plan, session.store, session.sweep.execution, watch)

    def make(parts: dict[str, Any]) -> Any:
        if order == "in order":
            return executors.SerialExecutor(parts, Limits(60))
        return Made(
            lambda task: Finished(
                task, run_jobs(task.jobs, parts.__getitem__, Limits(60), task.keep_requests)
            )
        )

    runner.run(make)
    assert session.store.results_path.read_bytes() == expected
    assert len(watch.outcomes) == 14
    assert len({outcome["point_id"] for outcome in watch.outcomes}) == 14


def test_the_window_is_bounded_and_tasks_grow_to_half_a_second(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: {"range": [20, 419, 1]}})
    runner, made, watch = drive(path, tmp_path / "out", finished)
    assert made.most == made.window == 4
    assert made.sizes[0] == 1, "the first tells how long points take"
    assert max(made.sizes) == 50, "50 points of 10 ms"
    assert sum(made.sizes) == len(watch.outcomes) == 400
    assert runner.plan.counts()["finished"] == 400


def test_long_points_go_one_by_one(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [20, 30, 40, 50, 60, 70]})
    _, made, _ = drive(path, tmp_path / "out", lambda task: finished(task, 20.0))
    assert made.sizes == [1] * 6


def test_a_point_whose_worker_dies_takes_no_others_with_it(tmp_path: Path) -> None:
    """Its task's points run again, each alone; it has its retries and is then reported."""
    path = write_sweep(
        tmp_path, axes={BLOCKS: [20, 30, 40]}, execution={"points_per_task": 3, "retries": 2}
    )
    deadly = points_of(path)[1].point_id

    def run(task: Task) -> Finished:
        if any(job.point_id == deadly for job in task.jobs):
            return Finished(task, None, "it fell over")
        return finished(task)

    runner, made, watch = drive(path, tmp_path / "out", run)
    assert sorted(made.sizes) == [1, 1, 1, 1, 1, 3]
    assert watch.failures == [
        {
            "point_id": deadly,
            "status": "worker_died",
            "reason": "it fell over (attempt 3)",
            "wall_s": 0.0,
        }
    ]
    assert runner.plan.counts() == {"points": 3, "runs": 3, "equal": 0, "finished": 2, "failed": 1}


@pytest.mark.parametrize("status", ["timeout", "out_of_memory"])
def test_what_would_fail_again_is_not_tried_again(tmp_path: Path, status: str) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [20]})
    _, made, watch = drive(path, tmp_path / "out", lambda task: Finished(task, None, "", status))
    assert made.sizes == [1]
    assert [outcome["status"] for outcome in watch.failures] == [status]


def fail_at(blocks: set[int], path: Path) -> Run:
    bad = {point.point_id for point in points_of(path) if point.axes[BLOCKS] in blocks}

    def run(task: Task) -> Finished:
        done = finished(task)
        for outcome in done.outcomes or []:
            if outcome["point_id"] in bad:
                del outcome["metrics"]
                outcome |= {"status": "error", "reason": "bad luck"}
        return done

    return run


def test_one_failure_stops_nobody_and_is_told(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [20, 30, 40, 50]})
    runner, _, watch = drive(path, tmp_path / "out", fail_at({30}, path))
    assert [outcome["reason"] for outcome in watch.failures] == ["bad luck"]
    table = pq.read_table(runner.store.results_path).to_pylist()
    assert [row["status"] for row in table] == ["finished", "error", "finished", "finished"]
    assert table[1]["reason"] == "bad luck"
    assert table[1]["metric/0"] is None


def test_too_many_failures_stop_the_sweep_and_a_resume_goes_on(tmp_path: Path) -> None:
    blocks = list(range(20, 60))
    fields: dict[str, Any] = {"axes": {BLOCKS: blocks}}
    path = write_sweep(tmp_path, **fields, execution={"max_failures": 3, "points_per_task": 1})
    with pytest.raises(TooManyFailures, match="3 points failed"):
        drive(path, tmp_path / "out", fail_at(set(blocks[10:]), path))
    table = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    counts = {s: [row["status"] for row in table].count(s) for s in ("error", "not_run")}
    assert counts["error"] == 3
    assert counts["not_run"] > 20
    plan = Plan(points_of(path), journal_of(tmp_path / "out"))
    assert plan.failed == 0, "what failed has another chance"
    assert plan.resumed == 40 - counts["error"] - counts["not_run"]


def journal_of(out: Path) -> dict[str, dict[str, Any]]:
    return read_journal(SweepStore(out).journal_path)


def test_memory_stays_flat(tmp_path: Path) -> None:
    """What is held for a point: references, ids and its outcome's numbers."""
    path = write_sweep(tmp_path, axes={BLOCKS: {"range": [20, 519, 1]}})
    points_of(path)  # what is loaded once
    tracemalloc.start()
    try:
        points = points_of(path)
        expanded = tracemalloc.get_traced_memory()[0] / len(points)
        runner = Runner(Plan(points), SweepStore(tmp_path), load_sweep(path).execution, Quiet())
        runner.run(lambda parts: Made(finished))
        ran = tracemalloc.get_traced_memory()[0] / len(points)
    finally:
        tracemalloc.stop()
    assert expanded < 6_000, f"{expanded:.0f} bytes a point"
    assert ran - expanded < 6_000, f"{ran - expanded:.0f} bytes an outcome"


class Quiet:
    def advance(self, *_: Any) -> None: ...

    def failure(self, *_: Any) -> None: ...
