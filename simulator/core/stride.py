"""Requests in stride: a short cut that changes no decision.

A decoding request gets one token a step, and in most steps nothing else happens to it: no block to
add, none filled, not its last token. Such a request is *in stride*. It is in every batch without
being written into any, and its counters stand still; they follow from the number of batches formed
and applied since it joined. Once something else is due (`queues.due`), or it has to give way, it
leaves the stride: its counters are brought up to date, and the plain rules apply to it.

What a batch's duration depends on is kept for all of them together. The length of a request before
batch k is its offset + k, so sum, largest and smallest of the offsets do.

The token budget still counts every request in running order: when it runs out, those behind leave.
Off under the priority policy, where a victim may come from the middle of the batch, and when every
request of every batch is to be logged or checked.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.state import NONE, Engine, KVCache, Record


@compiled
def first_due_batch(kv: KVCache, request: Record, k: int) -> int:
    """The first batch after k that may do more to a request sampling in k than give it a token.

    It must not outgrow its blocks, fill one, or come to its last token.
    """
    end = min(request.num_blocks * kv.pool[0].block_size + 1, request.end_num_tokens - 1)
    if kv.pool[0].enable_caching:
        end = min(end, (request.num_cached_blocks + 1) * kv.pool[0].block_size)
    return k + max(1, end - request.num_computed_tokens)


@compiled
def join_stride(engine: Engine, slot: int) -> None:
    """Let the requests of the batch just formed join that have nothing due in the next one."""
    counters = engine.queues.counters[0]
    batch = engine.batches.info[slot]
    following = counters.num_steps + 1
    for i in range(batch.num_entries):
        request = engine.kv.requests[engine.batches.entries[slot, i].request]
        if request.stride_from != following:
            continue
        offset = request.num_computed_tokens - following
        if counters.num_strided == 0:
            counters.offset_max = offset
            counters.offset_min = offset
            counters.offsets_stale = 0
        counters.num_strided += 1
        counters.offset_sum += offset
        counters.offset_max = max(counters.offset_max, offset)
        counters.offset_min = min(counters.offset_min, offset)


@compiled
def leave_stride(engine: Engine, request: Record, r: int) -> None:
    """Bring a request's counters up to date; batches in flight that it is in now name it."""
    counters = engine.queues.counters[0]
    offset = request.num_computed_tokens - request.stride_from
    counters.num_strided -= 1
    counters.offset_sum -= offset
    if offset == counters.offset_max or offset == counters.offset_min:
        counters.offsets_stale = 1

    first_in_flight = max(counters.num_updates, request.stride_from)
    num_formed = counters.num_steps - request.stride_from
    num_in_flight = counters.num_steps - first_in_flight
    request.num_computed_tokens += num_formed
    request.num_output_placeholders += num_in_flight
    if num_formed > num_in_flight:
        request.num_tokens += num_formed - num_in_flight
        request.last_token_ns = counters.last_update_ns
    for k in range(first_in_flight, counters.num_steps):
        position = counters.oldest_batch + (k - counters.num_updates)
        slot = position % engine.settings[0].batch_queue_size
        batch = engine.batches.info[slot]
        entry = engine.batches.entries[slot, batch.num_entries]
        entry.request = r
        entry.num_scheduled_tokens = 1
        entry.num_computed_tokens = offset + k
        entry.samples = 1
        batch.num_entries += 1
        batch.num_strided -= 1
    request.stride_from = NONE


@compiled
def refresh_offsets(engine: Engine) -> None:
    """Find the largest and smallest offset again after one of them has left."""
    counters = engine.queues.counters[0]
    if not counters.offsets_stale:
        return
    counters.offsets_stale = 0
    found = False
    for i in range(counters.num_running):
        request = engine.kv.requests[engine.queues.running[i]]
        # Who joins for the batch after this one is not part of it yet.
        if request.stride_from == NONE or request.stride_from > counters.num_steps:
            continue
        offset = request.num_computed_tokens - request.stride_from
        if not found:
            counters.offset_max = offset
            counters.offset_min = offset
            found = True
        counters.offset_max = max(counters.offset_max, offset)
        counters.offset_min = min(counters.offset_min, offset)
