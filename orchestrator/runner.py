"""Runs a sweep: a window of tasks, retries, the journal, progress, and the results at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.executors import Executor, Finished, Task
from orchestrator.expand import SweepPoint
from orchestrator.journal import Journal
from orchestrator.plan import FINISHED, Plan
from orchestrator.shared import Job, Shared
from orchestrator.store import TABLES, SweepStore, row_of
from orchestrator.sweep import Execution

TASK_SECONDS = 0.5


class Progress(Protocol):
    def begin(self, plan: Plan) -> None: ...
    def advance(self, plan: Plan, outcome: dict[str, Any], point: SweepPoint) -> None: ...
    def failure(self, outcome: dict[str, Any], point: SweepPoint) -> None: ...


class TooManyFailures(RuntimeError):
    """Execution.max_failures was reached; what is done stays done."""


@dataclass
class Runner:
    """Drives one sweep to its end; interrupted at any time, a new one resumes it.

    What is held for a point is its outcome; jobs are made as they are handed out.
    """

    plan: Plan
    store: SweepStore
    execution: Execution
    progress: Progress
    _again: deque[Task] = field(default_factory=deque, init=False)
    _seconds_per_point: float | None = field(default=None, init=False)

    def run(
        self,
        make_executor: Callable[[dict[str, Any]], Executor],
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Run what is to run. Raises TooManyFailures; KeyboardInterrupt passes through.

        `begin` is called once nothing in the way of a start is left, before anything is written. The
        results are written in any case from then on.
        """
        waiting = deque(self.plan.to_run())
        self._point_of = {point.point_id: point for point in waiting}
        shared = Shared(waiting)
        executor = make_executor(shared.parts) if waiting else None
        try:
            begin()
            if executor is not None:
                with Journal(self.store.journal_path) as journal:
                    self._drive(self._tasks(waiting, shared), executor, journal)
        finally:
            if executor is not None:
                executor.close()
            self.write_results()

    def _drive(self, tasks: Iterator[Task], executor: Executor, journal: Journal) -> None:
        limit = self.execution.max_failures
        while True:
            while executor.in_flight() < executor.window:
                task = self._again.popleft() if self._again else next(tasks, None)
                if task is None:
                    break
                executor.submit(task)
            if executor.in_flight() == 0:
                return
            for finished in executor.wait(1.0):
                self._take(finished, journal)
            if limit is not None and self.plan.failed >= limit:
                raise TooManyFailures(
                    f"{self.plan.failed} points failed, execution.max_failures is {limit}"
                )

    def _tasks(self, waiting: deque[SweepPoint], shared: Shared) -> Iterator[Task]:
        """Points that still have to run, in tasks of about TASK_SECONDS."""
        keep = self.execution.keep_requests == "all"
        while waiting:
            jobs: list[Job] = []
            while waiting and len(jobs) < self._points_per_task():
                point = waiting.popleft()
                if self.plan.still_needed(point):
                    jobs.append(shared.job(point, self.plan.siblings(point)))
            if jobs:
                yield Task(jobs, keep_requests=keep)

    def _points_per_task(self) -> int:
        size = self._points_in_time()
        limit = self.execution.max_failures
        return size if limit is None else max(1, min(size, limit - self.plan.failed))

    def _points_in_time(self) -> int:
        if self.execution.points_per_task:
            return self.execution.points_per_task
        if self._seconds_per_point is None:
            return 1
        return max(1, min(64, int(TASK_SECONDS / max(self._seconds_per_point, 1e-4))))

    def _take(self, finished: Finished, journal: Journal) -> None:
        if finished.outcomes is None:
            self._retry(finished, journal)
            return
        ran = sorted(o["wall_s"] for o in finished.outcomes if "proven_by" not in o)
        usual, known = ran[len(ran) // 2], self._seconds_per_point
        self._seconds_per_point = usual if known is None else (known + usual) / 2
        for outcome in finished.outcomes:
            tables = {name: outcome.pop(name) for name in TABLES if name in outcome}
            if tables:
                self.store.write_point(outcome["point_id"], tables)
        journal.append(finished.outcomes)
        for outcome in finished.outcomes:
            self._record(outcome)

    def _retry(self, finished: Finished, journal: Journal) -> None:
        """A worker died: its points again, each alone, so that one cannot take others with it."""
        task = finished.task
        if len(task.jobs) > 1:
            self._again.extend(
                Task([job], task.attempt, task.keep_requests)
                for job in task.jobs
                if self.plan.still_needed(self._point_of[job.point_id])
            )
        elif finished.status == "worker_died" and task.attempt < self.execution.retries:
            self._again.append(Task(task.jobs, task.attempt + 1, task.keep_requests))
        else:
            outcome = {
                "point_id": task.jobs[0].point_id,
                "status": finished.status,
                "reason": f"{finished.cause} (attempt {task.attempt + 1})",
                "wall_s": 0.0,
            }
            journal.append([outcome])
            self._record(outcome)

    def _record(self, outcome: dict[str, Any]) -> None:
        if not self.plan.record(outcome):
            return
        point = self._point_of[outcome["point_id"]]
        if outcome["status"] != FINISHED:
            self.progress.failure(outcome, point)
        self.progress.advance(self.plan, outcome, point)

    def write_results(self) -> None:
        self.store.write_results([row_of(*row) for row in self.plan.rows()])
