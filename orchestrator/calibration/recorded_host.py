"""Host time of a study from the steps of its recordings, where all of them have steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator.calibration.steps import host_time
from orchestrator.calibration.study import Study
from orchestrator.recording.steps import FILE, host_ns, read_steps
from profiles.bundle import Ints
from profiles.calibrated import Estimate
from profiles.recorded import load_recorded_run

FIELDS = ("overhead.host_ms_per_step", "overhead.host_ms_per_request")


def host_estimates(study: Study, path: Path) -> dict[str, Estimate]:
    """Parameters of the study that are host time, from the steps of its training runs. Raises
    InputError.

    None where a run has no steps, or was scheduled asynchronously and hides host time behind the
    device's: then the search finds them end to end.
    """
    wanted = {
        parameter.fields[0]: name
        for name, parameter in study.parameters.items()
        if len(parameter.fields) == 1 and parameter.fields[0] in FIELDS
    }
    files = [_steps_of(study, path, run) for run in study.training]
    if not wanted or not all(files):
        return {}
    columns = [recorded_host(file) for file in files if file is not None]
    found = host_time(
        np.concatenate([host for host, _ in columns]),
        np.concatenate([requests for _, requests in columns]),
        source=", ".join(map(str, files)),
        samples=study.bootstrap.samples,
        confidence=study.bootstrap.confidence,
        seed=study.bootstrap.seed,
    )
    return {
        wanted[estimate.fields[0]]: estimate
        for estimate in found.estimates().values()
        if estimate.fields[0] in wanted
    }


def _steps_of(study: Study, path: Path, run: str) -> Path | None:
    folder = study.runs[run].truth.recorded
    file = path.parent / folder / FILE if folder is not None else None
    if file is None or not file.is_file():
        return None
    resolved = load_recorded_run(file.parent).resolved
    return None if resolved is not None and resolved.async_scheduling else file


def recorded_host(path: Path) -> tuple[Ints, Ints]:
    """ns that the host added to a step, and its number of requests, of every step that another
    follows at once. Raises InputError."""
    return host_ns(read_steps(path, len(load_recorded_run(path.parent))))
