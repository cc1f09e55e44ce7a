"""The block pool: a free queue in eviction order, and an index from content to block.

A block with ref_cnt 0 sits in the free queue, whether or not it still holds indexed content: freeing
keeps the hash, so the content can be hit until the block is handed to a new owner. The queue is a
doubly linked list, because a hit takes a block out of its middle. The same content may sit in several
blocks (two requests computed it at the same time); a lookup returns the one indexed first.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.state import NONE, KVCache


@compiled
def remove_from_free_queue(kv: KVCache, b: int) -> None:
    block = kv.blocks[b]
    kv.blocks[block.prev_free].next_free = block.next_free
    kv.blocks[block.next_free].prev_free = block.prev_free
    kv.pool[0].num_free_blocks -= 1


@compiled
def append_to_free_queue(kv: KVCache, b: int) -> None:
    pool = kv.pool[0]
    block = kv.blocks[b]
    last = kv.blocks[pool.free_tail].prev_free
    kv.blocks[last].next_free = b
    block.prev_free = last
    block.next_free = pool.free_tail
    kv.blocks[pool.free_tail].prev_free = b
    pool.num_free_blocks += 1


@compiled
def get_new_block(kv: KVCache) -> int:
    """Take the block that was freed longest ago; what it held can no longer be hit."""
    pool = kv.pool[0]
    b = kv.blocks[pool.free_head].next_free
    remove_from_free_queue(kv, b)
    block = kv.blocks[b]
    if block.used:
        pool.reused_blocks += 1
        if block.block_hash != NONE:
            evict(kv, b)
    block.used = 1
    block.ref_cnt = 1
    pool.min_free_blocks = min(pool.min_free_blocks, pool.num_free_blocks)
    return b


@compiled
def touch(kv: KVCache, b: int) -> None:
    """A hit: one more holder; a free block leaves the free queue."""
    block = kv.blocks[b]
    if block.ref_cnt == 0:
        remove_from_free_queue(kv, b)
        pool = kv.pool[0]
        pool.min_free_blocks = min(pool.min_free_blocks, pool.num_free_blocks)
    block.ref_cnt += 1


@compiled
def release(kv: KVCache, b: int) -> None:
    """One holder fewer; without holders the block becomes the last to be evicted."""
    block = kv.blocks[b]
    block.ref_cnt -= 1
    if block.ref_cnt == 0:
        append_to_free_queue(kv, b)


@compiled
def get_cached_block(kv: KVCache, block_hash: int) -> int:
    """The block indexed first under `block_hash`, or NONE."""
    return kv.cached_blocks[block_hash].first


@compiled
def cache_block(kv: KVCache, b: int, block_hash: int) -> None:
    """Index a block that has become full."""
    block = kv.blocks[b]
    holders = kv.cached_blocks[block_hash]
    block.block_hash = block_hash
    block.prev_same_hash = holders.last
    block.next_same_hash = NONE
    if holders.last == NONE:
        holders.first = b
    else:
        kv.blocks[holders.last].next_same_hash = b
    holders.last = b


@compiled
def evict(kv: KVCache, b: int) -> None:
    """Drop a block from the index."""
    block = kv.blocks[b]
    holders = kv.cached_blocks[block.block_hash]
    if block.prev_same_hash == NONE:
        holders.first = block.next_same_hash
    else:
        kv.blocks[block.prev_same_hash].next_same_hash = block.next_same_hash
    if block.next_same_hash == NONE:
        holders.last = block.prev_same_hash
    else:
        kv.blocks[block.next_same_hash].prev_same_hash = block.prev_same_hash
    block.block_hash = NONE
    kv.pool[0].evicted_blocks += 1
