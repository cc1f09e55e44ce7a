"""One study from its file to its folder.

OUT/<name>/        a sweep's folder: every candidate a point, with its journal and results
    card.yaml      the calibrated card
    report.md      what was fitted, how well, and what the data do not say; with plots/
    report.json    the same as data
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.calibration.evaluate import Candidates, Evaluator
from orchestrator.calibration.judge import Judged, judge
from orchestrator.calibration.report import calibrated_card, write_report
from orchestrator.calibration.search import Tell, search
from orchestrator.calibration.study import Study
from orchestrator.calibration.uncertainty import Fit, fit
from orchestrator.executors import Executor, RayExecutor, SerialExecutor, start_ray
from orchestrator.expand import expand
from orchestrator.journal import read_journal
from orchestrator.plan import Plan
from orchestrator.runner import Progress
from orchestrator.session import Session
from orchestrator.store import SweepStore, row_of
from orchestrator.tracking import TrackingReport
from orchestrator.worker import Limits
from profiles.calibrated import CalibratedCard


@dataclass(frozen=True)
class Calibrated:
    """What a study came to."""

    folder: Path
    fit: Fit
    judged: list[Judged]
    card: CalibratedCard
    candidates: int
    failed: int
    report: TrackingReport | None


def calibrate(
    study: Study,
    path: Path,
    out: Path,
    *,
    address: str | None,
    serial: bool,
    track: bool,
    make_progress: Callable[[Plan], Progress],
    tell: Tell,
) -> Calibrated:
    """Raises InputError, TooManyFailures. Stopped at any time, it goes on where it was."""
    store = SweepStore(out / study.name)
    # What is wrong with the study shows before Ray starts.
    points = expand(study.sweep([()], list(study.runs), "train"), path) if study.runs else []
    assert points
    with store.locked(), _cluster(serial, address):
        limits = Limits(study.execution.time_limit_s, study.execution.memory_limit_mib)

        def make_executor(parts: dict[str, Any]) -> Executor:
            if serial:
                return SerialExecutor(parts, limits)
            return RayExecutor(parts, limits, address, study.execution.cpus_per_point)

        evaluator = Evaluator(study, path, store, make_executor, make_progress)
        tried = search(study, evaluator, tell)
        found = fit(study, tried)
        judged = judge(study, evaluator, found.cell)
        session = _whole(study, path, store, tried)
        card = calibrated_card(study, session.plan.points, found, judged)
        written = write_report(study, path, store, session.plan, tried, found, judged, card)
        tracking = _track(session, written, track and study.tracking.enabled)
    return Calibrated(store.folder, found, judged, card, len(tried.cells), tried.failed, tracking)


def _whole(study: Study, path: Path, store: SweepStore, tried: Candidates) -> Session:
    """All candidates as one sweep, whose results are in the folder."""
    sweep = study.sweep(tried.cells, study.training, "train")
    plan = Plan(expand(sweep, path), read_journal(store.journal_path))
    session = Session(path, sweep, plan, store)
    store.write_manifest(session.manifest())
    store.write_results([row_of(*row) for row in plan.rows()])
    return session


def _track(session: Session, artifacts: list[Path], wanted: bool) -> TrackingReport | None:
    if not wanted:
        return None
    with session.tracker() as tracker:
        return session.track(tracker, artifacts=artifacts)


class _cluster:  # noqa: N801  (reads as a statement)
    """One Ray for all rounds, ended with the study if it was started for it."""

    def __init__(self, serial: bool, address: str | None) -> None:
        self._serial, self._address = serial, address
        self._ray: Any = None

    def __enter__(self) -> None:
        if self._serial:
            return
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        if not ray.is_initialized():
            start_ray(ray, self._address)
            self._ray = ray

    def __exit__(self, *_: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()
