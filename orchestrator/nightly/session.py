"""One night from its file to its folder: measured, written down, judged, tracked.

OUT/<name>/
    measured.json    every case: predictions, errors, inputs
    steps/           what every point case decided, step by step
    results.parquet  the point cases as a sweep's results
    judgement.json   findings and verdict
    report.md, junit.xml
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.executors import Executor, RayExecutor, SerialExecutor
from orchestrator.nightly.baseline import (
    Baseline,
    load_baseline,
    steps_file,
    write_baseline,
    write_steps,
)
from orchestrator.nightly.bisect import Bisection
from orchestrator.nightly.detector import Judgement, judge
from orchestrator.nightly.measure import (
    Measured,
    Ready,
    disagreement,
    oracle_cases,
    ready_points,
    traced,
)
from orchestrator.nightly.report import (
    finding_json,
    junit,
    markdown,
    measured_json,
    write_json,
    write_text,
)
from orchestrator.nightly.suite import Suite
from orchestrator.nightly.tracked import tags_of, tracked_case, tracked_night
from orchestrator.nightly.trend import last_accepted
from orchestrator.plan import Plan
from orchestrator.runner import Progress, Runner
from orchestrator.store import SweepStore
from orchestrator.tracked import git_commit
from orchestrator.tracking import Tracker, TrackingReport
from orchestrator.worker import Limits
from profiles.errors import InputError
from profiles.whole import write_whole
from simulator.summary import servesweep_version

MEASURED, JUDGEMENT = "measured.json", "judgement.json"
REPORT, JUNIT = "report.md", "junit.xml"
STEPS = "steps"


@dataclass(frozen=True)
class Night:
    folder: Path
    cases: list[Measured]
    judgement: Judgement
    accepted: list[str] | None
    tracking: TrackingReport | None


def run_night(
    suite: Suite,
    path: Path,
    out: Path,
    *,
    address: str | None,
    serial: bool,
    track: bool,
    accept: str | None,
    bisected: bool,
    make_progress: Callable[[], Progress],
    tell: Callable[[str], None],
) -> Night:
    """Raises InputError for a wrong suite or baseline, and for --accept of what was not measured."""
    if accept is not None and not accept.strip():
        raise InputError("command line", "--accept", accept, "the reason, in words")
    started = datetime.datetime.now(datetime.UTC)
    baseline_folder = path.parent / suite.baseline
    tracked = track and suite.tracking.enabled
    experiment = suite.tracking.experiment or suite.name
    store = SweepStore(out / suite.name)
    with store.locked():
        clear(store)
        baseline = load_baseline(baseline_folder)
        cases = measure(suite, path, store, address, serial, make_progress)
        files = write_measured(store.folder, cases)
        last, trend = (
            last_accepted(suite.tracking.uri, experiment, out) if tracked else (None, "not asked")
        )
        judgement = judge(suite, cases, baseline, last)
        versions = {"servesweep": servesweep_version(), "commit": git_commit() or "none"}

        def write(origins: list[str]) -> list[Path]:
            return write_judgement(
                store.folder, suite, cases, judgement, baseline, trend, origins, versions
            )

        written = write([])
        if bisected:  # may take hours: the night is told first
            written = write(Bisection(suite, path, baseline, judgement, tell).origins(cases))
        files += written
        changed = None
        if accept is not None:
            changed = accept_night(baseline_folder, cases, baseline, accept, judgement)
        report = None
        if tracked:
            sweep = tracked_night(suite, judgement, started, versions)
            with Tracker(suite.tracking.uri, experiment, sweep, folder=out) as tracker:
                for case in cases:
                    if case.kind == "point" and case.status != "skipped":
                        tracker.point(tracked_case(case, sweep.sweep_id))
                tags = tags_of(judgement, accept)
                report = tracker.finish(files, tags, tell=tell)
    return Night(store.folder, cases, judgement, changed, report)


def clear(store: SweepStore) -> None:
    """A night measures anew, and one that ends early leaves no other night's verdict behind."""
    store.journal_path.unlink(missing_ok=True)
    store.results_path.unlink(missing_ok=True)
    for name in (MEASURED, JUDGEMENT, REPORT, JUNIT):
        (store.folder / name).unlink(missing_ok=True)
    for old in (store.folder / STEPS).glob("*.parquet"):
        old.unlink()


def measure(
    suite: Suite,
    path: Path,
    store: SweepStore,
    address: str | None,
    serial: bool,
    make_progress: Callable[[], Progress],
) -> list[Measured]:
    """Points run as a sweep, and once more here with their steps: both must say the same."""
    ready, others = ready_points(suite, path)
    outcomes = run_points(ready, suite, store, address, serial, make_progress) if ready else {}
    points = {case.name: case for case in others}
    for one in ready:
        case = traced(one)
        if case.status == "measured":
            apart = disagreement(case, outcomes.get(one.name))
            if apart is not None:
                case.fail(apart)
        points[one.name] = case
    return [*(points[name] for name in suite.points), *oracle_cases(suite, path.parent)]


def run_points(
    ready: list[Ready],
    suite: Suite,
    store: SweepStore,
    address: str | None,
    serial: bool,
    make_progress: Callable[[], Progress],
) -> dict[str, dict[str, Any]]:
    """The outcome of each case, by name."""
    limits = Limits(suite.execution.time_limit_s, suite.execution.memory_limit_mib)

    def make_executor(parts: dict[str, Any]) -> Executor:
        if serial:
            return SerialExecutor(parts, limits)
        return RayExecutor(parts, limits, address, suite.execution.cpus_per_point)

    plan = Plan([one.sweep_point(index) for index, one in enumerate(ready)])
    progress = make_progress()
    try:
        runner = Runner(plan, store, suite.execution, progress)
        runner.run(make_executor, lambda: progress.begin(plan))
    finally:
        if hasattr(progress, "close"):
            progress.close()
    return {
        str(point.axes["case"]): outcome for point, outcome, _ in plan.rows() if outcome is not None
    }


def write_measured(folder: Path, cases: list[Measured]) -> list[Path]:
    steps = folder / STEPS
    steps.mkdir(exist_ok=True)
    for case in cases:
        if case.steps is not None:
            write_whole(steps / steps_file(case.name), partial(write_steps, case.steps))
    return [write_json(folder / MEASURED, measured_json(cases))]


def write_judgement(
    folder: Path,
    suite: Suite,
    cases: list[Measured],
    judgement: Judgement,
    baseline: Baseline | None,
    trend: str,
    origins: list[str],
    versions: dict[str, str],
) -> list[Path]:
    data = {
        "verdict": judgement.verdict,
        "exit_code": judgement.exit_code,
        "changed": judgement.answer("changed"),
        "accurate": judgement.answer("accurate"),
        "measured": judgement.measured,
        "findings": [finding_json(finding) for finding in judgement.findings],
        "origins": origins,
        "trend": trend,
        "versions": versions,
    }
    text = markdown(suite, cases, judgement, baseline, trend, origins, versions)
    xml = junit(suite, cases, judgement).decode()
    return [
        write_json(folder / JUDGEMENT, data),
        write_text(folder / REPORT, text),
        write_text(folder / JUNIT, xml),
    ]


def accept_night(
    folder: Path,
    cases: list[Measured],
    baseline: Baseline | None,
    reason: str,
    judgement: Judgement,
) -> list[str]:
    wrong = [case for case in cases if case.status == "wrong_input"]
    if wrong or not judgement.measured:
        text = f"{wrong[0].name}: {wrong[0].reason}" if wrong else "nothing was measured"
        raise InputError(
            "command line", "--accept", text, "cases that were all measured or skipped"
        )
    return write_baseline(folder, cases, baseline, reason, git_commit())
