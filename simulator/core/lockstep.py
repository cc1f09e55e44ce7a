"""Data-parallel replicas form their batches together and wait for each other.

Each has a scheduler and a KV cache of its own. A step, and each pipeline stage of it, lasts as long as
the slowest replica's; experts that the replicas share run the tokens of all of them, and around them
the replicas exchange hidden states; a replica without work runs along empty. Where every batch is
small enough for a CUDA graph, all are padded to the largest, and all run in the mode with the least
graphs that one of them needs.
"""

from __future__ import annotations

from simulator.core.arrivals import take_arrivals
from simulator.core.engine import (
    apply_oldest_batch,
    form_batch,
    has_requests,
    is_stuck,
    newest,
    set_end,
)
from simulator.core.jit import entry
from simulator.core.latency import mode_ns
from simulator.core.log import log_is_full
from simulator.core.state import LIVELOCK, LOG_FULL, STUCK, Engine


@entry
def has_work(engine: Engine, now_ns: int) -> int:
    """1 if there is work at `now_ns`, 0 if not; LOG_FULL if there is no room to log a step."""
    if log_is_full(engine):
        return LOG_FULL
    counters = engine.queues.counters[0]
    counters.now_ns = now_ns
    take_arrivals(engine.kv, engine.queues, engine.settings[0].policy)
    return 1 if has_requests(engine, engine.settings[0].kv_connector) else 0


@entry
def form(engine: Engine) -> int:
    """Form a batch, empty if there is nothing to do. Returns its tokens."""
    return form_batch(engine, engine.settings[0].kv_connector)


@entry
def price(
    engine: Engine, num_tokens: int, expert_tokens: int, share_tokens: int, common_mode_ns: int
) -> int:
    """When this replica alone would end the batch it formed last.

    Its dense layers run `num_tokens`, its experts take part in running `expert_tokens`, the exchange
    takes as long as one of equal shares of `share_tokens`, and the execution mode is the common one.
    """
    batch = newest(engine)
    own_ns = mode_ns(engine.latency.params[0], num_tokens, batch.prefill_chunk)
    set_end(engine, batch, num_tokens, expert_tokens, share_tokens, common_mode_ns - own_ns)
    return batch.end_ns


@entry
def settle(engine: Engine, end_ns: int) -> int:
    """All replicas end the batch they formed last together. STUCK: it was empty for no good reason."""
    batch = newest(engine)
    batch.end_ns = end_ns
    several = len(engine.stage_free_ns) > 1  # the first may start the next batch before
    engine.queues.counters[0].device_free_ns = engine.stage_free_ns[0] if several else end_ns
    engine.log.steps[batch.step].end_ns = end_ns
    if batch.num_tokens == 0 and is_stuck(engine, engine.settings[0].kv_connector):
        return STUCK
    return 0


@entry
def apply(engine: Engine) -> int:
    """Take in the output of the oldest batch. LIVELOCK: too many steps in a row gave no token."""
    apply_oldest_batch(engine, engine.settings[0].kv_connector)
    counters = engine.queues.counters[0]
    if counters.num_unfinished == 0:
        counters.steps_without_token = 0  # it only runs along
    limit = engine.settings[0].max_steps_without_token
    return LIVELOCK if counters.steps_without_token > limit else 0
