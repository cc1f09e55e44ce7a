"""InfiniLM's admission: no preemption, so every request reserves blocks for its whole life.

A waiting request is accepted if
    what all running requests reserve
    + ceil((prompt - hit + max_tokens) / block_size), its own blocks
    + what requests accepted earlier in this batch will still need
fits into the usable blocks: those nobody holds, the request's own hits taken out.

Three ways to say what a running request reserves:
- legacy: ceil(remaining tokens / block_size). It forgets the room left in the blocks it holds.
- exact-scan: max(0, ceil((prompt + max_tokens) / block_size) - blocks held), summed over `running`.
- incremental: the same number, kept in one counter that admission, each new block and the end of a
  request change. It never looks at `running`.

InfiniLM's fourth term, reservations of requests whose KV comes from a remote instance, is always 0
here: there is one instance.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.kv_cache_manager import cdiv, num_evictable_blocks
from simulator.core.state import INCREMENTAL, LEGACY, Engine, KVCache


@compiled
def life_blocks(kv: KVCache, r: int) -> int:
    """Blocks of prompt and max_tokens."""
    return cdiv(kv.infos[r].num_life_tokens, kv.pool[0].block_size)


@compiled
def blocks_to_come(kv: KVCache, r: int) -> int:
    """Of its life's blocks, those a request does not hold yet; it never holds more."""
    return life_blocks(kv, r) - kv.requests[r].num_blocks


@compiled
def scan_legacy(engine: Engine, num_running: int) -> int:
    kv = engine.kv
    reserved = 0
    for i in range(num_running):
        r = engine.queues.running[i]
        remaining = kv.infos[r].num_life_tokens - kv.requests[r].num_tokens
        reserved += cdiv(max(0, remaining), kv.pool[0].block_size)
    return reserved


@compiled
def scan_exact(engine: Engine, num_running: int) -> int:
    reserved = 0
    for i in range(num_running):
        reserved += blocks_to_come(engine.kv, engine.queues.running[i])
    return reserved


@compiled
def num_reserved_blocks(engine: Engine, num_running: int) -> int:
    """What the first `num_running` requests reserve: those that run since before this batch."""
    admission = engine.settings[0].admission
    if admission == INCREMENTAL:
        return engine.queues.counters[0].num_reserved_decode_blocks
    if admission == LEGACY:
        return scan_legacy(engine, num_running)
    return scan_exact(engine, num_running)


@compiled
def can_accept(
    engine: Engine, r: int, num_hit_blocks: int, num_running: int, extra_blocks: int
) -> bool:
    """Whether waiting request `r` fits, its hits at the head of its block table.

    `extra_blocks`: what the requests accepted earlier in this batch will still need.
    """
    kv = engine.kv
    pool = kv.pool[0]
    counters = engine.queues.counters[0]
    required = (
        num_reserved_blocks(engine, num_running)
        + life_blocks(kv, r)
        - num_hit_blocks
        + extra_blocks
    )
    usable = pool.num_free_blocks - num_evictable_blocks(kv, kv.requests[r], num_hit_blocks)
    if required > usable:
        pool.failed_allocations += 1
        return False
    required_in_all = pool.num_usable_blocks - usable + required
    counters.peak_required_blocks = max(counters.peak_required_blocks, required_in_all)
    return True


@compiled
def reserve(engine: Engine, num_blocks: int) -> None:
    """Requests that were admitted will still need `num_blocks`."""
    counters = engine.queues.counters[0]
    counters.num_reserved_decode_blocks += num_blocks
    counters.peak_reserved_decode_blocks = max(
        counters.peak_reserved_decode_blocks, counters.num_reserved_decode_blocks
    )


@compiled
def release_reservation(engine: Engine, r: int) -> None:
    """A request has ended, its blocks not yet freed: what it did not use is nobody's again."""
    engine.queues.counters[0].num_reserved_decode_blocks -= blocks_to_come(engine.kv, r)
