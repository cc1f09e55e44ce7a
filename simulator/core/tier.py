"""A tier of prefix storage outside the device: CPU or CXL memory that keeps what the device evicts.

As vLLM drives a connector that loads synchronously (LMCache's way):
- The unit is a chunk of whole blocks, known by its last block's hash: one key space with the device.
- Looked up at every attempt to admit a request, after the device: from the chunk boundary below the
  device's hit, as far as chunks follow each other without a gap. At least one token is computed.
- What is gained gets new blocks on the device, and its chunks are moved before the step runs, one
  request's after the other's: each load takes the tier's latency and its bytes by the bandwidth. The
  chunk that the device holds half of moves whole.
- Every chunk is written through when its last token has been computed. That takes bytes, no time.
- Least recently used chunks go first; stored again or loaded is used.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.state import NONE, KVCache, Record, Tier


@compiled
def find_stored_tokens(kv: KVCache, tier: Tier, request: Record, num_hit_blocks: int) -> int:
    """Tokens beyond the device's hit that the tier holds; 0 if no whole chunk follows."""
    store = tier.store[0]
    if store.capacity == 0:
        return 0
    chunk = num_hit_blocks // store.blocks_per_chunk
    end = chunk
    while (end + 1) * store.tokens_per_chunk <= request.num_tokens:
        if tier.place[chunk_hash(kv, tier, request, end)] == NONE:
            break
        end += 1
    if end == chunk:
        return 0
    num_tokens = min(end * store.tokens_per_chunk, request.num_tokens - 1)
    return max(0, num_tokens - num_hit_blocks * kv.pool[0].block_size)


@compiled
def chunk_hash(kv: KVCache, tier: Tier, request: Record, chunk: int) -> int:
    last_block = (chunk + 1) * tier.store[0].blocks_per_chunk - 1
    return kv.block_hashes[request.block_hashes_start + last_block]


@compiled
def load(kv: KVCache, tier: Tier, request: Record, first_token: int, num_tokens: int) -> int:
    """Move the chunks with `num_tokens` tokens from `first_token` on to the device. Returns ns."""
    if num_tokens == 0:
        return 0
    store = tier.store[0]
    first = first_token // store.tokens_per_chunk
    end = (first_token + num_tokens + store.tokens_per_chunk - 1) // store.tokens_per_chunk
    for chunk in range(first, end):
        use(tier, tier.place[chunk_hash(kv, tier, request, chunk)])
    num_bytes = (end - first) * store.bytes_per_chunk
    ns = store.latency_ns + int(num_bytes / store.bytes_per_ns)
    store.loads += 1
    store.loaded_tokens += num_tokens
    store.loaded_bytes += num_bytes
    store.load_ns += ns
    return ns


@compiled
def write_through(kv: KVCache, tier: Tier, request: Record, before: int, after: int) -> None:
    """Store the chunks that became full while the computed tokens went from `before` to `after`."""
    store = tier.store[0]
    if store.capacity == 0:
        return
    for chunk in range(before // store.tokens_per_chunk, after // store.tokens_per_chunk):
        block_hash = chunk_hash(kv, tier, request, chunk)
        place = tier.place[block_hash]
        if place != NONE:
            use(tier, place)
            continue
        if store.num_chunks < store.capacity:
            place = store.num_chunks
            store.num_chunks += 1
        else:
            place = tier.chunks[store.head].next
            unlink(tier, place)
            tier.place[tier.chunks[place].block_hash] = NONE
            store.evicted_chunks += 1
        tier.chunks[place].block_hash = block_hash
        tier.place[block_hash] = place
        link_last(tier, place)
        store.stored_chunks += 1
        store.written_bytes += store.bytes_per_chunk


@compiled
def use(tier: Tier, place: int) -> None:
    unlink(tier, place)
    link_last(tier, place)


@compiled
def unlink(tier: Tier, place: int) -> None:
    chunk = tier.chunks[place]
    tier.chunks[chunk.prev].next = chunk.next
    tier.chunks[chunk.next].prev = chunk.prev


@compiled
def link_last(tier: Tier, place: int) -> None:
    """Behind everybody: the last to be evicted."""
    tail = tier.store[0].tail
    chunk = tier.chunks[place]
    chunk.prev = tier.chunks[tail].prev
    chunk.next = tail
    tier.chunks[chunk.prev].next = place
    tier.chunks[tail].prev = place
