"""Requests come in: at known times, or released when the call before them in a session has ended."""

from __future__ import annotations

from simulator.core import heap
from simulator.core.jit import compiled
from simulator.core.request_queue import add_request
from simulator.core.state import FOREVER, NONE, WAITING


@compiled
def arrives_before(requests, a, b):
    if requests[a].arrival_ns != requests[b].arrival_ns:
        return requests[a].arrival_ns < requests[b].arrival_ns
    return a < b


@compiled
def next_arrival(queues, requests):
    """The request that arrives next (earlier arrival, then file order), or NONE."""
    counters = queues.counters[0]
    known = NONE
    if counters.next_arrival < queues.arrival_order.size:
        known = queues.arrival_order[counters.next_arrival]
    if counters.num_released == 0:
        return known
    released = queues.released[0]
    if known == NONE or arrives_before(requests, released, known):
        return released
    return known


@compiled
def next_arrival_ns(queues, requests):
    r = next_arrival(queues, requests)
    return FOREVER if r == NONE else requests[r].arrival_ns


@compiled
def take_arrivals(queues, requests, policy):
    """Queue everyone who arrived by now."""
    counters = queues.counters[0]
    while True:
        r = next_arrival(queues, requests)
        if r == NONE or requests[r].arrival_ns > counters.now_ns:
            break
        if counters.num_released > 0 and queues.released[0] == r:
            counters.num_released = heap.remove(
                queues.released, counters.num_released, requests, arrives_before, 0
            )
        else:
            counters.next_arrival += 1
        requests[r].status = WAITING
        requests[r].queued_ns = counters.now_ns
        add_request(queues, requests, policy, r)
        counters.num_unfinished += 1
        counters.num_to_come -= 1


@compiled
def release_next_call(queues, requests, request, ended_ns):
    """The session's next call arrives when its tool has run."""
    r = request.next_in_session
    if r == NONE:
        return
    counters = queues.counters[0]
    requests[r].arrival_ns = ended_ns + request.tool_ns
    counters.num_released = heap.push(
        queues.released, counters.num_released, requests, arrives_before, r
    )
