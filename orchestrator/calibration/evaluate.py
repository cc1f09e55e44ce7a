"""Candidates as points of a sweep: run where they have not been run, and read request by request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.calibration.objective import NUM_METRICS, RunValues
from orchestrator.calibration.study import Cell, Side, Study, Value
from orchestrator.executors import Executor
from orchestrator.expand import SweepPoint, expand
from orchestrator.journal import read_journal
from orchestrator.plan import FINISHED, Plan
from orchestrator.runner import Progress, Runner
from orchestrator.session import Session
from orchestrator.store import SweepStore
from orchestrator.sweep import SweepFile
from orchestrator.truth_data import HEADLINE, Truth, content_id
from orchestrator.truth_matching import simulated_requests
from profiles.bundle import Floats
from profiles.errors import InputError

MakeExecutor = Callable[[dict[str, Any]], Executor]


@dataclass
class Candidates:
    """What came out for the candidates of some runs, in the order they were asked for."""

    runs: list[str]
    cells: list[Cell] = field(default_factory=list)
    simulated: dict[str, list[Floats]] = field(default_factory=dict)
    truths: dict[str, Truth] = field(default_factory=dict)
    failed: int = 0

    def values(self) -> list[RunValues]:
        """Of every run, all candidates."""
        return [
            RunValues(measured_of(self.truths[run]), np.stack(self.simulated[run]))
            for run in self.runs
        ]

    def add(self, other: Candidates) -> None:
        self.cells += other.cells
        self.truths |= other.truths
        self.failed += other.failed
        for run, values in other.simulated.items():
            self.simulated.setdefault(run, []).extend(values)


@dataclass
class Evaluator:
    """Runs candidates in the study's folder; what its journal holds does not run again."""

    study: Study
    path: Path
    store: SweepStore
    make_executor: MakeExecutor
    make_progress: Callable[[], Progress]
    fixed: dict[str, Value] = field(default_factory=dict)
    """Parameters that are not searched: candidates are given without them."""

    def complete(self, cell: Cell) -> Cell:
        """The candidate with the fixed parameters among its own."""
        searched = iter(cell)
        return tuple(
            self.fixed[name] if name in self.fixed else next(searched)
            for name in self.study.parameters
        )

    def run(self, cells: list[Cell], runs: list[str], side: Side) -> Candidates:
        """Raises InputError for what cannot be a point, TooManyFailures."""
        return self._run(
            self.study.sweep([self.complete(c) for c in cells], runs, side), cells, runs
        )

    def as_it_was(self, runs: list[str], side: Side) -> Candidates:
        """The base, with nothing fitted."""
        return self._run(self.study.sweep([()], runs, side), [()], runs)

    def _run(self, sweep: SweepFile, cells: list[Cell], runs: list[str]) -> Candidates:
        points = expand(sweep, self.path)
        plan = Plan(points, read_journal(self.store.journal_path))
        progress = self.make_progress()
        try:
            runner = Runner(plan, self.store, sweep.execution, progress)
            runner.run(self.make_executor, lambda: progress.begin(plan))
        finally:
            if hasattr(progress, "close"):
                progress.close()
        Session(self.path, sweep, plan, self.store).keep()
        found = Candidates(runs, list(cells), {run: [] for run in runs})
        # The grid has a run's candidates one after the other.
        for run, group in zip(runs, split(list(plan.rows()), len(runs)), strict=True):
            for point, outcome, equals in group:
                truth = check_truth(point, self.path, run)
                found.truths[run] = truth
                done = outcome is not None and outcome["status"] == FINISHED
                found.failed += not done
                found.simulated[run].append(
                    self._simulated(equals or point, truth) if done else nothing(truth)
                )
        return found

    def _simulated(self, point: SweepPoint, truth: Truth) -> Floats:
        """TTFT, TPOT and latency of the truth's requests, [metric, request] in ms."""
        path = self.store.folder / "points" / point.point_id / "requests.parquet"
        table = pq.read_table(path)
        if truth.rows is not None:
            table = table.take(pa.array(truth.rows))
        requests = simulated_requests(table, truth.start)
        if not requests.completed.all():
            return nothing(truth)
        return np.stack([getattr(requests, metric) for metric in HEADLINE])


def split(rows: list[Any], parts: int) -> list[list[Any]]:
    size = len(rows) // parts if parts else 0
    return [rows[i * size : (i + 1) * size] for i in range(parts)]


def nothing(truth: Truth) -> Floats:
    return np.full(measured_of(truth).shape, np.nan)


def requests_id(truth: Truth) -> str:
    """Of what was measured of every request, wherever it was read from."""
    assert truth.requests is not None
    columns = ("num_prompt_tokens", "num_output_tokens", *HEADLINE)
    return content_id(*(getattr(truth.requests, name).tobytes() for name in columns))


def measured_of(truth: Truth) -> Floats:
    assert truth.requests is not None
    measured = np.stack([getattr(truth.requests, metric) for metric in HEADLINE])
    assert len(measured) == NUM_METRICS
    return measured


def check_truth(point: SweepPoint, path: Path, run: str) -> Truth:
    """The point's truth, whose requests are those of its workload in the same order."""
    truth, workload = point.truth, point.prepared.workload
    where = f"{path}, runs.{run}.truth"
    assert truth is not None  # every run of a study has one
    if truth.requests is None:
        raise InputError(where, "requests", None, "a truth with a row for every request")
    rows = truth.rows if truth.rows is not None else np.arange(len(truth.requests))
    if truth.rows is None and len(truth.requests) != len(workload):
        expected = f"the workload's {len(workload)}"
        raise InputError(where, "requests", len(truth.requests), expected)
    if len(rows) and rows.max() >= len(workload):
        raise InputError(where, "requests", int(rows.max()), f"less than {len(workload)}")
    for name in ("num_prompt_tokens", "num_output_tokens"):
        ours, theirs = getattr(workload, name)[rows], getattr(truth.requests, name)
        differs = np.flatnonzero(ours != theirs)
        if len(differs):
            i = int(differs[0])
            expected = f"{int(ours[i])} as in the workload's request {int(rows[i])}"
            raise InputError(where, name, int(theirs[i]), expected)
    if truth.requests.failed.any():
        raise InputError(where, "requests", "failed ones", "requests that were all served")
    return truth
