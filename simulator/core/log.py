"""What steps leave behind.

Step records and inter-token times are always kept; who was scheduled with how many tokens, who was
preempted and who finished only with `log_events`. Compiled code cannot grow an array, so the engine
stops with LOG_FULL between steps while there is still room for one more.
"""

from __future__ import annotations

from simulator.core.jit import compiled
from simulator.core.request_queue import num_waiting
from simulator.core.state import EVENT_FINISHED, EVENT_PREEMPTED, OFFLOADING, Engine, Log

# What forming a batch and applying another may take, by seat (max_num_seqs): a step schedules,
# preempts and finishes each request at most once, and each may have waited for its token differently.
EVENTS_PER_SEAT = 3
INTERVALS_PER_SEAT = 2


@compiled
def log_is_full(engine: Engine) -> bool:
    """Whether forming a batch and applying another might not fit."""
    log = engine.log
    sizes = log.sizes[0]
    settings = engine.settings[0]
    events = 0
    if settings.log_events:
        events = events_of_a_step(engine)
    intervals = INTERVALS_PER_SEAT * settings.max_num_seqs
    return (
        engine.queues.counters[0].num_steps >= log.steps.size
        or sizes.num_intervals + intervals > log.intervals.size
        or sizes.num_events + events > log.events.size
    )


@compiled
def events_of_a_step(engine: Engine) -> int:
    """What forming a batch and applying another may log at most."""
    seats = engine.settings[0].max_num_seqs
    if engine.settings[0].kv_connector != OFFLOADING:
        return EVENTS_PER_SEAT * seats
    # Each seat stores and finishes storing; each load takes a block.
    blocks = engine.kv.pool[0].num_usable_blocks
    num_held = engine.storage.connection[0].num_held
    num_loading = engine.queues.counters[0].num_loading
    return (EVENTS_PER_SEAT + 2) * seats + 2 * blocks + num_held + num_loading


@compiled
def log_inter_token_time(log: Log, ns: int, count: int) -> None:
    """Run-length coded: most requests of a batch waited equally long."""
    if count == 0:
        return
    sizes = log.sizes[0]
    interval = log.intervals[sizes.num_intervals]
    interval.ns = ns
    interval.count = count
    sizes.num_intervals += 1


@compiled
def log_schedule(engine: Engine, slot: int, start_ns: int) -> None:
    counters = engine.queues.counters[0]
    batch = engine.batches.info[slot]
    step = engine.log.steps[counters.num_steps]
    step.formed_ns = counters.now_ns
    step.start_ns = start_ns
    step.end_ns = batch.end_ns
    step.load_ns = batch.load_ns
    step.kv_prefill = batch.kv_prefill
    step.kv_decode = batch.kv_decode_sum
    step.num_requests = batch.num_requests
    step.num_tokens = batch.num_tokens
    step.prefill_tokens = batch.prefill_chunk
    step.num_decodes = batch.num_decodes
    step.num_admitted = batch.num_admitted
    step.num_preempted = batch.num_preempted
    step.running_after_schedule = counters.num_running
    step.waiting_after_schedule = num_waiting(engine.queues)
    step.num_reserved_decode_blocks = counters.num_reserved_decode_blocks
    step.free_after_schedule = engine.kv.pool[0].num_free_blocks
    step.loading_after_schedule = counters.num_loading
    if engine.settings[0].log_events:
        log_batch(engine, slot)


@compiled
def log_batch(engine: Engine, slot: int) -> None:
    sizes = engine.log.sizes[0]
    for i in range(engine.batches.info[slot].num_entries):
        entry = engine.batches.entries[slot, i]
        detail = engine.batches.details[slot, i]
        event = engine.log.events[sizes.num_events]
        event.step = engine.queues.counters[0].num_steps
        event.kind = detail.kind
        event.request = entry.request
        event.num_scheduled_tokens = entry.num_scheduled_tokens
        event.num_computed_tokens = entry.num_computed_tokens
        event.num_new_blocks = detail.num_new_blocks
        event.samples = entry.samples
        sizes.num_events += 1


@compiled
def log_update(engine: Engine, slot: int, num_sampled: int, num_finished: int) -> None:
    counters = engine.queues.counters[0]
    pool = engine.kv.pool[0]
    step = engine.log.steps[engine.batches.info[slot].step]
    step.update_ns = counters.now_ns
    step.num_sampled = num_sampled
    step.num_finished = num_finished
    step.running_after_update = counters.num_running
    step.waiting_after_update = num_waiting(engine.queues)
    step.free_after_update = pool.num_free_blocks
    step.formed_before_update = counters.num_steps


@compiled
def log_preempted(engine: Engine, r: int) -> None:
    if engine.settings[0].log_events:
        append_event(engine.log, engine.queues.counters[0].num_steps, EVENT_PREEMPTED, r, 0)


@compiled
def log_finished(engine: Engine, r: int) -> None:
    if engine.settings[0].log_events:
        append_event(engine.log, engine.queues.counters[0].num_updates, EVENT_FINISHED, r, 0)


@compiled
def log_transfer(engine: Engine, step: int, kind: int, r: int, num_tokens: int) -> None:
    if engine.settings[0].log_events:
        append_event(engine.log, step, kind, r, num_tokens)


@compiled
def append_event(log: Log, step: int, kind: int, r: int, num_tokens: int) -> None:
    sizes = log.sizes[0]
    event = log.events[sizes.num_events]
    event.step = step
    event.kind = kind
    event.request = r
    event.num_scheduled_tokens = num_tokens
    event.num_computed_tokens = 0
    event.num_new_blocks = 0
    event.samples = 0
    sizes.num_events += 1
