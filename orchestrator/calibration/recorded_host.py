"""What the host added to each step of a recorded run, where the recording has steps.

steps.jsonl.gz of a recorded folder, a line a step. Read are `t_ns` (when its scheduling began),
`execute_ns` (until its output was there), `device_ns` (start and end on a modelled device; absent for
real kernels), `sched` (an entry a request) and `running_after`; other fields are left alone.
"""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from orchestrator.calibration.steps import host_time
from orchestrator.calibration.study import Study
from profiles.bundle import Ints
from profiles.calibrated import Estimate
from profiles.errors import InputError, parse_model
from profiles.foreign import Foreign, json_object, read_file

FILE = "steps.jsonl.gz"
FIELDS = ("overhead.host_ms_per_step", "overhead.host_ms_per_request")

Count = Annotated[int, Field(strict=True, ge=0)]
Time = Annotated[int, Field(strict=True)]


class _Step(Foreign):
    t_ns: Time
    execute_ns: Count
    sched: list[Any]
    running_after: Count
    device_ns: tuple[Time, Time] | None = None


def host_estimates(study: Study, path: Path) -> dict[str, Estimate]:
    """Parameters of the study that are host time, from the steps of its training runs; none where a
    run has no steps: then the search finds them end to end. Raises InputError."""
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
    return file if file is not None and file.is_file() else None


def recorded_host(path: Path) -> tuple[Ints, Ints]:
    """ns that the host added, and the number of requests, of every step that another follows at once:
    from one scheduling to the next, less the device's time. Raises InputError."""
    try:
        lines = gzip.decompress(read_file(path)).splitlines()
    except (OSError, EOFError) as error:
        raise InputError(path, "file", str(error), "a whole gzip file") from None
    steps = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        steps.append(parse_model(_Step, json_object(line, where), where))
    host, requests = [], []
    for step, following in itertools.pairwise(steps):
        if not step.sched or not step.running_after:
            continue
        start, end = step.device_ns or (0, step.execute_ns)
        host.append(following.t_ns - step.t_ns - (end - start))
        requests.append(len(step.sched))
    return np.array(host, np.int64), np.array(requests, np.int64)
