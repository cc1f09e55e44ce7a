"""One tier of prefix storage outside the device: CPU or CXL memory that keeps what the device evicts.

- The unit is a chunk of whole blocks, known by its last block's hash: one key space with the device.
- Least recently used chunks go first. One that is being loaded or stored is pinned.
- A link in each direction moves one thing at a time: a transfer starts when it is asked for or when
  the link is free, and takes the tier's latency and its bytes by the bandwidth.

A tier belongs to one engine or to several: everything in `Tier` is the tier's own. Engines that share
one have to be advanced in the order of time.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.state import NONE, PENDING, KVCache, Record, Storage, Tier


@compiled
def chunk_hash(kv: KVCache, storage: Storage, request: Record, chunk: int) -> int:
    last_block = (chunk + 1) * storage.connection[0].blocks_per_chunk - 1
    return kv.block_hashes[request.block_hashes_start + last_block]


@compiled
def find(tier: Tier, block_hash: int) -> int:
    """Where the tier has or is about to have the chunk, or NONE."""
    if tier.store[0].capacity == 0:
        return NONE
    return tier.place[block_hash]


@compiled
def find_ready(tier: Tier, block_hash: int) -> int:
    """Where the chunk can be read, or NONE."""
    place = find(tier, block_hash)
    if place != NONE and tier.chunks[place].ref_cnt == PENDING:
        return NONE
    return place


@compiled
def make_room(tier: Tier, num_chunks: int) -> bool:
    """Evict until there are `num_chunks` free places; if that cannot be, evict nothing."""
    store = tier.store[0]
    missing = num_chunks - (store.capacity - store.num_chunks)
    if missing <= 0:
        return True
    found = 0
    place = tier.chunks[store.head].next
    while found < missing and place != store.tail:
        if tier.chunks[place].ref_cnt == 0:
            found += 1
        place = tier.chunks[place].next
    if found < missing:
        return False
    place = tier.chunks[store.head].next
    while missing > 0:
        following = tier.chunks[place].next
        if tier.chunks[place].ref_cnt == 0:
            evict(tier, place)
            missing -= 1
        place = following
    return True


@compiled
def evict(tier: Tier, place: int) -> None:
    store = tier.store[0]
    unlink(tier, place)
    chunk = tier.chunks[place]
    tier.place[chunk.block_hash] = NONE
    chunk.block_hash = NONE
    chunk.next = store.free_place
    store.free_place = place
    store.num_chunks -= 1
    store.evicted_chunks += 1


@compiled
def insert(tier: Tier, block_hash: int, ref_cnt: int) -> int:
    """Put a chunk that is not there into a free place, as the last to be evicted."""
    store = tier.store[0]
    place = store.free_place
    if place != NONE:
        store.free_place = tier.chunks[place].next
    else:
        place = store.num_places
        store.num_places += 1
    chunk = tier.chunks[place]
    chunk.block_hash = block_hash
    chunk.ref_cnt = ref_cnt
    chunk.next_pending = NONE
    tier.place[block_hash] = place
    store.num_chunks += 1
    link_last(tier, place)
    return place


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


@compiled
def transfer_ns(store: Record, num_bytes: int) -> int:
    """What moving takes once the link is free."""
    return store.latency_ns + int(num_bytes / store.bytes_per_ns)
