"""The log of an engine's steps: one flat row of int64, written while the engine runs.

Appending plain integers to one array costs a step some ten microseconds and gives the garbage
collector nothing to look at. Times are time.monotonic_ns().

    [ADDED, request, t]                                    a request reached the scheduler
    [SCHEDULED, step, from, to, running, waiting, free, n, p,
        n x (request, scheduled tokens, tokens computed before), p x preempted request]
    [DEVICE, start, end]                                   the device model, of the step just scheduled
    [UPDATED, step, from, to, running, waiting, free, f, f x finished request]
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ADDED, SCHEDULED, DEVICE, UPDATED = range(4)
FIXED = (3, 9, 3, 8)  # values of a record of each kind, without its lists
LOG_FOLDER = "SERVESWEEP_STEP_LOG"  # environment variable: where logs are written

log = array("q")


def write_part() -> None:
    """Write what was logged so far as part-<number>.log, and start the next part."""
    folder = os.environ.get(LOG_FOLDER)
    if folder:
        number = len(list(Path(folder).glob("part-*.log")))
        with (Path(folder) / f"part-{number}.log").open("wb") as file:
            log.tofile(file)
    del log[:]


_ID = re.compile(r"r(\d+)(?:-|$)")


def request_name(number: int) -> str:
    """What the engine is told; vLLM may append something of its own."""
    return f"r{number}"


def request_number(name: str) -> int:
    """The number of a request from the engine's name for it; -1: not one of the workload."""
    found = _ID.match(name)
    return int(found[1]) if found else -1


def records(values: Any) -> Iterator[tuple[int, list[int]]]:
    """(kind, the fields after it) of every record of a log, in order.

    Raises ValueError if the log ends within a record.
    """
    data = list(values)
    at = 0
    while at < len(data):
        kind = data[at]
        if not 0 <= kind < len(FIXED):
            raise ValueError(f"record of kind {kind} at {at}")
        size = FIXED[kind]
        if at + size <= len(data):
            if kind == SCHEDULED:
                size += 3 * data[at + 7] + data[at + 8]
            elif kind == UPDATED:
                size += data[at + 7]
        if at + size > len(data):
            raise ValueError(f"record at {at} needs {size} values, {len(data) - at} are left")
        yield kind, data[at + 1 : at + size]
        at += size
