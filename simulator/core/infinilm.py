"""InfiniLM's scheduler: prefill first, no preemption, whole prompts.

While a waiting request can be admitted, the step is a batch of prompts and nobody decodes; otherwise
it is one token for everybody who runs. At most `max_num_seqs` (InfiniLM's max_batch_size) requests
are in a batch; more may run, and then they take turns: who was in the batch goes behind the others.

The first waiting request that does not fit ends the batch and goes to the end of the queue, whether
it was the token budget or the blocks: the next step asks another one. A prompt larger than the token
budget runs alone. Nobody is ever stuck: with nothing running every request fits that was not refused.

Deliberate differences from InfiniLM: the free queue and the index are vLLM's (which cached block is
evicted first differs), and there are no remote KV transfers, aborts or recurrent states.
"""

from __future__ import annotations

from simulator.core import kv_cache_manager as kv_cache
from simulator.core.admission import blocks_to_come, can_accept, reserve
from simulator.core.batch import add_to_batch, sum_up
from simulator.core.block_pool import touch
from simulator.core.jit import compiled
from simulator.core.request_queue import num_waiting, peek_request, pop_request
from simulator.core.state import (
    NONE,
    RUNNING,
    SCHEDULED_NEW,
    SCHEDULED_RUNNING,
    Engine,
    KVCache,
    Queues,
    Record,
)


@compiled
def schedule(engine: Engine, slot: int) -> None:
    """Form a batch in `slot`: prompts if anybody can be admitted, else decodes."""
    batch = engine.batches.info[slot]
    batch.num_entries = 0
    batch.num_strided = 0
    batch.num_admitted = 0
    batch.num_preempted = 0
    batch.load_ns = 0
    schedule_prefill(engine, slot)
    if batch.num_entries == 0:
        schedule_decode(engine, slot)
    sum_up(engine, slot)


@compiled
def schedule_prefill(engine: Engine, slot: int) -> None:
    """Admit from the head of the queue until one does not fit."""
    settings = engine.settings[0]
    kv = engine.kv
    queues = engine.queues
    counters = queues.counters[0]
    batch = engine.batches.info[slot]
    num_running = counters.num_running
    num_batched_tokens = 0
    extra_blocks = 0
    while (
        batch.num_entries < settings.max_num_seqs
        and num_batched_tokens < settings.max_num_batched_tokens
        and num_waiting(queues) > 0
    ):
        r = peek_request(queues)
        request = kv.requests[r]
        num_hit_blocks = kv_cache.find_longest_cache_hit(kv, request)
        num_hit_tokens = num_hit_blocks * kv.pool[0].block_size
        num_new_tokens = request.num_tokens - num_hit_tokens
        over_budget = num_batched_tokens + num_new_tokens > settings.max_num_batched_tokens
        if (over_budget and batch.num_entries > 0) or not can_accept(
            engine, r, num_hit_blocks, num_running, extra_blocks
        ):
            defer(engine)
            break
        pop_request(queues, kv.infos)
        allocate_prompt(kv, request, num_hit_blocks)
        extra_blocks += blocks_to_come(kv, r)
        position = counters.num_running
        queues.running[position] = r
        counters.num_running += 1
        request.status = RUNNING
        request.num_computed_tokens = num_hit_tokens
        request.num_cached_tokens = num_hit_tokens
        kv.infos[r].first_scheduled_ns = counters.now_ns
        counters.admissions += 1
        counters.hit_tokens_all_admissions += num_hit_tokens
        add_to_batch(engine, slot, position, r, num_new_tokens, request.num_blocks, SCHEDULED_NEW)
        batch.num_admitted += 1
        num_batched_tokens += num_new_tokens
    reserve(engine, extra_blocks)


@compiled
def allocate_prompt(kv: KVCache, request: Record, num_hit_blocks: int) -> None:
    """Its hit blocks and new ones for the rest of the prompt.

    They are indexed when they have been computed (output.py): within a batch nobody hits another's.
    """
    for i in range(num_hit_blocks):
        touch(kv, kv.block_table[request.block_table_start + i])
    request.num_blocks = num_hit_blocks
    request.num_cached_blocks = num_hit_blocks
    num_blocks = kv_cache.cdiv(request.num_tokens, kv.pool[0].block_size)
    kv_cache.append_new_blocks(kv, request, num_blocks - num_hit_blocks)


@compiled
def schedule_decode(engine: Engine, slot: int) -> None:
    """One token for the first `max_num_seqs` of those who run."""
    kv = engine.kv
    running = engine.queues.running
    counters = engine.queues.counters[0]
    count = min(counters.num_running, engine.settings[0].max_num_seqs)
    for i in range(count):
        r = running[i]
        num_new_blocks = kv_cache.allocate_slots(kv, kv.requests[r], 1)
        if num_new_blocks == NONE:  # admission rules it out; invariants.py would tell
            continue
        counters.num_reserved_decode_blocks -= num_new_blocks
        add_to_batch(engine, slot, i, r, 1, num_new_blocks, SCHEDULED_RUNNING)
    if count < counters.num_running:
        take_turns(engine.queues, count)


@compiled
def take_turns(queues: Queues, count: int) -> None:
    """Put the first `count` of `running` behind the others, both in their order."""
    num_running = queues.counters[0].num_running
    reverse(queues, 0, count)
    reverse(queues, count, num_running)
    reverse(queues, 0, num_running)


@compiled
def reverse(queues: Queues, start: int, end: int) -> None:
    for i in range((end - start) // 2):
        a = start + i
        b = end - 1 - i
        r = queues.running[a]
        queues.running[a] = queues.running[b]
        queues.running[b] = r


@compiled
def defer(engine: Engine) -> None:
    """Move the request at the head of the queue to its end.

    `fresh` has room for twice as many requests as there are: what is left of it is moved to the front
    before those yet to arrive would not fit behind.
    """
    queues = engine.queues
    fresh = queues.fresh
    counters = queues.counters[0]
    if 2 * (counters.fresh_tail + 1) > fresh.size:
        kept = counters.fresh_tail - counters.fresh_head
        for i in range(kept):
            fresh[i] = fresh[counters.fresh_head + i]
        counters.fresh_head = 0
        counters.fresh_tail = kept
    fresh[counters.fresh_tail] = fresh[counters.fresh_head]
    counters.fresh_head += 1
    counters.fresh_tail += 1
