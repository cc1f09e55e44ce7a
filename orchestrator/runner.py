"""Runs a sweep: a window of tasks, retries, the journal, progress, and the results at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.executors import Executor, Finished, Task
from orchestrator.expand import SweepPoint
from orchestrator.journal import Journal
from orchestrator.plan import FINISHED, Plan
from orchestrator.shared import Shared
from orchestrator.store import SweepStore, row_of
from orchestrator.sweep import Execution

TASK_SECONDS = 0.5
TASKS_PER_SLOT = 3  # one runs, the others are on their way
MEAN_ABS = "err_pct/mean_abs"


class Progress(Protocol):
    def advance(self, plan: Plan, outcome: dict[str, Any], point: SweepPoint) -> None: ...
    def failure(self, outcome: dict[str, Any], point: SweepPoint) -> None: ...


class TooManyFailures(RuntimeError):
    """Execution.max_failures was reached; what is done stays done."""


@dataclass
class Runner:
    """Drives one sweep to its end; interrupted at any time, a new one resumes it."""

    plan: Plan
    store: SweepStore
    execution: Execution
    progress: Progress
    on_outcome: Callable[[SweepPoint, dict[str, Any]], None] = lambda point, outcome: None

    def run(self, make_executor: Callable[[dict[str, Any]], Executor]) -> None:
        """Run what is to run. Raises TooManyFailures; KeyboardInterrupt passes through.

        The results are written in any case.
        """
        waiting = deque(self.plan.to_run())
        if not waiting:
            self.write_results()
            return
        shared = Shared()
        job_of = {point.point_id: shared.job(point) for point in waiting}
        self._point_of = {point.point_id: point for point in self.plan.points}
        self._again: deque[Task] = deque()
        executor = make_executor(shared.parts)
        try:
            with Journal(self.store.journal_path) as journal:
                tasks = self._tasks(waiting, job_of)
                while True:
                    while executor.in_flight() < executor.slots * TASKS_PER_SLOT:
                        task = self._again.popleft() if self._again else next(tasks, None)
                        if task is None:
                            break
                        executor.submit(task)
                    if executor.in_flight() == 0:
                        break
                    for finished in executor.wait(1.0):
                        self._take(finished, journal)
        finally:
            executor.close()
            self.write_results()

    def _tasks(self, waiting: deque[SweepPoint], job_of: dict[str, Any]) -> Iterator[Task]:
        """Points that still have to run, in tasks of about TASK_SECONDS."""
        self._seconds_per_point: float | None = None
        while waiting:
            jobs: list[Any] = []
            while waiting and len(jobs) < self._points_per_task():
                point = waiting.popleft()
                if self.plan.still_needed(point):
                    jobs.append(job_of[point.point_id])
            if jobs:
                yield Task(jobs)

    def _points_per_task(self) -> int:
        if self.execution.points_per_task:
            return self.execution.points_per_task
        if self._seconds_per_point is None:
            return 1
        return max(1, min(64, int(TASK_SECONDS / max(self._seconds_per_point, 1e-4))))

    def _take(self, finished: Finished, journal: Journal) -> None:
        task = finished.task
        if finished.outcomes is None:
            self._retry(finished, journal)
            return
        walls = sorted(outcome["wall_s"] for outcome in finished.outcomes)
        # The first point of a process loads the compiled code; the smallest is what points take.
        known = self._seconds_per_point
        self._seconds_per_point = walls[0] if known is None else min(known, walls[len(walls) // 2])
        journal.append(finished.outcomes)
        for outcome in finished.outcomes:
            self._record(outcome, attempts=task.attempt + 1)

    def _retry(self, finished: Finished, journal: Journal) -> None:
        """A worker died: its points again, each alone, so that one cannot take others with it."""
        task = finished.task
        if len(task.jobs) > 1:
            self._again.extend(Task([job], task.attempt) for job in task.jobs)
        elif finished.status == "worker_died" and task.attempt < self.execution.retries:
            self._again.append(Task(task.jobs, task.attempt + 1))
        else:
            outcome = {
                "point_id": task.jobs[0].point_id,
                "status": finished.status,
                "reason": f"{finished.cause} (attempt {task.attempt + 1})",
                "wall_s": 0.0,
            }
            journal.append([outcome])
            self._record(outcome, task.attempt + 1)

    def _record(self, outcome: dict[str, Any], attempts: int) -> None:
        point = self._point_of[outcome["point_id"]]
        self.plan.record(outcome)
        self.on_outcome(point, outcome)
        if outcome["status"] != FINISHED:
            self.progress.failure(outcome, point)
        self.progress.advance(self.plan, outcome, point)
        limit = self.execution.max_failures
        if limit is not None and self.plan.counts()["failed"] >= limit:
            raise TooManyFailures(
                f"{limit} points failed, as many as execution.max_failures allows"
            )

    def write_results(self) -> None:
        self.store.write_results([row_of(*row) for row in self.plan.rows()])


def best_points(plan: Plan, count: int) -> list[SweepPoint]:
    """Finished leaders with the smallest mean absolute error, if there is a truth."""
    scored = [
        (outcome["metrics"][MEAN_ABS], point.index, point)
        for point, outcome, equals in plan.rows()
        if equals is None and outcome and MEAN_ABS in (outcome.get("metrics") or {})
    ]
    return [point for _, _, point in sorted(scored, key=lambda s: s[:2])[:count]]
