"""Host time of a study from the steps of its recordings, where the fit may see enough of them.

A step is the fit's to see if all requests in it are: no part of its host time belongs to one of them.
A window in time leaves most steps whole; every second request leaves those of an idle engine, which
are not like the others: then host time is searched for end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.calibration.steps import FIELDS, PER_REQUEST, PER_STEP, host_time
from orchestrator.calibration.study import Study
from orchestrator.calibration.uncertainty import warnings
from orchestrator.expand import SweepPoint
from orchestrator.recording.steps import FILE, Step, host_ns, read_steps
from profiles.bundle import Floats, Ints
from profiles.calibrated import Estimate
from profiles.errors import InputError
from profiles.recorded import load_recorded_run

ENOUGH = 0.5  # share of the steps with training requests that hold no others
NS_PER_MS = 1e6


@dataclass(frozen=True)
class FromSteps:
    """Parameters that are host time, as the steps say them; none of them where they do not.

    how: in words, for the report; empty where no parameter is host time.
    """

    estimates: dict[str, Estimate]
    warnings: tuple[str, ...]
    how: str


def host_from_steps(study: Study, path: Path, points: dict[str, SweepPoint]) -> FromSteps:
    """`points`: of every training run, the base with nothing fitted. Raises InputError for steps
    that cannot be read."""
    free = {
        name: sorted(set(parameter.fields) & set(FIELDS))
        for name, parameter in study.parameters.items()
        if set(parameter.fields) & set(FIELDS)
    }
    if not free:
        return FromSteps({}, (), "")
    names = ", ".join(free)
    try:
        return _regression(study, path, points, names, free)
    except _NotTold as reason:
        return FromSteps({}, (), f"Host time ({names}) was searched for: {reason}.")


class _NotTold(Exception):
    """Why steps do not tell a study's host time, in words."""


def _regression(
    study: Study,
    path: Path,
    points: dict[str, SweepPoint],
    names: str,
    free: dict[str, list[str]],
) -> FromSteps:
    for name in free:
        if len(study.parameters[name].fields) > 1:
            raise _NotTold(f"{name} moves several fields together")
    ranges = {fields[0]: study.parameters[name].range for name, fields in free.items()}
    bounds = {field: (float(low), float(high)) for field, (low, high) in ranges.items()}
    columns = [_of_run(study, path, run, points[run], set(bounds)) for run in study.training]
    try:
        found = host_time(
            np.concatenate([host for host, _ in columns]),
            np.concatenate([requests for _, requests in columns]),
            bounds,
            source="steps",
            samples=study.bootstrap.samples,
            confidence=study.bootstrap.confidence,
            seed=study.bootstrap.seed,
        )
    except InputError as error:
        raise _NotTold(f"{error.field}: {error.value}, not {error.expected}") from None
    estimates = dict(zip(free, found.estimates.values(), strict=True))
    said = warnings(
        study.without(set(study.parameters) - set(free)),
        tuple(e.value for e in estimates.values()),
        np.array([e.low for e in estimates.values()], np.float64),
        np.array([e.high for e in estimates.values()], np.float64),
        found.resampled,
    )
    how = f"Host time ({names}): by regression on {found.num_steps} recorded steps"
    return FromSteps(estimates, tuple(said), f"{how} of requests that the fit sees.")


def _of_run(
    study: Study, path: Path, run: str, point: SweepPoint, free: set[str]
) -> tuple[Floats, Ints]:
    """ms that the host added to a step beside what the point says already, and its number of
    requests, of every step of training requests alone that another follows at once."""
    folder = study.runs[run].truth.recorded
    file = path.parent / folder / FILE if folder is not None else None
    if file is None or not file.is_file():
        raise _NotTold(f"run {run} has no recorded steps")
    recorded = load_recorded_run(file.parent)
    if recorded.resolved is not None and recorded.resolved.async_scheduling:
        raise _NotTold(f"run {run} was scheduled asynchronously, where it hides behind the device")
    steps = read_steps(file, len(recorded))
    assert point.truth is not None  # every run of a study has one
    rows = range(len(recorded)) if point.truth.rows is None else point.truth.rows
    seen = {int(row) for row in rows}
    _check_enough(steps, seen, run)
    host, requests = host_ns(steps, seen)
    overhead = point.prepared.point.overhead
    host_ms = host / NS_PER_MS
    if PER_STEP not in free:
        host_ms -= overhead.host_ms_per_step
    if PER_REQUEST not in free:
        host_ms -= overhead.host_ms_per_request * requests
    return host_ms, requests


def _check_enough(steps: list[Step], seen: set[int], run: str) -> None:
    inside = [sum(r in seen for r, _, _ in step.sched) for step in steps]
    ours = sum(n > 0 for n in inside)
    alone = sum(0 < n == len(step.sched) for n, step in zip(inside, steps, strict=True))
    if alone < ENOUGH * ours:
        raise _NotTold(
            f"of {ours} recorded steps of {run} with requests that the fit sees, {alone} hold no "
            f"others; a window in time leaves more of them whole"
        )
