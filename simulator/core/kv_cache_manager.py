"""Blocks of requests: the longest hit, the whole-sequence gate, slots for new tokens, freeing.

The hit cap: at most num_tokens - 1 tokens may come from the cache, because the last token has to be
computed to get logits; as hits are whole blocks, a prompt of exactly k blocks recomputes its last one.
"""

from __future__ import annotations

from simulator.core.block_pool import (
    cache_block,
    get_cached_block,
    get_new_block,
    release,
    touch,
)
from simulator.core.jit import compiled
from simulator.core.state import NONE, KVCache, Record


@compiled
def cdiv(a: int, b: int) -> int:
    return (a + b - 1) // b


@compiled
def find_longest_cache_hit(kv: KVCache, request: Record) -> int:
    """Write the hit blocks to the head of the request's block table; return how many they are.

    The table entries mean nothing until `allocate_slots_for_admission` makes them the request's own.
    """
    pool = kv.pool[0]
    if not pool.enable_caching:
        return 0
    num_hit_blocks = write_cached_blocks(kv, request)
    if request.num_preemptions > 0:
        pool.preempted_queries += request.num_tokens
        pool.preempted_hits += num_hit_blocks * pool.block_size
    else:
        pool.queries += request.num_tokens
        pool.hits += num_hit_blocks * pool.block_size
    return num_hit_blocks


@compiled
def write_cached_blocks(kv: KVCache, request: Record) -> int:
    """The same without counting it as a lookup."""
    max_hit_blocks = (request.num_tokens - 1) // kv.pool[0].block_size
    num_hit_blocks = 0
    while num_hit_blocks < max_hit_blocks:
        b = get_cached_block(kv, kv.block_hashes[request.block_hashes_start + num_hit_blocks])
        if b == NONE:
            break
        kv.block_table[request.block_table_start + num_hit_blocks] = b
        num_hit_blocks += 1
    return num_hit_blocks


@compiled
def num_evictable_blocks(kv: KVCache, request: Record, num_hit_blocks: int) -> int:
    """Hit blocks that sit in the free queue: taking them uses up capacity too."""
    count = 0
    for i in range(num_hit_blocks):
        if kv.blocks[kv.block_table[request.block_table_start + i]].ref_cnt == 0:
            count += 1
    return count


@compiled
def allocate_slots(kv: KVCache, request: Record, num_new_tokens: int) -> int:
    """Slots for the next tokens of a running request.

    Returns the number of new blocks, or NONE if they do not fit (and nothing changed).
    """
    pool = kv.pool[0]
    num_tokens = request.num_computed_tokens + num_new_tokens
    # Counted, not divided: it is one or none for most, and a division takes as long as the rest.
    num_new_blocks = 0
    while (request.num_blocks + num_new_blocks) * pool.block_size < num_tokens:
        num_new_blocks += 1
    if num_new_blocks > pool.num_free_blocks:
        pool.failed_allocations += 1
        return NONE
    append_new_blocks(kv, request, num_new_blocks)
    cache_full_blocks(kv, request, min(num_tokens, request.num_tokens))
    return num_new_blocks


@compiled
def can_admit(
    kv: KVCache,
    request: Record,
    num_hit_blocks: int,
    num_new_tokens: int,
    reserve_full_isl: int,
    max_model_len: int,
) -> bool:
    """Whether a waiting request fits: its whole sequence if that is reserved, and its first chunk."""
    pool = kv.pool[0]
    usable = pool.num_free_blocks - num_evictable_blocks(kv, request, num_hit_blocks)
    num_tokens = num_hit_blocks * pool.block_size + num_new_tokens
    if reserve_full_isl:
        num_tokens = max(num_tokens, min(request.num_tokens, max_model_len))
    fits = cdiv(num_tokens, pool.block_size) - num_hit_blocks <= usable
    if not fits:
        pool.failed_allocations += 1
    return fits


@compiled
def allocate_slots_for_admission(
    kv: KVCache, request: Record, num_hit_blocks: int, num_new_tokens: int
) -> None:
    """Give an admitted request its hit blocks and new ones for its first chunk; `can_admit` held."""
    num_tokens = num_hit_blocks * kv.pool[0].block_size + num_new_tokens
    take_blocks(kv, request, num_hit_blocks, num_tokens)
    cache_full_blocks(kv, request, min(num_tokens, request.num_tokens))


@compiled
def take_blocks(kv: KVCache, request: Record, num_hit_blocks: int, num_tokens: int) -> None:
    """Its hit blocks and new ones, for `num_tokens` in all; what they will hold is not indexed yet."""
    for i in range(num_hit_blocks):
        touch(kv, kv.block_table[request.block_table_start + i])
    request.num_blocks = num_hit_blocks
    request.num_cached_blocks = num_hit_blocks
    append_new_blocks(kv, request, cdiv(num_tokens, kv.pool[0].block_size) - num_hit_blocks)


@compiled
def can_fit_full_sequence(kv: KVCache, request: Record, max_model_len: int) -> bool:
    """Whether all tokens of a request that holds its loaded blocks already fit."""
    pool = kv.pool[0]
    num_blocks = cdiv(min(request.num_tokens, max_model_len), pool.block_size)
    fits = num_blocks - request.num_blocks <= pool.num_free_blocks
    if not fits:
        pool.failed_allocations += 1
    return fits


@compiled
def append_new_blocks(kv: KVCache, request: Record, num_new_blocks: int) -> None:
    for _ in range(num_new_blocks):
        kv.block_table[request.block_table_start + request.num_blocks] = get_new_block(kv)
        request.num_blocks += 1


@compiled
def cache_full_blocks(kv: KVCache, request: Record, num_tokens: int) -> None:
    """Index the request's blocks that are full once `num_tokens` of its tokens are computed."""
    pool = kv.pool[0]
    if not pool.enable_caching:
        return
    while (request.num_cached_blocks + 1) * pool.block_size <= num_tokens:
        i = request.num_cached_blocks
        b = kv.block_table[request.block_table_start + i]
        cache_block(kv, b, kv.block_hashes[request.block_hashes_start + i])
        request.num_cached_blocks = i + 1


@compiled
def free(kv: KVCache, request: Record) -> None:
    """Release all blocks, tail first, so that the head of a prefix is evicted last."""
    for i in range(request.num_blocks - 1, -1, -1):
        release(kv, kv.block_table[request.block_table_start + i])
    request.num_blocks = 0
    request.num_cached_blocks = 0
