"""One sweep from its file to its folder: what `run`, `plan` and `track` do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.executors import Executor, RayExecutor, SerialExecutor, Task
from orchestrator.expand import SweepPoint, expand
from orchestrator.journal import read_journal
from orchestrator.pictures import draw
from orchestrator.plan import Plan
from orchestrator.ranking import (
    LATENCY,
    MEAN_ABS,
    PARTIAL,
    Ranked,
    best_points,
    finished_points,
    first_of_each_card,
    measure,
)
from orchestrator.runner import Progress, Runner, TooManyFailures
from orchestrator.shared import Shared
from orchestrator.store import TABLES, SweepStore, row_of
from orchestrator.store_truth import truth_key, write_truth
from orchestrator.stored import FORMAT
from orchestrator.sweep import SweepFile, load_sweep
from orchestrator.tracked import git_commit, tracked_row, tracked_truth
from orchestrator.tracking import TrackedSweep, Tracker, TrackingReport
from orchestrator.truth_data import Truth
from orchestrator.truth_notes import standing_notes
from orchestrator.warm import compile_what_is_missing
from orchestrator.worker import Limits
from profiles.errors import InputError
from simulator.summary import servesweep_version

KEPT_BEST = 5
SHOWN = 3  # points in a verdict
MakePages = Callable[[Path], list[Path]]


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
            "format": FORMAT,
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
                    "truth": truth_key(point.truth) if point.truth else None,
                    "num_gpu_blocks": point.prepared.capacity.num_gpu_blocks,
                }
                for point in self.plan.points
            ],
        }

    def run(
        self,
        progress: Progress,
        *,
        address: str | None,
        serial: bool,
        track: bool,
        tell: Callable[[str], None] | None = None,
        make_pages: MakePages | None = None,
    ) -> tuple[TrackingReport | None, str | None]:
        """Run what is left. Returns the tracking report and why the sweep ended early, if it did.

        `make_pages` is given the folder when its results are there and returns what it wrote.

        Raises InputError if another run works in the folder.
        """
        with self.store.locked():
            self.plan.resume(read_journal(self.store.journal_path))
            tracker = self.tracker() if track and self.sweep.tracking.enabled else None
            stopped: str | None = None

            def begin() -> None:
                self.store.write_manifest(self.manifest())
                self.keep_truths()
                progress.begin(self.plan)

            try:
                runner = Runner(self.plan, self.store, self.sweep.execution, progress)
                try:
                    runner.run(self._make_executor(address, serial), begin)
                except TooManyFailures as error:
                    stopped = str(error)
                self.keep()
                if tracker is None:
                    self._show(make_pages)
                report = self.track(tracker, tell, make_pages) if tracker else None
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
            if address is None and "RAY_ADDRESS" not in os.environ:  # workers are on this machine
                compile_what_is_missing(point.prepared for point in self.plan.to_run())
            return RayExecutor(parts, self.limits, address, execution.cpus_per_point)

        return make

    def keep_truths(self) -> None:
        """Put what was measured into the folder, so that reports need nothing else."""
        for truth in self.truths.values():
            write_truth(self.store.folder, truth)

    @property
    def truths(self) -> dict[str, Truth]:
        """The truths of the points, by content id."""
        return {p.truth.content_id: p.truth for p in self.plan.points if p.truth}

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

    def _tables(self, point: SweepPoint) -> pa.Table | None:
        """The point's time series, if its tables are there and whole."""
        try:
            tables = self.store.read_point(point.point_id)
        except InputError:  # they are made again
            return None
        return tables["timeseries"] if tables else None

    def _versions(self) -> dict[str, str]:
        """Of what ran, as the manifest tells it, not of what tracks."""
        try:
            manifest = self.store.read_manifest()
            tags = {"version": manifest.servesweep, "commit": manifest.commit}
        except InputError:  # there is none yet, or it is written anew
            tags = {"version": servesweep_version(), "commit": git_commit()}
        return {f"servesweep.{name}": str(value) for name, value in tags.items() if value}

    def tracker(self) -> Tracker:
        tags = {"servesweep.name": self.sweep.name, **self._versions()}
        counts = self.plan.counts()
        return Tracker(
            self.sweep.tracking.uri,
            self.sweep.tracking.experiment or self.sweep.name,
            TrackedSweep(
                name=self.sweep.name,
                sweep_id=self.sweep_id,
                tags=tags,
                params={"points": counts["points"], "axes": ", ".join(self.sweep.axes)[:250]},
                truths=[tracked_truth(truth) for truth in self.truths.values()],
                order_by=measure(self.plan),
            ),
            folder=self.store.folder.parent,
        )

    def _show(self, make_pages: MakePages | None) -> list[Path]:
        """Pictures and pages of the folder."""
        written = draw(self.plan, self.store.folder)
        if make_pages is not None and self.store.results_path.is_file():
            written += make_pages(self.store.folder)
        return written

    def track(
        self,
        tracker: Tracker,
        tell: Callable[[str], None] | None = None,
        make_pages: MakePages | None = None,
        artifacts: Sequence[Path] = (),
    ) -> TrackingReport:
        """Hand over every point that has an outcome, the sweep's artifacts and these. `tell` as
        Tracker.finish."""
        self.keep_truths()
        versions = self._versions()
        given: set[str] = set()  # a point that is there twice is one point
        for point, outcome, equals in self.plan.rows():
            if outcome is None or point.point_id in given:
                continue
            given.add(point.point_id)
            timeseries = self._tables(point) if equals is None else None
            row = row_of(point, outcome, equals)
            tracker.point(tracked_row(point, row, versions, timeseries))
        best = best_points(self.plan, 1)
        tags = {"servesweep.best": best[0].name} if best else {}
        files = [self.store.manifest_path, self.store.results_path, *artifacts]
        files += [p for p in self._show(make_pages) if p not in files]
        return tracker.finish([file for file in files if file.is_file()], tags, tell=tell)

    def verdict(self) -> str:
        """The sweep in a few lines."""
        counts = self.plan.counts()
        left = counts["runs"] - counts["finished"] - counts["failed"]
        lines = [
            f"{counts['points']} points: {counts['finished']} runs finished, "
            f"{counts['equal']} points equal to one of them, {counts['failed']} failed"
            + (f", {left} not run" if left else "")
        ]
        first = first_of_each_card(self.plan, SHOWN)
        nearest = measure(self.plan) != LATENCY
        if first and not nearest:
            lines.append("  lowest mean latency first:")
        lines += [_near_line(one) if nearest else _quick_line(one) for one in first]
        if nearest and not first and counts["finished"]:
            lines.append("  none of them can be compared with the truth")
        if first:
            best = first[0]
            notes = standing_notes(best.point.prepared, best.point.truth) + best.outcome["notes"]
            lines += [f"  note on the first: {note}" for note in notes]
        return "\n".join(lines)


def _near_line(one: Ranked) -> str:
    whole = one.metrics.get(MEAN_ABS)
    error, over = (
        (whole, "")
        if whole is not None
        else (
            one.metrics[PARTIAL],
            f" over {one.metrics['num_headline']:.0f} of 15 metrics",
        )
    )
    return (
        f"  {error:6.2f} % mean absolute difference{over}, "
        f"{one.point.prepared.capacity.num_gpu_blocks} blocks: {_who(one)}"
    )


def _quick_line(one: Ranked) -> str:
    metrics = one.metrics
    return (
        f"  latency {metrics[LATENCY]:.0f} ms, TTFT p50 {metrics['ttft_ms/p50']:.1f} ms, "
        f"TPOT p50 {metrics['tpot_ms/p50']:.2f} ms, "
        f"{metrics['throughput/output_tokens_per_s']:.0f} output tokens/s: {_who(one)}"
    )


def _who(one: Ranked) -> str:
    refused, served = one.metrics["requests/refused"], one.metrics["requests/finished"]
    return (
        one.point.name
        + (f" ({refused:.0f} of {refused + served:.0f} requests refused)" if refused else "")
        + (f" (and {one.same} more with this result)" if one.same else "")
    )
