"""A batch being formed: who is in it with how many tokens, and what that sums up to."""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.state import Engine
from simulator.core.stride import first_due_batch, refresh_offsets

LONGEST = 1 << 30  # longer than any request


@compiled
def add_to_batch(
    engine: Engine,
    slot: int,
    position: int,
    r: int,
    num_scheduled_tokens: int,
    num_new_blocks: int,
    kind: int,
) -> None:
    """Its computed tokens advance now; it samples if they have caught up with its tokens."""
    settings = engine.settings[0]
    queues = engine.queues
    batch = engine.batches.info[slot]
    entry = engine.batches.entries[slot, batch.num_entries]
    request = engine.kv.requests[r]
    entry.request = r
    entry.num_scheduled_tokens = num_scheduled_tokens
    entry.num_computed_tokens = request.num_computed_tokens
    request.num_computed_tokens += num_scheduled_tokens
    entry.samples = (
        request.num_computed_tokens >= request.num_tokens + request.num_output_placeholders
    )
    if entry.samples and settings.async_scheduling:
        request.num_output_placeholders += 1
    if settings.log_events:
        detail = engine.batches.details[slot, batch.num_entries]
        detail.kind = kind
        detail.num_new_blocks = num_new_blocks
    batch.num_entries += 1

    queues.due[position] = 0
    if entry.samples and settings.stride:
        this_batch = queues.counters[0].num_steps
        due = first_due_batch(engine.kv, request, this_batch)
        if due > this_batch + 1:
            queues.due[position] = due
            request.stride_from = this_batch + 1


@compiled
def unschedule(engine: Engine, slot: int, r: int) -> int:
    """Take a request out of the batch being formed. Returns the tokens it gives back (0: not in it)."""
    batch = engine.batches.info[slot]
    for i in range(batch.num_entries):
        entry = engine.batches.entries[slot, i]
        if entry.request == r:
            num_tokens = entry.num_scheduled_tokens
            if entry.samples and engine.settings[0].async_scheduling:
                engine.kv.requests[r].num_output_placeholders -= 1
            for j in range(i, batch.num_entries - 1):
                engine.batches.entries[slot, j] = engine.batches.entries[slot, j + 1]
                engine.batches.details[slot, j] = engine.batches.details[slot, j + 1]
            batch.num_entries -= 1
            return num_tokens
    return 0


@compiled
def sum_up(engine: Engine, slot: int) -> None:
    """What the latency model asks of a batch; lengths are those before it."""
    counters = engine.queues.counters[0]
    batch = engine.batches.info[slot]
    num_tokens = batch.num_strided
    num_decodes = batch.num_strided
    prefill_chunk = 0
    kv_prefill = 0
    kv_sum = 0
    kv_max = 0
    kv_min = LONGEST
    if batch.num_strided > 0:
        refresh_offsets(engine)
        kv_sum = counters.offset_sum + batch.num_strided * counters.num_steps
        kv_max = counters.offset_max + counters.num_steps
        kv_min = counters.offset_min + counters.num_steps
    for i in range(batch.num_entries):
        entry = engine.batches.entries[slot, i]
        kv_len = entry.num_computed_tokens
        num_scheduled_tokens = entry.num_scheduled_tokens
        num_tokens += num_scheduled_tokens
        if num_scheduled_tokens > 1:
            prefill_chunk += num_scheduled_tokens
            kv_prefill += kv_len
        else:
            num_decodes += 1
            kv_sum += kv_len
            kv_max = max(kv_max, kv_len)
            kv_min = min(kv_min, kv_len)
    batch.num_requests = batch.num_entries + batch.num_strided
    batch.num_tokens = num_tokens
    batch.prefill_chunk = prefill_chunk
    batch.kv_prefill = kv_prefill
    batch.num_decodes = num_decodes
    batch.kv_decode_sum = kv_sum
    batch.kv_decode_max = kv_max
    batch.kv_decode_min = kv_min
