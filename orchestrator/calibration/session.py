"""One study from its file to its folder.

OUT/<name>/        a sweep's folder: every candidate a point, with its journal and results
    card.yaml      the calibrated card
    report.md      what was fitted, how well, and what the data do not say; with plots/
    report.json    the same as data
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.calibration.evaluate import Evaluator, check_truth, requests_id
from orchestrator.calibration.judge import Judged, judge
from orchestrator.calibration.pictures import draw_fit
from orchestrator.calibration.recorded_host import FromSteps, host_from_steps
from orchestrator.calibration.report import calibrated_card, write_report
from orchestrator.calibration.search import Tell, scores, search
from orchestrator.calibration.study import Cell, Side, Study
from orchestrator.calibration.uncertainty import Fit, fit
from orchestrator.executors import Executor, RayExecutor, SerialExecutor, start_ray
from orchestrator.expand import SweepPoint, expand
from orchestrator.journal import read_journal
from orchestrator.plan import Plan
from orchestrator.runner import Progress
from orchestrator.session import Session
from orchestrator.store import SweepStore, row_of
from orchestrator.tracking import TrackingReport
from orchestrator.truth import load_truth
from orchestrator.worker import Limits
from profiles.calibrated import CalibratedCard
from profiles.errors import InputError


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
    make_progress: Callable[[], Progress],
    tell: Tell,
) -> Calibrated:
    """Raises InputError, TooManyFailures. Stopped at any time, it goes on where it was."""
    store = SweepStore(out / study.name)
    bases = check_study(study, path)
    with store.locked(), _cluster(serial, address):
        limits = Limits(study.execution.time_limit_s, study.execution.memory_limit_mib)

        def make_executor(parts: dict[str, Any]) -> Executor:
            if serial:
                return SerialExecutor(parts, limits)
            return RayExecutor(parts, limits, address, study.execution.cpus_per_point)

        host = host_from_steps(study, path, bases)
        for name, estimate in host.estimates.items():
            tell(f"{name} {estimate.value:.4g} by regression on the recorded steps")
        if host.how and not host.estimates:
            tell(host.how)
        values = {name: estimate.value for name, estimate in host.estimates.items()}
        evaluator = Evaluator(study, path, store, make_executor, make_progress, values)
        free = study.without(set(values))
        if free.parameters:
            tried = search(free, evaluator, tell)
            found = fit(free, tried)
        else:
            tried = evaluator.run([()], study.training, "train")
            found = Fit((), "regression", (), (), float(scores(study, tried)[0]), 0.0, ())
        judged = judge(study, evaluator, found.cell)
        folder = store.folder / "plots"
        pictures = draw_fit(free, tried, found, folder) if free.parameters else []
        session = _whole(study, path, store, [evaluator.complete(cell) for cell in tried.cells])
        found = complete(study, found, host)
        card = calibrated_card(study, session.plan.points, found, judged)
        written = write_report(study, path, store, tried, found, judged, card, pictures, host.how)
        tracking = _track(session, written, track and study.tracking.enabled)
    return Calibrated(store.folder, found, judged, card, len(tried.cells), tried.failed, tracking)


def check_study(study: Study, path: Path) -> dict[str, SweepPoint]:
    """What is wrong shows before anything runs: the base and the ends of the ranges as points,
    truths that are not of the workload, requests on both sides. Raises InputError.

    Of every training run, the base with nothing fitted.
    """
    parameters = study.parameters.values()
    ends: list[Cell] = [tuple(p.range[end] for p in parameters) for end in (0, 1)]
    bases: dict[str, SweepPoint] = {}
    fitted: dict[tuple[str, int], str] = {}  # request of a truth -> run
    sides: list[tuple[Side, list[str]]] = [("train", study.training), ("test", study.testing)]
    for side, runs in sides:
        if not runs:
            continue
        expand(study.sweep(ends, runs, side), path)
        for run, point in zip(runs, expand(study.sweep([()], runs, side), path), strict=True):
            truth = check_truth(point, path, run)
            rows = range(len(point.prepared.workload)) if truth.rows is None else truth.rows
            # Two runs may name the same measurement, or a copy of it.
            whole = requests_id(load_truth(study.runs[run].truth, path.parent))
            ours = [(whole, int(row)) for row in rows]
            if side == "train":
                bases[run] = point
                fitted |= dict.fromkeys(ours, run)
            else:
                check_unseen(fitted, ours, f"{path}, runs.{run}")
    return bases


def check_unseen(
    fitted: dict[tuple[str, int], str], ours: list[tuple[str, int]], where: str
) -> None:
    """Raises InputError for requests that are to judge a fit they were part of."""
    both = sorted(request for request in ours if request in fitted)
    if both:
        raise InputError(
            where,
            "test",
            f"{len(both)} requests that run {fitted[both[0]]} is fitted to, first {both[0][1]}",
            "requests that the fit never sees",
        )


def complete(study: Study, found: Fit, host: FromSteps) -> Fit:
    """The fit with the parameters that regression gave."""
    fixed = host.estimates
    searched = iter(zip(found.cell, found.low, found.high, strict=True))
    each = [
        (fixed[name].value, fixed[name].low or 0.0, fixed[name].high or 0.0)
        if name in fixed
        else next(searched)
        for name in study.parameters
    ]
    cell, low, high = zip(*each, strict=True)
    said = (*host.warnings, *found.warnings)
    return replace(found, cell=tuple(cell), low=tuple(low), high=tuple(high), warnings=said)


def _whole(study: Study, path: Path, store: SweepStore, cells: list[Cell]) -> Session:
    """All candidates as one sweep, whose results are in the folder."""
    sweep = study.sweep(cells, study.training, "train")
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
