"""What a cluster asks of an instance: take this request, what do you have of that one."""

from __future__ import annotations

from simulator.core import heap
from simulator.core.arrivals import arrives_before
from simulator.core.jit import entry
from simulator.core.kv_cache_manager import write_cached_blocks
from simulator.core.state import Engine


@entry
def hand_over(engine: Engine, r: int, arrival_ns: int) -> None:
    """A request arrives at this instance; not before what the instance has done already."""
    engine.kv.infos[r].arrival_ns = arrival_ns
    counters = engine.queues.counters[0]
    counters.num_to_come += 1
    counters.num_released = heap.push(
        engine.queues.released, counters.num_released, engine.kv.infos, arrives_before, r
    )


@entry
def cached_tokens(engine: Engine, r: int) -> int:
    """Tokens of a request that the instance would find on its device now; nothing is counted."""
    pool = engine.kv.pool[0]
    if not pool.enable_caching:
        return 0
    return write_cached_blocks(engine.kv, engine.kv.requests[r]) * pool.block_size
