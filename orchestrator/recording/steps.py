"""The recorded steps of an engine: steps.jsonl.gz of a recorded folder.

A line a step, in the order the scheduler formed them. `request` is a request's line in
requests.jsonl, from 0. Times are ns from the start of the workload.

    step, t_ns            its number and when scheduling began
    schedule_ns           how long scheduling took
    execute_ns            from there until its output was there to be applied
    update_ns             how long applying took
    formed_before_update  steps formed when its output was applied
    device_ns             [start, end] of the device model, absent for real kernels
    added                 requests that reached the scheduler since the step before: [request, t_ns]
    sched                 [request, scheduled tokens, tokens computed before] in the batch's order;
                          the last is left out where it is what the request had after its last batch
    preempted, finished   requests
    running, waiting, free                 after scheduling (free: KV blocks)
    running_after, waiting_after, free_after   after applying
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from orchestrator.recording.inside.log import ADDED, DEVICE, SCHEDULED, records
from profiles.errors import InputError, parse_model
from profiles.foreign import Foreign, json_object, read_file

FILE = "steps.jsonl.gz"
Count = Annotated[int, Field(strict=True, ge=0)]
Time = Annotated[int, Field(strict=True)]


@dataclass
class Step:
    """One step. Times are ns from the start of the workload, durations ns."""

    t_ns: int
    schedule_ns: int
    execute_ns: int
    update_ns: int
    formed_before_update: int
    sched: list[tuple[int, int, int]]  # request, scheduled tokens, tokens computed before
    preempted: list[int]
    finished: list[int]
    running: int
    waiting: int
    free: int
    running_after: int
    waiting_after: int
    free_after: int
    added: list[tuple[int, int]] = field(default_factory=list)  # request, t_ns
    device_ns: tuple[int, int] | None = None

    @property
    def end_ns(self) -> int:
        """When its output had been applied."""
        return self.t_ns + self.schedule_ns + self.execute_ns + self.update_ns

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n, _ in self.sched)


def from_log(values: Any, start_ns: int) -> list[Step]:
    """The steps of an engine's log (`inside/log.py`). Raises ValueError for a log cut short."""
    steps: list[Step] = []
    added: list[tuple[int, int]] = []
    ends: list[int] = []
    for kind, values_of in records(values):
        if kind == ADDED:
            added.append((values_of[0], values_of[1] - start_ns))
            continue
        number = values_of[0]
        if kind == DEVICE:
            steps[-1].device_ns = (values_of[0] - start_ns, values_of[1] - start_ns)
        elif kind == SCHEDULED:
            _, begin, end, running, waiting, free, n, _ = values_of[:8]
            flat = values_of[8 : 8 + 3 * n]
            sched = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
            preempted = values_of[8 + 3 * n :]
            times = (begin - start_ns, end - begin, 0, 0, 0)
            sizes = (running, waiting, free, 0, 0, 0)
            steps.append(Step(*times, sched, preempted, [], *sizes, added=added))
            added, ends = [], [*ends, end]
        else:
            _, begin, end, running, waiting, free, n = values_of[:7]
            step = steps[number]
            step.execute_ns, step.update_ns = begin - ends[number], end - begin
            step.formed_before_update = len(steps)
            step.finished = values_of[7 : 7 + n]
            step.running_after, step.waiting_after, step.free_after = running, waiting, free
    open_steps = [i for i, step in enumerate(steps) if not step.formed_before_update]
    if open_steps:
        raise ValueError(f"step {open_steps[0]} of {len(steps)} was formed and never applied")
    return steps


class _Line(Foreign):
    step: Count
    t_ns: Time
    schedule_ns: Count
    execute_ns: Count
    update_ns: Count
    formed_before_update: Count
    sched: list[tuple[Count, Count] | tuple[Count, Count, Count]]
    preempted: list[Count] = Field(default_factory=list)
    finished: list[Count] = Field(default_factory=list)
    added: list[tuple[Count, Time]] = Field(default_factory=list)
    device_ns: tuple[Time, Time] | None = None
    running: Count
    waiting: Count
    free: Count
    running_after: Count
    waiting_after: Count
    free_after: Count


SIZES = ("running", "waiting", "free", "running_after", "waiting_after", "free_after")
TIMES = ("t_ns", "schedule_ns", "execute_ns", "update_ns", "formed_before_update")
LISTS = ("added", "preempted", "finished", "device_ns")  # left out where there is nothing


def write_steps(path: Path, steps: Sequence[Step]) -> None:
    """The same steps give the same bytes."""
    lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in _rows(steps))
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def _rows(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    reached: dict[int, int] = {}
    for number, step in enumerate(steps):
        sched = []
        for r, tokens, computed in step.sched:
            sched.append([r, tokens] if reached.get(r) == computed else [r, tokens, computed])
            reached[r] = computed + tokens
        yield {
            "step": number,
            **{name: getattr(step, name) for name in TIMES},
            **{name: getattr(step, name) for name in LISTS if getattr(step, name)},
            "sched": sched,
            **{name: getattr(step, name) for name in SIZES},
        }


def read_steps(path: Path, num_requests: int) -> list[Step]:
    """Raises InputError."""
    try:
        content = gzip.decompress(read_file(path))
    except (OSError, EOFError) as error:
        raise InputError(path, "file", str(error), "a whole gzip file") from None
    steps: list[Step] = []
    reached: dict[int, int] = {}
    for number, text in enumerate(content.splitlines()):
        where = f"{path}, line {number + 1}"
        line = parse_model(_Line, json_object(text, where), where)
        if line.step != number:
            raise InputError(where, "step", line.step, str(number))
        sched = []
        for entry in line.sched:
            r, tokens = entry[:2]
            if len(entry) == 2 and r not in reached:
                raise InputError(
                    where, "sched", entry, "computed tokens of a request's first batch"
                )
            computed = entry[2] if len(entry) == 3 else reached[r]
            reached[r] = computed + tokens
            sched.append((r, tokens, computed))
        named = [*reached, *line.preempted, *line.finished, *(r for r, _ in line.added)]
        if max(named, default=0) >= num_requests:
            raise InputError(where, "request", max(named), f"less than {num_requests}")
        rest = line.model_dump(exclude={"step", "sched"})
        steps.append(Step(sched=sched, **rest))
    return steps


def host_ns(steps: Sequence[Step], of: Container[int] | None = None) -> tuple[Any, Any]:
    """What the host adds to steps, and how many requests were in each: two arrays.

    Of steps that follow another at once under synchronous scheduling: from one scheduling to the
    next, less the device's time; with real kernels that is the time its output was waited for.
    `of`: of those steps alone whose requests are all among these.
    """
    host, requests = [], []
    for step, following in itertools.pairwise(steps):
        if not step.sched or not step.running_after:
            continue
        if of is not None and not all(r in of for r, _, _ in step.sched):
            continue
        start, end = step.device_ns or (0, step.execute_ns)
        device = end - start
        host.append(following.t_ns - step.t_ns - device)
        requests.append(len(step.sched))
    return np.array(host, np.int64), np.array(requests, np.int64)
