"""One simulation step by step: who was in which batch, who waited, and for what.

What a waiting request waited for follows from the scheduler's rules (simulator/core/scheduler.py): the
first request in the queue that cannot be admitted holds up all behind it, and what stopped it is the
first of these that holds of the step:

    a preemption       somebody was preempted, then nobody is admitted
    seats              max_num_seqs requests are running
    token budget       the batch has max_num_batched_tokens
    KV blocks          none of them; without chunked prefill it may be the budget as well, and is said so

InfiniLM's scheduler has other rules; what its admission refuses is not told apart.

A request that runs one token in a batch decodes, as vLLM and its attention kernels count: the last chunk
of a prompt may be one token too.

From a request's admission until its batch starts the device is busy with the batch before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from profiles.errors import InputError
from profiles.whole import check_file
from simulator.config import Point
from simulator.result import Result
from simulator.simulation import prepare, run

MAX_LOGGED = 20_000_000  # requests in batches, all steps together; 28 bytes each while simulating
LAST_S = 9e9  # that 64 bits hold in ns
QUEUED, PREFILL, DECODE, PREEMPTED = range(4)
KINDS = ("queued", "prefill", "decode", "preempted")
REASONS = (
    "a preemption",
    "seats",
    "token budget",
    "KV blocks",
    "budget or KV blocks",
    "InfiniLM's admission",
    "device busy",
)
PREEMPTION, SEATS, BUDGET, BLOCKS, BUDGET_OR_BLOCKS, ADMISSION, DEVICE = range(len(REASONS))

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """What is shown: simulated seconds, requests by id (none: all), and how many events at most."""

    from_s: float = 0.0
    until_s: float | None = None
    requests: tuple[str, ...] = ()
    max_events: int = 500_000

    def __post_init__(self) -> None:
        for option, seconds in (("--from-s", self.from_s), ("--until-s", self.until_s)):
            if seconds is not None and not 0 <= seconds <= LAST_S:
                raise InputError("trace", option, seconds, f"seconds from 0 to {LAST_S:g}")

    @property
    def from_ns(self) -> int:
        return round(self.from_s * 1e9)

    @property
    def until_ns(self) -> int | None:
        return None if self.until_s is None else round(self.until_s * 1e9)


@dataclass(frozen=True, eq=False)
class Spans:
    """What requests did, sorted by request and time: arrays of one length.

    `begin_ns`, `end_ns`; `kind` is an index of KINDS; `first_step` and `last_step` of those it ran in,
    -1 of a wait; `tokens` it computed.
    """

    request: Ints
    kind: Ints
    begin_ns: Ints
    end_ns: Ints
    first_step: Ints
    last_step: Ints
    tokens: Ints

    def __len__(self) -> int:
        return len(self.request)

    def where(self, chosen: NDArray[np.bool_]) -> Spans:
        return Spans(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class Trace:
    """A run with its steps: columns of the steps table by name, batch entries flat.

    Entry i of `entry_step` ran `entry_tokens[i]` tokens of `entry_request[i]` from
    `entry_computed[i]` on, and got `entry_blocks[i]` new blocks. `reason` of each step is why the
    queue's head was not admitted, an index of REASONS, or -1 when nobody waited.
    """

    point: Point
    result: Result
    steps: dict[str, Ints]
    request_ids: list[str]
    arrival_ns: Ints
    queued_ns: Ints
    entry_step: Ints
    entry_request: Ints
    entry_tokens: Ints
    entry_computed: Ints
    entry_blocks: Ints
    preempted_step: Ints
    preempted_request: Ints
    finished_step: Ints
    finished_request: Ints
    reason: Ints
    spans: Spans

    @property
    def end_ns(self) -> int:
        return int(self.steps["update_ns"].max(initial=0))

    @cached_property
    def _held_up(self) -> NDArray[np.int64]:
        """[reason, step]: nanoseconds between earlier steps for which the reason held."""
        formed = self.steps["formed_ns"]
        between = np.diff(np.append(formed, self.end_ns))
        reason = np.where(self.reason < 0, DEVICE, self.reason)
        sums = np.zeros((len(REASONS), len(formed) + 1), np.int64)
        for r in range(len(REASONS)):
            sums[r, 1:] = np.cumsum(np.where(reason == r, between, 0))
        return sums

    def waited_for(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Milliseconds by reason of a wait that ends when the request's batch starts, or never.

        Before the next step is formed, and from the forming of its own step on, it waits for the
        device.
        """
        formed, starts = self.steps["formed_ns"], self.steps["start_ns"]
        first = int(np.searchsorted(formed, begin_ns))
        own = int(np.searchsorted(starts, end_ns))
        spent = np.zeros(len(REASONS), np.int64)
        if first < own:
            spent = self._held_up[:, own] - self._held_up[:, first]
        spent[DEVICE] += (end_ns - begin_ns) - int(spent.sum())
        return {REASONS[i]: int(ns) / 1e6 for i, ns in enumerate(spent) if ns > 0}


def simulate_trace(point: Point, source: str | Path) -> Trace:
    """Simulate and take the log apart. Raises InputError for a cluster or a run too large to log."""
    if point.cluster is not None:
        expected = "no cluster: a trace shows the steps of one instance"
        raise InputError(source, "cluster", "a cluster of instances", expected)
    prepared = prepare(point, source)
    tokens = int(prepared.workload.num_output_tokens.sum(dtype=np.int64))
    if tokens > MAX_LOGGED:
        expected = (
            f"at most {MAX_LOGGED} output tokens to trace every step; workload.limit takes the first "
            "requests only"
        )
        raise InputError(source, "workload", f"{tokens} output tokens", expected)
    return take_apart(point, run(prepared, steps=True))


def take_apart(point: Point, result: Result) -> Trace:
    table, requests = result.steps, result.requests
    assert table is not None
    ids = requests["request_id"].combine_chunks()
    plain = [f.name for f in table.schema if not pa.types.is_list(f.type)]
    steps = {name: table[name].to_numpy().astype(np.int64) for name in plain}
    entry_step, entry_request = _flat(table, "requests", ids)
    flat = {
        name: table[name].combine_chunks().flatten().to_numpy().astype(np.int64)
        for name in ("scheduled_tokens", "computed_tokens", "new_blocks")
    }
    preempted_step, preempted_request = _flat(table, "preempted", ids)
    finished_step, finished_request = _flat(table, "finished", ids)
    arrival, queued = (_times(requests, name) for name in ("arrival_ns", "queued_ns"))
    entries = entry_step, entry_request, flat["scheduled_tokens"]
    end_ns = int(steps["update_ns"].max(initial=0))
    stages = point.engine.pipeline_parallel_size
    preempted = preempted_step, preempted_request
    spans = _spans(steps, entries, preempted, queued, end_ns, stages)
    return Trace(
        point=point,
        result=result,
        steps=steps,
        request_ids=ids.to_pylist(),
        arrival_ns=arrival,
        queued_ns=queued,
        entry_step=entry_step,
        entry_request=entry_request,
        entry_tokens=flat["scheduled_tokens"],
        entry_computed=flat["computed_tokens"],
        entry_blocks=flat["new_blocks"],
        preempted_step=preempted_step,
        preempted_request=preempted_request,
        finished_step=finished_step,
        finished_request=finished_request,
        reason=_reasons(steps, point),
        spans=spans,
    )


def _times(requests: pa.Table, name: str) -> Ints:
    times: Ints = pc.fill_null(requests[name], -1).to_numpy().astype(np.int64)
    return times


def _flat(table: pa.Table, column: str, ids: pa.Array) -> tuple[Ints, Ints]:
    """Step and index of request of every item of a list column."""
    lists = table[column].combine_chunks()
    lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
    found = pc.index_in(lists.flatten(), value_set=ids).to_numpy().astype(np.int64)
    return np.repeat(np.arange(len(lengths)), lengths), found


def _reasons(steps: dict[str, Ints], point: Point) -> Ints:
    """Of each step, why the head of the queue stayed there."""
    engine = point.engine
    if engine.is_infinilm:
        return np.where(steps["waiting_after_schedule"] == 0, -1, ADMISSION)
    blocks = BLOCKS if engine.enable_chunked_prefill else BUDGET_OR_BLOCKS
    reason = np.select(
        [
            steps["waiting_after_schedule"] == 0,
            steps["num_preempted"] > 0,
            steps["running_after_schedule"] >= engine.max_num_seqs,
            steps["num_tokens"] >= engine.max_num_batched_tokens,
        ],
        [-1, PREEMPTION, SEATS, BUDGET],
        blocks,
    )
    return reason.astype(np.int64)


def _spans(
    steps: dict[str, Ints],
    entries: tuple[Ints, Ints, Ints],
    preempted: tuple[Ints, Ints],
    queued_ns: Ints,
    end_ns: int,
    stages: int,
) -> Spans:
    order = np.lexsort((entries[0], entries[1]))  # by request, then step
    step, request, tokens = (values[order] for values in entries)
    kind = np.where(tokens == 1, DECODE, PREFILL)
    # Decodes in consecutive steps are one span; every chunk of a prompt is its own. In a pipeline a
    # request decodes in every step of its turn.
    new = np.ones(len(step), bool)
    new[1:] = ~(
        (request[1:] == request[:-1])
        & (step[1:] <= step[:-1] + stages)
        & (kind[1:] == DECODE)
        & (kind[:-1] == DECODE)
    )
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(step)) - 1 if len(first) else first
    ran = Spans(
        request=request[first],
        kind=kind[first],
        begin_ns=steps["start_ns"][step[first]],
        end_ns=steps["end_ns"][step[last]],
        first_step=step[first],
        last_step=step[last],
        tokens=np.add.reduceat(tokens, first) if len(first) else first,
    )
    num_steps = len(steps["step"])
    keys = request * (num_steps + 1) + step
    starts, ends = steps["start_ns"], steps["end_ns"]

    def next_start(r: Ints, after: Ints) -> Ints:
        """When the next batch with r at or after a step starts; the end of the run if there is none."""
        at = np.searchsorted(keys, r * (num_steps + 1) + after)
        there = (at < len(keys)) & (request[np.minimum(at, len(keys) - 1)] == r)
        return np.where(there, starts[step[np.minimum(at, len(keys) - 1)]], end_ns)

    everybody = np.flatnonzero(queued_ns >= 0)
    if not len(keys):
        waits = [(everybody, QUEUED, queued_ns[everybody], np.full(len(everybody), end_ns))]
    else:
        first_start = next_start(everybody, np.zeros(len(everybody), np.int64))
        waits = [(everybody, QUEUED, queued_ns[everybody], first_start)]
        at, who = preempted
        # A batch that was formed before may still run with the request in it.
        before = np.searchsorted(keys, who * (num_steps + 1) + at) - 1
        begin = np.maximum(steps["formed_ns"][at], ends[step[np.maximum(before, 0)]])
        waits.append((who, PREEMPTED, begin, next_start(who, at)))
    parts = [ran]
    for who, what, begin, end in waits:
        none = np.full(len(who), -1)
        zero = np.zeros(len(who), np.int64)
        parts.append(
            Spans(who, np.full(len(who), what), begin, np.maximum(begin, end), none, none, zero)
        )
    every = [np.concatenate([getattr(p, n) for p in parts]) for n in Spans.__dataclass_fields__]
    sort = np.lexsort((every[3], every[2], every[0]))
    spans = Spans(*(values[sort] for values in every))
    if stages > 1:
        # The next chunk of a prompt starts before the last one has left: shown until then.
        ends = spans.end_ns
        same = spans.request[1:] == spans.request[:-1]
        ends[:-1] = np.where(same, np.minimum(ends[:-1], spans.begin_ns[1:]), ends[:-1])
    return spans


def in_window(trace: Trace, window: Window, source: str | Path) -> Spans:
    """The spans that a window shows. Raises InputError for unknown requests or an empty window."""
    spans, until = trace.spans, window.until_ns
    if until is not None and until <= window.from_ns:
        raise InputError(
            source, "--until-s", window.until_s, f"more than --from-s {window.from_s:g}"
        )
    if window.from_ns > trace.end_ns:
        expected = f"a time within the run, which ends at {trace.end_ns / 1e9:.3f} s"
        raise InputError(source, "--from-s", window.from_s, expected)
    chosen = spans.end_ns >= window.from_ns
    if until is not None:
        chosen &= spans.begin_ns <= until
    if window.requests:
        index = {request_id: i for i, request_id in enumerate(trace.request_ids)}
        for request_id in window.requests:
            if request_id not in index:
                some = ", ".join(trace.request_ids[:5])
                raise InputError(
                    source, "--request", request_id, f"an id of the workload: {some}, ..."
                )
        chosen &= np.isin(spans.request, [index[request_id] for request_id in window.requests])
    return spans.where(chosen)


def steps_in(trace: Trace, window: Window) -> Ints:
    """The steps whose batches run within a window."""
    chosen = trace.steps["end_ns"] >= window.from_ns
    if window.until_ns is not None:
        chosen &= trace.steps["formed_ns"] <= window.until_ns
    return np.flatnonzero(chosen)


def trace_point(point: Point, window: Window, out: Path, source: str | Path) -> Iterator[str]:
    """Simulate, write trace.json, trace.html and trace.png, and say what they show.

    Raises InputError.
    """
    from dashboards.trace_events import events, write_events
    from dashboards.trace_page import page_data, write_picture, write_trace_page
    from orchestrator.cli import overview

    paths = [out / name for name in ("trace.json", "trace.html", "trace.png")]
    for path in paths:
        check_file(path)
    trace = simulate_trace(point, source)
    found = events(trace, window, source)
    yield overview(trace.result.summary)
    yield from longest_waits(trace, in_window(trace, window, source))
    written = [
        write_events(found, paths[0]),
        write_trace_page(page_data(trace, window, source), paths[1]),
        write_picture(trace, window, paths[2]),
    ]
    yield "wrote " + " ".join(map(str, written))


def longest_waits(trace: Trace, spans: Spans, count: int = 3) -> list[str]:
    """Who waited longest, and for what."""
    waited = np.where(np.isin(spans.kind, (QUEUED, PREEMPTED)), spans.end_ns - spans.begin_ns, -1)
    lines = []
    for i in np.argsort(-waited, kind="stable")[:count]:
        if waited[i] > 0:
            lines.append(
                f"request {trace.request_ids[spans.request[i]]} {told_wait(trace, spans, int(i))}"
            )
    return lines


def told_wait(trace: Trace, spans: Spans, i: int) -> str:
    begin, end = int(spans.begin_ns[i]), int(spans.end_ns[i])
    parts = sorted(trace.waited_for(begin, end).items(), key=lambda part: -part[1])
    reasons = ", ".join(f"{name} {ms / 1e3:.3f} s" for name, ms in parts)
    kind = KINDS[spans.kind[i]]
    return f"{kind} {(end - begin) / 1e9:.3f} s from {begin / 1e9:.3f} s on: {reasons}"


def batch_names(trace: Trace, chosen: Ints) -> list[str]:
    """What each step's batch is made of."""
    prefill, decodes = (trace.steps[name][chosen] for name in ("prefill_tokens", "num_decodes"))
    names: dict[tuple[int, int], str] = {}

    def name(tokens: int, count: int) -> str:
        parts = [f"prefill {tokens}"] if tokens else []
        parts += [f"{count} decodes"] if count else []
        return " + ".join(parts) or "empty"

    return [
        names.setdefault((p, d), name(p, d))
        for p, d in zip(prefill.tolist(), decodes.tolist(), strict=True)
    ]
