"""vLLM's OffloadingConnector: loads and stores that run beside steps. Its scheduler's side.

- A request that finds at least one whole chunk beyond the device's hit is given blocks for what it
  found and waits in WAITING_FOR_REMOTE_KVS, without a seat and without part in batches. When its load
  has been reported, its loaded blocks are indexed and it is admitted like any other; if all its tokens
  were loaded, its last one is computed again. Who would load a chunk that is being loaded waits too.
- Chunks are stored as soon as a batch completes them. `prepare_store` makes room for all new chunks of
  a request or stores none; they can be read once the request has finished and its stores have been
  reported, or once it is preempted, which waits for them. Blocks of a finished request that has stored
  anything are held until then.
- The links are the business of transfers.py.

vLLM goes through sets where several requests are reported at once; here they come in the order in which
they finished. A prompt of one token in a chunk of one token, which trips an assertion of vLLM's, is not
loaded. Where loaded requests hold the blocks that the first of them needs to go on, vLLM waits for ever;
here the last of them gives its blocks back (`give_back_blocks`).
"""

from __future__ import annotations

from simulator.core import kv_cache_manager as kv_cache
from simulator.core.jit import compiled, compiled_apart
from simulator.core.log import log_transfer
from simulator.core.request_queue import comes_before
from simulator.core.state import (
    EVENT_LOAD,
    EVENT_LOADED,
    EVENT_STORE,
    EVENT_STORED,
    FCFS,
    FOREVER,
    KV_CONSUMER,
    KV_PRODUCER,
    NEVER,
    NO_ROLE,
    NONE,
    PENDING,
    PREEMPTED,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    Engine,
    KVCache,
    Record,
    Storage,
)
from simulator.core.tier import chunk_hash, find, find_ready, insert, make_room, use

LATER = -1
PROTECTED = 1 << 30  # added to a TierChunk.ref_cnt for as long as room is made


@compiled_apart
def get_num_new_matched_tokens(
    kv: KVCache, storage: Storage, request: Record, num_hit_blocks: int
) -> int:
    """Tokens to load beyond the device's hit, or LATER if some of them are being loaded."""
    connection = storage.connection[0]
    tier = storage.near
    tokens_per_chunk = connection.tokens_per_chunk
    num_chunks = request.num_tokens // tokens_per_chunk
    touch(kv, storage, request, num_chunks)
    num_computed_tokens = num_hit_blocks * kv.pool[0].block_size
    first = num_computed_tokens // tokens_per_chunk
    end = first
    while end < num_chunks and find_ready(tier, chunk_hash(kv, storage, request, end)) != NONE:
        end += 1
    num_tokens = end * tokens_per_chunk - num_computed_tokens
    if num_tokens < tokens_per_chunk or request.num_tokens == 1:
        return 0
    for chunk in range(first, end):
        if storage.being_loaded[chunk_hash(kv, storage, request, chunk)]:
            return LATER
    return num_tokens


@compiled
def touch(kv: KVCache, storage: Storage, request: Record, num_chunks: int) -> None:
    """Use the request's chunks, the last one first, so that the head of a prefix is evicted last."""
    for chunk in range(num_chunks - 1, -1, -1):
        place = find(storage.near, chunk_hash(kv, storage, request, chunk))
        if place != NONE:
            use(storage.near, place)


@compiled_apart
def begin_load(engine: Engine, r: int, num_hit_blocks: int, num_tokens: int) -> None:
    """The request has blocks for its hit and for `num_tokens` more, and waits for them from now on."""
    kv = engine.kv
    storage = engine.storage
    connection = storage.connection[0]
    request = kv.requests[r]
    transfer = storage.transfers[r]
    num_computed_tokens = num_hit_blocks * kv.pool[0].block_size
    if connection.kv_role == NO_ROLE:
        transfer.load_first_chunk = num_computed_tokens // connection.tokens_per_chunk
        transfer.load_end_chunk = (num_computed_tokens + num_tokens) // connection.tokens_per_chunk
    transfer.load_tokens = num_tokens
    transfer.load_begin_ns = engine.queues.counters[0].now_ns
    transfer.load_end_ns = NEVER
    transfer.loaded = 0
    transfer.next_stored_chunk = transfer.load_end_chunk
    for chunk in range(transfer.load_first_chunk, transfer.load_end_chunk):
        block_hash = chunk_hash(kv, storage, request, chunk)
        storage.near.chunks[find(storage.near, block_hash)].ref_cnt += 1
        storage.being_loaded[block_hash] = 1
    counters = engine.queues.counters[0]
    storage.loading[counters.num_loading] = r
    counters.num_loading += 1
    request.status = WAITING_FOR_REMOTE_KVS
    request.num_computed_tokens = num_computed_tokens + num_tokens
    log_transfer(engine, engine.queues.counters[0].num_steps, EVENT_LOAD, r, num_tokens)


@compiled
def complete_load(engine: Engine, r: int) -> None:
    """The load has been reported: the chunks may be evicted again."""
    storage = engine.storage
    transfer = storage.transfers[r]
    request = engine.kv.requests[r]
    for chunk in range(transfer.load_first_chunk, transfer.load_end_chunk):
        block_hash = chunk_hash(engine.kv, storage, request, chunk)
        storage.near.chunks[find(storage.near, block_hash)].ref_cnt -= 1
        storage.being_loaded[block_hash] = 0
    transfer.loaded = 1
    storage.connection[0].waiting_ns += engine.queues.counters[0].now_ns - transfer.load_begin_ns
    log_transfer(
        engine, engine.queues.counters[0].num_updates, EVENT_LOADED, r, transfer.load_tokens
    )


@compiled_apart
def try_promote(engine: Engine, r: int) -> bool:
    """Let a request whose load was reported take part again; False if it has to wait for that."""
    kv = engine.kv
    request = kv.requests[r]
    transfer = engine.storage.transfers[r]
    if not transfer.loaded:
        return False
    transfer.loaded = 0
    num_hit_tokens = request.num_cached_blocks * kv.pool[0].block_size
    kv_cache.cache_full_blocks(kv, request, request.num_computed_tokens)
    if request.num_computed_tokens == request.num_tokens:
        request.num_computed_tokens -= 1
    if request.num_cached_tokens == NONE:
        request.num_cached_tokens = request.num_computed_tokens
        kv.infos[r].num_external_tokens = request.num_computed_tokens - num_hit_tokens
    request.status = PREEMPTED if request.num_preemptions > 0 else WAITING
    return True


@compiled_apart
def prepare_stores(engine: Engine, slot: int) -> None:
    """Store what the batch just formed completes: of new requests, running ones, resumed ones."""
    kv = engine.kv
    if engine.storage.connection[0].kv_role != NO_ROLE:
        return
    batch = engine.batches.info[slot]
    entries = engine.batches.entries
    first_admitted = batch.num_entries - batch.num_admitted
    for i in range(first_admitted, batch.num_entries):
        if kv.requests[entries[slot, i].request].num_preemptions == 0:
            prepare_store(engine, entries[slot, i])
    for i in range(first_admitted):
        prepare_store(engine, entries[slot, i])
    for i in range(first_admitted, batch.num_entries):
        if kv.requests[entries[slot, i].request].num_preemptions > 0:
            prepare_store(engine, entries[slot, i])
    for i in range(batch.num_preempted):
        complete_store(engine, engine.storage.flushed[i])


@compiled
def prepare_store(engine: Engine, entry: Record) -> None:
    """Give the request's new chunks places in the tier; tokens in flight do not count yet."""
    kv = engine.kv
    storage = engine.storage
    connection = storage.connection[0]
    tier = storage.near
    r = entry.request
    request = kv.requests[r]
    transfer = storage.transfers[r]
    computed = entry.num_computed_tokens + entry.num_scheduled_tokens
    end = min(computed, request.num_tokens) // connection.tokens_per_chunk
    first = transfer.next_stored_chunk
    if end <= first:
        return
    num_new = 0
    for chunk in range(first, end):
        place = find(tier, chunk_hash(kv, storage, request, chunk))
        if place == NONE:
            num_new += 1
        elif tier.chunks[place].ref_cnt != PENDING:
            tier.chunks[place].ref_cnt += PROTECTED
    fits = make_room(tier, num_new)
    for chunk in range(first, end):
        place = find(tier, chunk_hash(kv, storage, request, chunk))
        if place != NONE and tier.chunks[place].ref_cnt != PENDING:
            tier.chunks[place].ref_cnt -= PROTECTED
    if not fits:
        storage.use[0].failed_stores += 1
        try_again_next_step(engine, request, r)
        return
    transfer.next_stored_chunk = end
    if num_new == 0:
        return
    for chunk in range(first, end):
        block_hash = chunk_hash(kv, storage, request, chunk)
        if find(tier, block_hash) == NONE:
            place = insert(tier, block_hash, PENDING)
            tier.chunks[place].next_pending = transfer.first_pending
            transfer.first_pending = place
    touch(kv, storage, request, end)
    num_tokens = num_new * connection.tokens_per_chunk
    storage.jobs[connection.num_jobs].request = r
    storage.jobs[connection.num_jobs].num_tokens = num_tokens
    connection.num_jobs += 1
    transfer.has_stored = 1
    storage.use[0].stores += 1
    storage.use[0].stored_chunks += num_new
    storage.use[0].written_bytes += num_tokens * connection.bytes_per_token
    log_transfer(engine, engine.queues.counters[0].num_steps, EVENT_STORE, r, num_tokens)


@compiled
def try_again_next_step(engine: Engine, request: Record, r: int) -> None:
    """It must be in the next batch by name."""
    if request.stride_from == NONE:
        return
    request.stride_from = NONE
    for i in range(engine.queues.counters[0].num_running):
        if engine.queues.running[i] == r:
            engine.queues.due[i] = 0


@compiled
def complete_store(engine: Engine, r: int) -> None:
    """What the request has stored can be read from now on."""
    storage = engine.storage
    transfer = storage.transfers[r]
    place = transfer.first_pending
    while place != NONE:
        chunk = storage.near.chunks[place]
        chunk.ref_cnt = 0
        place = chunk.next_pending
        chunk.next_pending = NONE
    transfer.first_pending = NONE


@compiled_apart
def hold_blocks(engine: Engine, r: int) -> bool:
    """Whether the finished request keeps its blocks until its stores, or a read, are reported."""
    storage = engine.storage
    connection = storage.connection[0]
    transfer = storage.transfers[r]
    if not transfer.has_stored or connection.kv_role == KV_CONSUMER:
        return False
    if connection.kv_role == KV_PRODUCER:
        transfer.store_end_ns = FOREVER  # until somebody reads it
    transfer.told_step = engine.queues.counters[0].num_steps
    storage.held[connection.num_held] = r
    connection.num_held += 1
    return True


@compiled_apart
def update_from_transfers(engine: Engine, slot: int) -> None:
    """Take in what the batch in `slot` reports: loads and stores that had ended by its poll_ns."""
    kv = engine.kv
    storage = engine.storage
    connection = storage.connection[0]
    batch = engine.batches.info[slot]
    kept = 0
    for i in range(connection.num_held):
        r = storage.held[i]
        transfer = storage.transfers[r]
        if transfer.told_step <= batch.step and transfer.store_end_ns <= batch.poll_ns:
            complete_store(engine, r)
            log_transfer(engine, engine.queues.counters[0].num_updates, EVENT_STORED, r, 0)
            kv_cache.free(kv, kv.requests[r])
            engine.queues.counters[0].changed = 1
        else:
            storage.held[kept] = r
            kept += 1
    connection.num_held = kept
    counters = engine.queues.counters[0]
    num_loaded = 0
    while num_loaded < connection.num_submitted:
        r = storage.loading[num_loaded]
        if storage.transfers[r].load_end_ns > batch.poll_ns:
            break
        complete_load(engine, r)
        engine.queues.counters[0].changed = 1
        num_loaded += 1
    if num_loaded > 0:
        connection.num_submitted -= num_loaded
        counters.num_loading -= num_loaded
        for i in range(counters.num_loading):
            storage.loading[i] = storage.loading[i + num_loaded]


@compiled_apart
def give_back_blocks(engine: Engine) -> bool:
    """Take the blocks of the last waiting request that has loaded some; False if there is none.

    Nothing else can help when nobody runs, nothing is on a link, and the first in the queue does not
    fit. What was loaded stays indexed, so it is lost only to those who need the blocks.
    """
    counters = engine.queues.counters[0]
    last = NONE
    if engine.settings[0].policy == FCFS:
        for i in range(counters.num_skipped):
            if engine.kv.requests[engine.queues.skipped[i]].num_blocks > 0:
                last = engine.queues.skipped[i]
    else:
        for i in range(counters.heap_size):
            r = engine.queues.heap[i]
            if engine.kv.requests[r].num_blocks > 0 and (
                last == NONE or comes_before(engine.kv.infos, last, r)
            ):
                last = r
    if last == NONE:
        return False
    request = engine.kv.requests[last]
    if request.status == WAITING_FOR_REMOTE_KVS:
        try_promote(engine, last)
    kv_cache.free(engine.kv, request)
    request.num_computed_tokens = 0
    engine.storage.connection[0].num_given_back += 1
    engine.queues.counters[0].changed = 1
    counters.steps_without_token += 1
    return True
