"""vLLM V1's scheduler: one step in two phases and preemption.

There is no prefill phase and no decode phase. Each request has tokens (prompt and output so far) and
computed tokens; a step hands out its token budget so that the second number catches up with the first.

A. Running requests, in order. One that does not fit preempts from the tail of `running` (fcfs) or the
   one that comes last by priority, until it fits or has preempted itself.
B. Only if nobody was preempted: waiting requests, until one cannot be admitted. Never preempts.

Deliberate differences from vLLM, neither of which changes a decision: requests that can never fit are
refused before they reach the scheduler (vLLM would wait for ever), and there are no encoder inputs,
LoRAs or speculative tokens.
"""

from __future__ import annotations

from simulator.core import kv_cache_manager as kv_cache
from simulator.core import kv_transfer, lmcache, offloading
from simulator.core.batch import add_to_batch, sum_up, unschedule
from simulator.core.jit import compiled, compiled_apart
from simulator.core.log import log_preempted
from simulator.core.request_queue import (
    has_queued,
    peek_request,
    pop_request,
    prepend_request,
    requeue_skipped,
)
from simulator.core.state import (
    FCFS,
    KV_CONSUMER,
    LMCACHE,
    NEVER,
    NO_ROLE,
    NONE,
    OFFLOADING,
    PREEMPTED,
    RUNNING,
    SCHEDULED_NEW,
    SCHEDULED_RESUMED,
    SCHEDULED_RUNNING,
    WAITING_FOR_REMOTE_KVS,
    Engine,
    Record,
    Storage,
)
from simulator.core.stride import join_stride, leave_stride


@compiled
def schedule(engine: Engine, slot: int, connector: int) -> None:
    """Form a batch in `slot`. Its requests' num_computed_tokens advance at once."""
    batch = engine.batches.info[slot]
    batch.num_entries = 0
    batch.num_admitted = 0
    batch.num_preempted = 0
    batch.load_ns = 0
    budget = engine.settings[0].max_num_batched_tokens
    budget = schedule_running(engine, slot, budget, connector)
    batch.num_strided = engine.queues.counters[0].num_strided
    if batch.num_preempted == 0:
        if connector == OFFLOADING:
            schedule_waiting_or_loading(engine, slot, budget)
        else:
            schedule_waiting(engine, slot, budget, connector)
    if connector == OFFLOADING:
        offloading.prepare_stores(engine, slot)
    sum_up(engine, slot)
    join_stride(engine, slot)


@compiled
def schedule_running(engine: Engine, slot: int, budget: int, connector: int) -> int:
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
            preempt(engine, slot, victim, connector)
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
def schedule_waiting(engine: Engine, slot: int, budget: int, connector: int) -> None:
    """Phase B. The first request that cannot be admitted ends it."""
    settings = engine.settings[0]
    kv = engine.kv
    queues = engine.queues
    counters = queues.counters[0]
    while budget > 0 and has_queued(queues):
        if counters.num_running == settings.max_num_seqs:
            break
        r = peek_request(queues)
        request = kv.requests[r]
        num_hit_blocks = kv_cache.find_longest_cache_hit(kv, request)
        num_external_tokens = 0
        if connector == LMCACHE:
            num_external_tokens = lmcache.find_stored_tokens(
                kv, engine.storage, request, num_hit_blocks
            )
        num_computed_tokens = num_hit_blocks * kv.pool[0].block_size + num_external_tokens
        num_new_tokens = num_tokens_to_admit(settings, request, num_computed_tokens, budget)
        if num_new_tokens == NONE or not kv_cache.can_admit(
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
        if connector == LMCACHE:
            count_lookup(engine.storage, request, num_computed_tokens, num_external_tokens)
        pop_request(queues, kv.infos)
        admit(engine, slot, r, num_computed_tokens, num_external_tokens, num_new_tokens)
        budget -= num_new_tokens


@compiled_apart
def schedule_waiting_or_loading(engine: Engine, slot: int, budget: int) -> None:
    """Phase B with loads beside steps: who waits for a load, or begins one, is passed over."""
    settings = engine.settings[0]
    kv = engine.kv
    queues = engine.queues
    counters = queues.counters[0]
    storage = engine.storage
    seen = 0  # of those skipped before
    kept = 0  # skipped now
    while budget > 0 and (seen < counters.num_skipped or has_queued(queues)):
        if counters.num_running == settings.max_num_seqs:
            break
        was_skipped = seen < counters.num_skipped
        r = queues.skipped[seen] if was_skipped else peek_request(queues)
        request = kv.requests[r]
        skip = request.status == WAITING_FOR_REMOTE_KVS and not offloading.try_promote(engine, r)
        num_external_tokens = 0
        num_new_tokens = 0
        num_computed_tokens = request.num_computed_tokens
        # Loaded, and has its blocks; nothing counts as computed of a single token.
        if not skip and (num_computed_tokens > 0 or request.num_blocks > 0):
            num_new_tokens = num_tokens_to_admit(settings, request, num_computed_tokens, budget)
            if num_new_tokens == NONE:
                break
            if settings.scheduler_reserve_full_isl and not kv_cache.can_fit_full_sequence(
                kv, request, settings.max_model_len
            ):
                break
            if kv_cache.allocate_slots(kv, request, num_new_tokens) == NONE:
                break
        elif not skip:
            num_hit_blocks = kv_cache.find_longest_cache_hit(kv, request)
            if storage.connection[0].kv_role == NO_ROLE:
                num_external_tokens = offloading.get_num_new_matched_tokens(
                    kv, storage, request, num_hit_blocks
                )
            else:
                num_external_tokens = kv_transfer.remote_tokens(kv, storage, r, num_hit_blocks)
            is_there = num_external_tokens > 0 and storage.connection[0].by_layer
            skip = num_external_tokens == offloading.LATER
            if not skip:
                num_computed_tokens = num_hit_blocks * kv.pool[0].block_size + num_external_tokens
                if num_external_tokens == 0 or is_there:
                    num_new_tokens = num_tokens_to_admit(
                        settings, request, num_computed_tokens, budget
                    )
                if num_new_tokens == NONE or not kv_cache.can_admit(
                    kv,
                    request,
                    num_hit_blocks,
                    num_external_tokens + num_new_tokens,
                    settings.scheduler_reserve_full_isl,
                    settings.max_model_len,
                ):
                    break
                count_lookup(storage, request, num_computed_tokens, num_external_tokens)
                if num_external_tokens > 0 and not is_there:
                    kv_cache.take_blocks(kv, request, num_hit_blocks, num_computed_tokens)
                    offloading.begin_load(engine, r, num_hit_blocks, num_external_tokens)
                    skip = True
                else:
                    kv_cache.allocate_slots_for_admission(
                        kv, request, num_hit_blocks, num_external_tokens + num_new_tokens
                    )
                    if storage.connection[0].kv_role == KV_CONSUMER:
                        kv_transfer.take_over(
                            engine, r, num_computed_tokens, num_external_tokens, counters.now_ns
                        )

        if was_skipped:
            seen += 1
        else:
            pop_request(queues, kv.infos)
        if skip:
            queues.skipped[kept] = r
            kept += 1
            continue
        admit(engine, slot, r, num_computed_tokens, 0, num_new_tokens)
        budget -= num_new_tokens
    requeue_skipped(queues, kv.infos, settings.policy, seen, kept)


@compiled
def num_tokens_to_admit(
    settings: Record, request: Record, num_computed_tokens: int, budget: int
) -> int:
    """Tokens an admitted request computes in this step, or NONE if they have to come in one piece."""
    num_new_tokens = request.num_tokens - num_computed_tokens
    if 0 < settings.long_prefill_token_threshold < num_new_tokens:
        num_new_tokens = settings.long_prefill_token_threshold
    if not settings.enable_chunked_prefill and num_new_tokens > budget:
        return NONE
    return min(num_new_tokens, budget)


@compiled
def admit(
    engine: Engine,
    slot: int,
    r: int,
    num_computed_tokens: int,
    num_external_tokens: int,
    num_new_tokens: int,
) -> None:
    """The request has its blocks and runs; external tokens are loaded with the batch."""
    kv = engine.kv
    counters = engine.queues.counters[0]
    request = kv.requests[r]
    position = counters.num_running
    engine.queues.running[position] = r
    counters.num_running += 1
    kind = SCHEDULED_RESUMED if request.status == PREEMPTED else SCHEDULED_NEW
    request.status = RUNNING
    request.num_computed_tokens = num_computed_tokens
    num_far_tokens = 0
    if num_external_tokens > 0:
        num_gpu_tokens = num_computed_tokens - num_external_tokens
        num_far_tokens = lmcache.load(
            kv, engine.storage, request, num_gpu_tokens, num_external_tokens
        )
    if request.num_cached_tokens == NONE:
        request.num_cached_tokens = num_computed_tokens
        kv.infos[r].num_external_tokens = num_external_tokens
        kv.infos[r].num_far_tokens = num_far_tokens
    if kv.infos[r].first_scheduled_ns == NEVER:
        kv.infos[r].first_scheduled_ns = counters.now_ns
    counters.admissions += 1
    counters.hit_tokens_all_admissions += num_computed_tokens
    add_to_batch(engine, slot, position, r, num_new_tokens, request.num_blocks, kind)
    engine.batches.info[slot].num_admitted += 1


@compiled
def count_lookup(
    storage: Storage, request: Record, num_computed_tokens: int, num_hits: int
) -> None:
    """What vLLM counts of a connector: at every admission, the tokens beyond the device's hit."""
    connection = storage.connection[0]
    num_queries = request.num_tokens - num_computed_tokens + num_hits
    if request.num_preemptions > 0:
        connection.preempted_queries += num_queries
        connection.preempted_hits += num_hits
    else:
        connection.queries += num_queries
        connection.hits += num_hits


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
def preempt(engine: Engine, slot: int, r: int, connector: int) -> None:
    """Blocks go, their hashes stay; the request starts over from the head of the queue."""
    request = engine.kv.requests[r]
    kv_cache.free(engine.kv, request)
    request.status = PREEMPTED
    request.num_computed_tokens = 0
    request.num_preemptions += 1
    prepend_request(engine.queues, engine.kv.infos, engine.settings[0].policy, r)
    engine.queues.counters[0].num_preemptions += 1
    engine.batches.info[slot].num_preempted += 1
    if connector == OFFLOADING:
        engine.storage.flushed[engine.batches.info[slot].num_preempted - 1] = r
    log_preempted(engine, r)
