"""The engine fed step by step: who may be scheduled in which step is given, not when they arrive.

What the scheduler decides depends on the order of events alone, so a recording of it is replayed
whatever its steps took: every step here takes 1 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.build import EngineSettings, build_engine, grow_log
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.state import Engine
from simulator.prefix import BlockHashes
from simulator.step_tables import linear_law
from simulator.workloads import Workload


@dataclass(frozen=True)
class Decision:
    """What one step decided; requests by their number in the workload."""

    sched: tuple[tuple[int, int, int], ...]  # request, scheduled tokens, computed before
    preempted: tuple[int, ...]  # sorted
    finished: tuple[int, ...]
    running: int  # after scheduling
    waiting: int
    free: int
    formed_before_update: int


def replay_steps(
    workload: Workload,
    hashes: BlockHashes,
    settings: EngineSettings,
    added: Sequence[Sequence[int]],
    order: Sequence[int],
) -> list[Decision]:
    """The decisions of as many steps as `added` has: fewer where the engine has no work left before,
    one more where it has some after them.

    `added[k]` are the requests that reached the scheduler before step k, in that order; `order` are
    all requests as their client sent them, which decides between equals of the priority policy.
    """
    queued = [r for step in added for r in step]
    rank = np.zeros(len(workload), np.int64)
    rank[queued] = np.arange(len(queued))
    sent = np.zeros(len(workload), np.int64)
    sent[list(order)] = np.arange(len(order))
    # A session's calls arrive as they were recorded to, whoever they waited for.
    flat = replace(workload, session_parent=np.full(len(workload), -1, np.int32))
    settings = replace(settings, log_events=True, stride=False)
    engine, _ = build_engine(flat, hashes, settings, linear_law(1, 0, 0, 0), rank)
    arrival_ns = engine.kv.infos.arrival_ns
    arrival_ns[:] = state.FOREVER
    engine.queues.counters[0].now_ns = len(workload)  # later than any rank
    for step, requests in enumerate(added):
        arrival_ns[list(requests)] = sent[list(requests)]
        engine = _one_step(engine)
        if engine.queues.counters[0].num_steps <= step:
            break
    return decisions(_one_step(engine))  # what is in flight is applied


def _one_step(engine: Engine) -> Engine:
    while advance(engine, state.FOREVER, 1) == state.LOG_FULL:
        engine = grow_log(engine)
    return engine


def decisions(engine: Engine) -> list[Decision]:
    """What each step of an engine with logged events decided."""
    steps = engine.log.steps[: engine.queues.counters[0].num_steps]
    sched: list[list[tuple[int, int, int]]] = [[] for _ in steps]
    preempted: list[list[int]] = [[] for _ in steps]
    finished: list[list[int]] = [[] for _ in steps]
    for event in engine.log.events[: engine.log.sizes[0].num_events].tolist():
        number, kind, r, num_scheduled, num_computed = event[:5]
        if kind == state.EVENT_PREEMPTED:
            preempted[number].append(r)
        elif kind == state.EVENT_FINISHED:
            finished[number].append(r)
        else:
            sched[number].append((r, num_scheduled, num_computed))
    return [
        Decision(
            sched=tuple(sched[k]),
            preempted=tuple(sorted(preempted[k])),
            finished=tuple(finished[k]),
            running=int(step.running_after_schedule),
            waiting=int(step.waiting_after_schedule),
            free=int(step.free_after_schedule),
            formed_before_update=int(step.formed_before_update),
        )
        for k, step in enumerate(steps)
    ]
