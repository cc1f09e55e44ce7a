"""vLLM V1's scheduler: one step in two phases, preemption, and taking in a batch's output.

There is no prefill phase and no decode phase. Each request has tokens (prompt and output so far) and
computed tokens; a step hands out its token budget so that the second number catches up with the first.

A. Running requests, in order. One that does not fit preempts from the tail of `running` (fcfs) or the
   one that comes last by priority, until it fits or has preempted itself.
B. Only if nobody was preempted: waiting requests, until one cannot be admitted. Never preempts.

Deliberate differences from vLLM, neither of which changes a decision: requests that can never fit are
refused before they reach the scheduler (vLLM would wait for ever), and there are no encoder inputs,
LoRAs, speculative tokens or KV connectors.
"""

from __future__ import annotations

from simulator.core import kv_cache_manager as kv_cache
from simulator.core.arrivals import release_next_call
from simulator.core.jit import compiled
from simulator.core.log import (
    log_finished,
    log_inter_token_time,
    log_preempted,
)
from simulator.core.request_queue import (
    num_waiting,
    peek_request,
    pop_request,
    prepend_request,
    remove_preempted_request,
)
from simulator.core.state import (
    FCFS,
    FINISHED,
    NEVER,
    NONE,
    PREEMPTED,
    RUNNING,
    SCHEDULED_NEW,
    SCHEDULED_RESUMED,
    SCHEDULED_RUNNING,
    Engine,
    Record,
)
from simulator.core.stride import (
    first_due_batch,
    join_stride,
    leave_stride,
    refresh_offsets,
)
from simulator.core.tier import find_stored_tokens, load, write_through

LONGEST = 1 << 30  # longer than any request


@compiled
def schedule(engine: Engine, slot: int) -> None:
    """Form a batch in `slot`. Its requests' num_computed_tokens advance at once."""
    batch = engine.batches.info[slot]
    batch.num_entries = 0
    batch.num_admitted = 0
    batch.num_preempted = 0
    batch.load_ns = 0
    budget = schedule_running(engine, slot, engine.settings[0].max_num_batched_tokens)
    batch.num_strided = engine.queues.counters[0].num_strided
    if batch.num_preempted == 0:
        schedule_waiting(engine, slot, budget)
    sum_up(engine, slot)
    join_stride(engine, slot)


@compiled
def schedule_running(engine: Engine, slot: int, budget: int) -> int:
    """Phase A. Returns the token budget left."""
    settings = engine.settings[0]
    kv = engine.kv
    running = engine.queues.running
    due = engine.queues.due
    counters = engine.queues.counters[0]
    this_batch = counters.num_steps
    i = 0
    while i < counters.num_running and budget > 0:
        if due[i] > this_batch:
            budget -= 1
            i += 1
            continue
        r = running[i]
        request = kv.requests[r]
        if request.stride_from != NONE:
            leave_stride(engine, request, r)
        num_new_tokens = num_tokens_to_schedule(settings, request, budget)
        if num_new_tokens == 0:
            i += 1
            continue

        num_new_blocks = kv_cache.allocate_slots(kv, request, num_new_tokens)
        while num_new_blocks == NONE:
            victim = take_victim(engine)
            given_back = unschedule(engine, slot, victim)
            if given_back > 0:
                budget += given_back
                i -= 1
            preempt(engine, slot, victim)
            if victim == r:
                break
            num_new_blocks = kv_cache.allocate_slots(kv, request, num_new_tokens)
        if num_new_blocks == NONE:
            break

        add_to_batch(engine, slot, i, r, num_new_tokens, num_new_blocks, SCHEDULED_RUNNING)
        budget -= num_new_tokens
        i += 1
    for j in range(i, counters.num_running):
        if due[j] > this_batch:  # the budget did not reach it
            due[j] = 0
            leave_stride(engine, kv.requests[running[j]], running[j])
    return budget


@compiled
def num_tokens_to_schedule(settings: Record, request: Record, budget: int) -> int:
    """Tokens a running request may compute in this step; 0 if none, or its last is in flight."""
    placeholders = request.num_output_placeholders
    num_computed_tokens = request.num_computed_tokens
    if placeholders > 0 and num_computed_tokens + 2 - placeholders >= request.end_num_tokens:
        return 0
    num_new_tokens = request.num_tokens + placeholders - num_computed_tokens
    if 0 < settings.long_prefill_token_threshold < num_new_tokens:
        num_new_tokens = settings.long_prefill_token_threshold
    return min(num_new_tokens, budget, settings.max_model_len - 1 - num_computed_tokens)


@compiled
def schedule_waiting(engine: Engine, slot: int, budget: int) -> None:
    """Phase B. The first request that cannot be admitted ends it."""
    settings = engine.settings[0]
    kv = engine.kv
    queues = engine.queues
    counters = queues.counters[0]
    batch = engine.batches.info[slot]
    while budget > 0 and num_waiting(queues) > 0:
        if counters.num_running == settings.max_num_seqs:
            break
        r = peek_request(queues)
        request = kv.requests[r]
        num_hit_blocks = kv_cache.find_longest_cache_hit(kv, request)
        num_gpu_tokens = num_hit_blocks * kv.pool[0].block_size
        num_external_tokens = find_stored_tokens(kv, engine.tier, request, num_hit_blocks)
        num_hit_tokens = num_gpu_tokens + num_external_tokens
        num_new_tokens = request.num_tokens - num_hit_tokens
        if 0 < settings.long_prefill_token_threshold < num_new_tokens:
            num_new_tokens = settings.long_prefill_token_threshold
        if not settings.enable_chunked_prefill and num_new_tokens > budget:
            break
        num_new_tokens = min(num_new_tokens, budget)
        if not kv_cache.can_admit(
            kv,
            request,
            num_hit_blocks,
            num_external_tokens + num_new_tokens,
            settings.scheduler_reserve_full_isl,
            settings.max_model_len,
        ):
            break
        kv_cache.allocate_slots_for_admission(
            kv, request, num_hit_blocks, num_external_tokens + num_new_tokens
        )
        batch.load_ns += load(kv, engine.tier, request, num_gpu_tokens, num_external_tokens)

        pop_request(queues, kv.infos)
        position = counters.num_running
        queues.running[position] = r
        counters.num_running += 1
        kind = SCHEDULED_RESUMED if request.status == PREEMPTED else SCHEDULED_NEW
        request.status = RUNNING
        request.num_computed_tokens = num_hit_tokens
        if request.num_cached_tokens == NONE:
            request.num_cached_tokens = num_hit_tokens
            kv.infos[r].num_external_tokens = num_external_tokens
            kv.infos[r].first_scheduled_ns = counters.now_ns
        counters.admissions += 1
        counters.hit_tokens_all_admissions += num_hit_tokens
        add_to_batch(engine, slot, position, r, num_new_tokens, request.num_blocks, kind)
        batch.num_admitted += 1
        budget -= num_new_tokens


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
def take_victim(engine: Engine) -> int:
    """Take the next request to preempt out of `running`: its tail, or who comes last by priority.

    By priority, the order is (priority, arrival) and the first in `running` among equals.
    """
    counters = engine.queues.counters[0]
    running = engine.queues.running
    position = counters.num_running - 1
    if engine.settings[0].policy != FCFS:
        position = 0
        for i in range(1, counters.num_running):
            worst = engine.kv.infos[running[position]]
            info = engine.kv.infos[running[i]]
            if info.priority > worst.priority or (
                info.priority == worst.priority and info.arrival_ns > worst.arrival_ns
            ):
                position = i
    victim = running[position]
    if engine.kv.requests[victim].stride_from != NONE:
        leave_stride(engine, engine.kv.requests[victim], victim)
    counters.num_running -= 1
    for i in range(position, counters.num_running):
        running[i] = running[i + 1]
    return victim


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
def preempt(engine: Engine, slot: int, r: int) -> None:
    """Blocks go, their hashes stay; the request starts over from the head of the queue."""
    request = engine.kv.requests[r]
    kv_cache.free(engine.kv, request)
    request.status = PREEMPTED
    request.num_computed_tokens = 0
    request.num_preemptions += 1
    prepend_request(engine.queues, engine.kv.infos, engine.settings[0].policy, r)
    engine.queues.counters[0].num_preemptions += 1
    engine.batches.info[slot].num_preempted += 1
    log_preempted(engine, r)


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


@compiled
def update_from_output(engine: Engine, slot: int) -> tuple[int, int]:
    """The batch has run: its requests get their tokens, those with enough are finished.

    Nobody in it has finished before: a request whose last token is in flight is not scheduled.
    Returns (tokens sampled, requests finished).
    """
    batches = engine.batches
    kv = engine.kv
    counters = engine.queues.counters[0]
    batch = batches.info[slot]
    asynchronous = engine.settings[0].async_scheduling
    now_ns = counters.now_ns
    num_sampled = batch.num_strided
    num_finished = 0
    interval_ns = now_ns - counters.last_update_ns
    num_intervals = batch.num_strided
    for i in range(batch.num_entries):
        entry = batches.entries[slot, i]
        request = kv.requests[entry.request]
        if request.status == RUNNING:
            computed = entry.num_computed_tokens + entry.num_scheduled_tokens
            write_through(kv, engine.tier, request, entry.num_computed_tokens, computed)
        if not entry.samples:
            continue
        num_sampled += 1
        num_tokens = request.num_tokens + 1
        request.num_tokens = num_tokens
        last_token_ns = request.last_token_ns
        request.last_token_ns = now_ns
        if last_token_ns == NEVER:
            kv.infos[entry.request].first_token_ns = now_ns
        elif now_ns - last_token_ns == interval_ns:
            num_intervals += 1
        else:
            log_inter_token_time(engine.log, interval_ns, num_intervals)
            interval_ns = now_ns - last_token_ns
            num_intervals = 1
        if asynchronous:
            placeholders = request.num_output_placeholders - 1
            request.num_output_placeholders = placeholders
            if request.status == RUNNING and request.stride_from == NONE:
                kv_cache.cache_full_blocks(kv, request, request.num_computed_tokens - placeholders)
        if num_tokens >= request.end_num_tokens:
            finish(engine, entry.request)
            num_finished += 1
    log_inter_token_time(engine.log, interval_ns, num_intervals)
    if num_finished > 0:
        drop_finished(engine)
    counters.num_generated_tokens += num_sampled
    counters.last_update_ns = now_ns
    return num_sampled, num_finished


@compiled
def finish(engine: Engine, r: int) -> None:
    counters = engine.queues.counters[0]
    request = engine.kv.requests[r]
    if request.status == PREEMPTED:
        remove_preempted_request(engine.queues, engine.kv.infos, engine.settings[0].policy, r)
    request.status = FINISHED
    kv_cache.free(engine.kv, request)
    counters.num_unfinished -= 1
    counters.finished_to_report = 1
    release_next_call(engine.kv, engine.queues, r)
    log_finished(engine, r)


@compiled
def drop_finished(engine: Engine) -> None:
    """Take the finished requests out of `running`."""
    running = engine.queues.running
    due = engine.queues.due
    counters = engine.queues.counters[0]
    kept = 0
    for i in range(counters.num_running):
        if engine.kv.requests[running[i]].status == RUNNING:
            running[kept] = running[i]
            due[kept] = due[i]
            kept += 1
    counters.num_running = kept
