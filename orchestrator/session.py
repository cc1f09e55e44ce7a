"""One sweep from its file to its folder: what `run`, `plan` and `track` do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from orchestrator.executors import Executor, RayExecutor, SerialExecutor, Task
from orchestrator.expand import SweepPoint, expand
from orchestrator.journal import read_journal
from orchestrator.pictures import draw
from orchestrator.plan import Plan
from orchestrator.runner import (
    MEAN_ABS,
    TABLES,
    Progress,
    Runner,
    TooManyFailures,
    best_points,
    finished_points,
)
from orchestrator.shared import Shared
from orchestrator.store import SweepStore, row_of
from orchestrator.sweep import SweepFile, load_sweep
from orchestrator.tracked import git_commit, tracked_row, tracked_truth
from orchestrator.tracking import TrackedSweep, Tracker, TrackingReport
from orchestrator.worker import Limits
from simulator.summary import servesweep_version

KEPT_BEST = 5


@dataclass(frozen=True)
class Session:
    """A sweep, its plan and its folder."""

    path: Path
    sweep: SweepFile
    plan: Plan
    store: SweepStore

    @classmethod
    def open(cls, path: Path, out: Path, sweep: SweepFile | None = None) -> Session:
        """Read and check everything; what the folder's journal holds is done. Raises InputError.

        `sweep`: what the file says, if it was read before.
        """
        sweep = sweep or load_sweep(path)
        store = SweepStore(out / sweep.name)
        plan = Plan(expand(sweep, path), read_journal(store.journal_path))
        return cls(path, sweep, plan, store)

    @property
    def sweep_id(self) -> str:
        """Name and points: a sweep with another grid is another sweep."""
        ids = " ".join(point.point_id for point in self.plan.points)
        return hashlib.sha256(f"{self.sweep.name} {ids}".encode()).hexdigest()[:16]

    def manifest(self) -> dict[str, Any]:
        return {
            "sweep_id": self.sweep_id,
            "servesweep": servesweep_version(),
            "commit": git_commit(),
            "sweep": self.sweep.model_dump(mode="json"),
            "points": [
                {
                    "index": point.index,
                    "point_id": point.point_id,
                    "run_id": point.run_id,
                    "axes": point.axes,
                    "num_gpu_blocks": point.prepared.capacity.num_gpu_blocks,
                }
                for point in self.plan.points
            ],
        }

    def run(
        self, progress: Progress, *, address: str | None, serial: bool, track: bool
    ) -> tuple[TrackingReport | None, str | None]:
        """Run what is left. Returns the tracking report and why the sweep ended early, if it did.

        Raises InputError if another run works in the folder.
        """
        with self.store.locked():
            self.plan.resume(read_journal(self.store.journal_path))
            self.store.write_manifest(self.manifest())
            tracker = self.tracker() if track and self.sweep.tracking.enabled else None
            stopped: str | None = None
            try:
                runner = Runner(self.plan, self.store, self.sweep.execution, progress)
                try:
                    runner.run(self._make_executor(address, serial))
                except TooManyFailures as error:
                    stopped = str(error)
                self.keep()
                report = self.track(tracker) if tracker else None
            finally:
                if tracker:
                    tracker.close()
        return report, stopped

    @property
    def limits(self) -> Limits:
        execution = self.sweep.execution
        return Limits(execution.time_limit_s, execution.memory_limit_mib)

    def _make_executor(
        self, address: str | None, serial: bool
    ) -> Callable[[dict[str, Any]], Executor]:
        execution = self.sweep.execution

        def make(parts: dict[str, Any]) -> Executor:
            if serial:
                return SerialExecutor(parts, self.limits)
            return RayExecutor(parts, self.limits, address, execution.cpus_per_point)

        return make

    def keep(self) -> None:
        """Simulate points to keep once more, with their tables, where they have none yet."""
        keep = self.sweep.execution.keep_requests
        if keep == "none":
            return
        kept = best_points(self.plan, KEPT_BEST) if keep == "best" else finished_points(self.plan)
        missing = [point for point in kept if self._tables(point) is None]
        shared = Shared(missing)
        executor = SerialExecutor(shared.parts, self.limits)
        for point in missing:
            executor.submit(Task([shared.job(point)], keep_requests=True))
            for finished in executor.wait(0.0):
                for outcome in finished.outcomes or []:
                    tables = {name: outcome[name] for name in TABLES if name in outcome}
                    if tables:
                        self.store.write_point(outcome["point_id"], tables)

    def _tables(self, point: SweepPoint) -> Path | None:
        path = self.store.folder / "points" / point.point_id / "timeseries.parquet"
        return path if path.is_file() else None

    def tracker(self) -> Tracker:
        points = self.plan.points
        truth = next((p.truth for p in points if p.truth), None)
        tags = {"servesweep.version": servesweep_version(), "servesweep.name": self.sweep.name}
        commit = git_commit()
        if commit:
            tags["servesweep.commit"] = commit
        counts = self.plan.counts()
        return Tracker(
            self.sweep.tracking.uri,
            self.sweep.tracking.experiment or self.sweep.name,
            TrackedSweep(
                name=self.sweep.name,
                sweep_id=self.sweep_id,
                tags=tags,
                params={"points": counts["points"], "axes": ", ".join(self.sweep.axes)[:250]},
                truth=tracked_truth(truth) if truth else None,
            ),
            folder=self.store.folder.parent,
        )

    def track(self, tracker: Tracker) -> TrackingReport:
        """Hand over every point that has an outcome, and the artifacts."""
        given: set[str] = set()  # a point that is there twice is one point
        for point, outcome, equals in self.plan.rows():
            if outcome is None or point.point_id in given:
                continue
            given.add(point.point_id)
            path = self._tables(point) if equals is None else None
            timeseries = pq.read_table(path) if path else None
            tracker.point(tracked_row(point, row_of(point, outcome, equals), timeseries))
        best = best_points(self.plan, 1)
        tags = {"servesweep.best": best[0].name} if best else {}
        artifacts = [self.store.manifest_path, self.store.results_path]
        artifacts += draw(self.plan, self.store.folder)
        return tracker.finish([a for a in artifacts if a.is_file()], tags)

    def verdict(self) -> str:
        """The sweep in a few lines."""
        counts = self.plan.counts()
        lines = [
            f"{counts['points']} points: {counts['finished']} runs finished, "
            f"{counts['equal']} points equal to one of them, {counts['failed']} failed"
        ]
        best = best_points(self.plan, 3)
        outcome_of = {point.point_id: outcome for point, outcome, _ in self.plan.rows()}
        for point in best:
            metrics = (outcome_of[point.point_id] or {})["metrics"]
            lines.append(
                f"  {metrics[MEAN_ABS]:6.2f} % mean absolute difference, "
                f"{point.prepared.capacity.num_gpu_blocks} blocks: {point.name}"
            )
        if not best:
            lines += self._fastest()
        return "\n".join(lines)

    def _fastest(self, count: int = 3) -> list[str]:
        """Without a truth: the points with the smallest median TTFT."""
        done = [
            (outcome["metrics"]["ttft_ms/p50"], point.index, point, outcome["metrics"])
            for point, outcome, equals in self.plan.rows()
            if equals is None and outcome and "ttft_ms/p50" in (outcome.get("metrics") or {})
        ]
        return [
            f"  TTFT p50 {ttft:.1f} ms, TPOT p50 {metrics['tpot_ms/p50']:.2f} ms, "
            f"{metrics['throughput/output_tokens_per_s']:.0f} output tokens/s: {point.name}"
            for ttft, _, point, metrics in sorted(done, key=lambda d: d[:2])[:count]
        ]
