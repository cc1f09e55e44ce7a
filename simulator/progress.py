"""Runs an engine to its end, and explains why it cannot get there."""

from __future__ import annotations

from collections.abc import Callable

from simulator.build import grow_log
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.state import Engine
from simulator.invariants import check_invariants
from simulator.workloads import Workload

NO_LIMIT = state.FOREVER // 2
STEPS_BETWEEN_LOOKS = 20_000  # some ten milliseconds


class SimulationError(RuntimeError):
    """The simulation cannot come to its end; the message says why, and who waits for what."""


def run_to_end(
    engine: Engine,
    workload: Workload,
    *,
    check: bool = False,
    look: Callable[[], None] | None = None,
) -> Engine:
    """Advance until all work is done; with `check`, verify the invariants after every step.

    `look` is called now and then, so that a caller can stop the run by raising: compiled code cannot
    be interrupted. Raises SimulationError if the work can never be done.
    """
    max_steps = 1 if check else STEPS_BETWEEN_LOOKS if look else NO_LIMIT
    while True:
        if look:
            look()
        reason = advance(engine, state.FOREVER, max_steps)
        if check:
            check_invariants(engine)
        if reason == state.DONE:
            return engine
        if reason == state.LOG_FULL:
            engine = grow_log(engine)
        elif reason in (state.STUCK, state.LIVELOCK):
            raise SimulationError(no_progress(engine, workload, reason))


def no_progress(engine: Engine, workload: Workload, reason: int) -> str:
    """Who waits for what."""
    counters = engine.queues.counters[0]
    pool = engine.kv.pool[0]
    requests = engine.kv.requests
    what = (
        "nothing can be scheduled and nothing will change that"
        if reason == state.STUCK
        else f"{counters.steps_without_token} steps in a row produced no token"
    )
    waiting = [
        f"{workload.request_ids[r]} waits for {blocks_for(engine, r)} blocks"
        for r in range(len(requests))
        if requests.status[r] in (state.WAITING, state.PREEMPTED, state.WAITING_FOR_REMOTE_KVS)
    ]
    running = [
        f"{workload.request_ids[r]} holds {requests.num_blocks[r]} blocks at "
        f"{requests.num_computed_tokens[r]} of {requests.num_tokens[r]} tokens"
        for r in range(len(requests))
        if requests.status[r] == state.RUNNING
    ]
    return (
        f"no progress after step {counters.num_steps} at {counters.now_ns} ns: {what}. "
        f"{pool.num_free_blocks} of {pool.num_usable_blocks} blocks are free. "
        f"{_some(running, 'running')} {_some(waiting, 'waiting')}"
    )


def blocks_for(engine: Engine, r: int) -> int:
    block_size = int(engine.kv.pool[0].block_size)
    return -(-int(engine.kv.requests.num_tokens[r]) // block_size)


def _some(lines: list[str], what: str, limit: int = 5) -> str:
    if not lines:
        return f"Nobody is {what}."
    more = f", and {len(lines) - limit} more" if len(lines) > limit else ""
    return f"{len(lines)} {what}: {', '.join(lines[:limit])}{more}."
