"""A connector that loads before the step: LMCache's way.

- Looked up at every attempt to admit a request, after the device: from the chunk boundary below the
  device's hit, as far as chunks follow each other without a gap, each in the near tier or else in the
  far one. At least one token is computed.
- What is gained gets new blocks on the device, and its chunks are moved before the step runs: one
  request's after the other's on a tier's link, the links of two tiers at the same time. The chunk that
  the device holds half of moves whole.
- Every chunk is written through to every tier when its last token has been computed, and one that
  comes from the far tier is kept in the near one too. That takes bytes, no time.
- A chunk stays until the batch that loads it has run. One for which no place can be made is not stored.
"""

from __future__ import annotations

from simulator.core.jit import compiled, compiled_apart
from simulator.core.state import NONE, KVCache, Record, Storage, Tier
from simulator.core.tier import chunk_hash, find, insert, make_room, transfer_ns, use

NEAR, FAR = 0, 1
IN_NEAR, IN_FAR = 1, 2  # Storage.pinned


@compiled_apart
def find_stored_tokens(kv: KVCache, storage: Storage, request: Record, num_hit_blocks: int) -> int:
    """Tokens beyond the device's hit that the tiers hold; 0 if no whole chunk follows."""
    connection = storage.connection[0]
    chunk = num_hit_blocks // connection.blocks_per_chunk
    end = chunk
    while (end + 1) * connection.tokens_per_chunk <= request.num_tokens:
        block_hash = chunk_hash(kv, storage, request, end)
        if find(storage.near, block_hash) == NONE and find(storage.far, block_hash) == NONE:
            break
        end += 1
    if end == chunk:
        return 0
    num_tokens = min(end * connection.tokens_per_chunk, request.num_tokens - 1)
    return max(0, num_tokens - num_hit_blocks * kv.pool[0].block_size)


@compiled_apart
def load(kv: KVCache, storage: Storage, request: Record, first_token: int, num_tokens: int) -> int:
    """Move the chunks with `num_tokens` tokens from `first_token` on, with the batch being formed.

    Returns how many of the tokens come from the far tier.
    """
    tokens_per_chunk = storage.connection[0].tokens_per_chunk
    first = first_token // tokens_per_chunk
    end = (first_token + num_tokens + tokens_per_chunk - 1) // tokens_per_chunk
    from_near = 0
    near_tokens = 0
    # Last chunk first, so that the head of a prefix is evicted last.
    for chunk in range(end - 1, first - 1, -1):
        block_hash = chunk_hash(kv, storage, request, chunk)
        tier = storage.near
        place = find(tier, block_hash)
        if place != NONE:
            pinned = IN_NEAR
            from_near += 1
            last_token = min((chunk + 1) * tokens_per_chunk, first_token + num_tokens)
            near_tokens += last_token - max(chunk * tokens_per_chunk, first_token)
        else:
            tier = storage.far
            place = find(tier, block_hash)
            pinned = IN_FAR
        use(tier, place)
        tier.chunks[place].ref_cnt += 1
        storage.pinned[pin_of(storage, request, chunk)] = pinned
    for chunk in range(end - 1, first - 1, -1):
        if storage.pinned[pin_of(storage, request, chunk)] == IN_FAR:
            put(storage, NEAR, storage.near, chunk_hash(kv, storage, request, chunk))
    count_load(storage, NEAR, storage.near, from_near, near_tokens)
    count_load(storage, FAR, storage.far, end - first - from_near, num_tokens - near_tokens)
    return num_tokens - near_tokens


@compiled
def pin_of(storage: Storage, request: Record, chunk: int) -> int:
    last_block = (chunk + 1) * storage.connection[0].blocks_per_chunk - 1
    return request.block_hashes_start + last_block


@compiled
def count_load(storage: Storage, which: int, tier: Tier, num_chunks: int, num_tokens: int) -> None:
    if num_chunks == 0:
        return
    connection = storage.connection[0]
    counts = storage.use[which]
    num_bytes = num_chunks * connection.tokens_per_chunk * connection.bytes_per_token
    ns = transfer_ns(tier.store[0], num_bytes)
    counts.loads += 1
    counts.loaded_tokens += num_tokens
    counts.loaded_bytes += num_bytes
    counts.load_ns += ns
    counts.batch_ns += ns


@compiled_apart
def wait_for_loads(storage: Storage, start_ns: int) -> int:
    """Put the batch's loads on the links at `start_ns`. Returns how long the batch waits for them."""
    end_ns = max(
        occupy_link(storage, NEAR, storage.near, start_ns),
        occupy_link(storage, FAR, storage.far, start_ns),
    )
    storage.connection[0].stalled_ns += end_ns - start_ns
    return end_ns - start_ns


@compiled
def occupy_link(storage: Storage, which: int, tier: Tier, start_ns: int) -> int:
    """Returns when the batch's loads from this tier are done."""
    counts = storage.use[which]
    if counts.batch_ns == 0:
        return start_ns
    store = tier.store[0]
    begin_ns = max(start_ns, store.load_free_ns)
    store.load_free_ns = begin_ns + counts.batch_ns
    counts.link_wait_ns += begin_ns - start_ns
    counts.batch_ns = 0
    return store.load_free_ns


@compiled_apart
def loads_are_done(
    kv: KVCache, storage: Storage, request: Record, num_computed_tokens: int
) -> None:
    """The batch that loaded up to `num_computed_tokens` has run: nothing is pinned for it any more."""
    # A load ends with a chunk, or one token before if the chunk is the end of the request.
    chunk = (num_computed_tokens + 1) // storage.connection[0].tokens_per_chunk - 1
    if chunk >= 0 and storage.pinned[pin_of(storage, request, chunk)] == 0:
        chunk -= 1
    while chunk >= 0:
        pin = pin_of(storage, request, chunk)
        if storage.pinned[pin] == 0:
            break
        tier = storage.near if storage.pinned[pin] == IN_NEAR else storage.far
        tier.chunks[find(tier, kv.block_hashes[pin])].ref_cnt -= 1
        storage.pinned[pin] = 0
        chunk -= 1


@compiled_apart
def write_through(kv: KVCache, storage: Storage, request: Record, before: int, after: int) -> None:
    """Store the chunks that became full while the computed tokens went from `before` to `after`."""
    tokens_per_chunk = storage.connection[0].tokens_per_chunk
    for chunk in range(before // tokens_per_chunk, after // tokens_per_chunk):
        block_hash = chunk_hash(kv, storage, request, chunk)
        put(storage, NEAR, storage.near, block_hash)
        put(storage, FAR, storage.far, block_hash)


@compiled
def put(storage: Storage, which: int, tier: Tier, block_hash: int) -> None:
    """Store a chunk, or use it if it is there already."""
    if tier.store[0].capacity == 0:
        return
    place = find(tier, block_hash)
    if place != NONE:
        use(tier, place)
        return
    counts = storage.use[which]
    if not make_room(tier, 1):
        counts.failed_stores += 1
        return
    insert(tier, block_hash, 0)
    connection = storage.connection[0]
    counts.stores += 1
    counts.stored_chunks += 1
    counts.written_bytes += connection.tokens_per_chunk * connection.bytes_per_token
