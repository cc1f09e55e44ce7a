"""Who waits, and in which order.

fcfs: preempted requests go back to the head of the queue, so the queue is always a stack of preempted
requests on top of the fresh ones in order of arrival.
priority: a heap ordered by (priority, arrival, id as a string); being preempted gives no advantage.

Requests that a step passes over because of a load (`skip_request`) come before all others at the next
one, in the order in which they were passed over; by priority they go back into the heap.
"""

from __future__ import annotations

from simulator.core import heap
from simulator.core.jit import compiled
from simulator.core.state import FCFS, Queues, Records


@compiled
def comes_before(infos: Records, a: int, b: int) -> bool:
    """vLLM's order of requests: smaller priority value, then earlier arrival, then smaller id."""
    x = infos[a]
    y = infos[b]
    if x.priority != y.priority:
        return x.priority < y.priority
    if x.arrival_ns != y.arrival_ns:
        return x.arrival_ns < y.arrival_ns
    return x.id_rank < y.id_rank


@compiled
def num_waiting(queues: Queues) -> int:
    counters = queues.counters[0]
    return (
        counters.num_preempted_waiting
        + (counters.fresh_tail - counters.fresh_head)
        + counters.heap_size
        + counters.num_skipped
    )


@compiled
def add_request(queues: Queues, infos: Records, policy: int, r: int) -> None:
    counters = queues.counters[0]
    if policy == FCFS:
        queues.fresh[counters.fresh_tail] = r
        counters.fresh_tail += 1
    else:
        counters.heap_size = heap.push(queues.heap, counters.heap_size, infos, comes_before, r)


@compiled
def prepend_request(queues: Queues, infos: Records, policy: int, r: int) -> None:
    """Put a preempted request back."""
    counters = queues.counters[0]
    if policy == FCFS:
        queues.preempted[counters.num_preempted_waiting] = r
        counters.num_preempted_waiting += 1
    else:
        counters.heap_size = heap.push(queues.heap, counters.heap_size, infos, comes_before, r)


@compiled
def peek_request(queues: Queues) -> int:
    """The request to admit next; somebody must be waiting."""
    counters = queues.counters[0]
    if counters.heap_size > 0:
        return queues.heap[0]
    if counters.num_preempted_waiting > 0:
        return queues.preempted[counters.num_preempted_waiting - 1]
    return queues.fresh[counters.fresh_head]


@compiled
def pop_request(queues: Queues, infos: Records) -> None:
    """Take out the request that `peek_request` showed."""
    counters = queues.counters[0]
    if counters.heap_size > 0:
        counters.heap_size = heap.remove(queues.heap, counters.heap_size, infos, comes_before, 0)
    elif counters.num_preempted_waiting > 0:
        counters.num_preempted_waiting -= 1
    else:
        counters.fresh_head += 1


@compiled
def has_queued(queues: Queues) -> bool:
    """Whether somebody waits whom no step has passed over."""
    counters = queues.counters[0]
    return (
        counters.heap_size > 0
        or counters.num_preempted_waiting > 0
        or counters.fresh_tail > counters.fresh_head
    )


@compiled
def requeue_skipped(queues: Queues, infos: Records, policy: int, num_seen: int, kept: int) -> None:
    """A step has looked at `num_seen` of those skipped before, and passes over skipped[:kept]."""
    counters = queues.counters[0]
    if policy == FCFS:
        for i in range(num_seen, counters.num_skipped):
            queues.skipped[kept] = queues.skipped[i]
            kept += 1
        counters.num_skipped = kept
    else:
        for i in range(kept):
            counters.heap_size = heap.push(
                queues.heap, counters.heap_size, infos, comes_before, queues.skipped[i]
            )


@compiled
def remove_preempted_request(queues: Queues, infos: Records, policy: int, r: int) -> None:
    """Take out a request that finished while it waited: its last token was in flight."""
    counters = queues.counters[0]
    if policy == FCFS:
        kept = 0
        for i in range(counters.num_preempted_waiting):
            if queues.preempted[i] != r:
                queues.preempted[kept] = queues.preempted[i]
                kept += 1
        counters.num_preempted_waiting = kept
    else:
        for i in range(counters.heap_size):
            if queues.heap[i] == r:
                counters.heap_size = heap.remove(
                    queues.heap, counters.heap_size, infos, comes_before, i
                )
                break
