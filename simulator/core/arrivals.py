"""Requests come in: at known times, or released when the call before them in a session has ended."""

from __future__ import annotations

from simulator.core import heap
from simulator.core.jit import compiled
from simulator.core.request_queue import add_request
from simulator.core.state import FOREVER, NONE, WAITING, KVCache, Queues, Records


@compiled
def arrives_before(infos: Records, a: int, b: int) -> bool:
    if infos[a].arrival_ns != infos[b].arrival_ns:
        return infos[a].arrival_ns < infos[b].arrival_ns
    return a < b


@compiled
def next_arrival(queues: Queues, infos: Records) -> int:
    """The request that arrives next (earlier arrival, then file order), or NONE."""
    counters = queues.counters[0]
    known = NONE
    if counters.next_arrival < queues.arrival_order.size:
        known = queues.arrival_order[counters.next_arrival]
    if counters.num_released == 0:
        return known
    released = queues.released[0]
    if known == NONE or arrives_before(infos, released, known):
        return released
    return known


@compiled
def next_arrival_ns(queues: Queues, infos: Records) -> int:
    r = next_arrival(queues, infos)
    return FOREVER if r == NONE else infos[r].arrival_ns


@compiled
def take_arrivals(kv: KVCache, queues: Queues, policy: int) -> None:
    """Queue everyone who arrived by now."""
    infos = kv.infos
    counters = queues.counters[0]
    while True:
        r = next_arrival(queues, infos)
        if r == NONE or infos[r].arrival_ns > counters.now_ns:
            break
        if counters.num_released > 0 and queues.released[0] == r:
            counters.num_released = heap.remove(
                queues.released, counters.num_released, infos, arrives_before, 0
            )
        else:
            counters.next_arrival += 1
        kv.requests[r].status = WAITING
        infos[r].queued_ns = counters.now_ns
        add_request(queues, infos, policy, r)
        counters.num_unfinished += 1
        counters.num_to_come -= 1


@compiled
def release_next_call(kv: KVCache, queues: Queues, r: int) -> None:
    """The call after `r` in its session arrives when the tool between them has run."""
    infos = kv.infos
    following = infos[r].next_in_session
    if following == NONE:
        return
    counters = queues.counters[0]
    infos[following].arrival_ns = counters.now_ns + infos[r].tool_ns
    counters.num_released = heap.push(
        queues.released, counters.num_released, infos, arrives_before, following
    )
