"""The engine loop: vLLM's EngineCore with a queue of batches.

`batch_queue_size` batches may be formed before the oldest has run. With 1 that is synchronous
scheduling: form, run, apply, repeat. With 2 it is asynchronous scheduling: batch k+2 is formed when
the output of batch k has been applied, which is when batch k+1 starts on the device, so the host's
work hides behind the device's. With more it is what pipeline stages need.

A step's host time delays its start: start = max(formed + host time, device free). Under synchronous
scheduling the device is free when a batch is formed, so host time adds to the step. An empty batch
takes its place in the queue, but no time on the device (`empty_step_ns`, 0 unless a recorded clock
counted it).
"""

from __future__ import annotations

from simulator.core import infinilm
from simulator.core.arrivals import next_arrival_ns, take_arrivals
from simulator.core.jit import compiled, compiled_apart, entry
from simulator.core.kv_transfer import sends_end_ns
from simulator.core.latency import step_ns
from simulator.core.lmcache import wait_for_loads
from simulator.core.log import log_is_full, log_schedule, log_update
from simulator.core.offloading import give_back_blocks
from simulator.core.output import update_from_output
from simulator.core.pipeline import run_through
from simulator.core.placement import is_placed, placed_step_ns
from simulator.core.scheduler import schedule
from simulator.core.state import (
    DONE,
    FOREVER,
    KV_PRODUCER,
    LIVELOCK,
    LMCACHE,
    LOG_FULL,
    NO_CONNECTOR,
    OFFLOADING,
    REACHED_UNTIL,
    SOME_FINISHED,
    STUCK,
    VLLM,
    Engine,
    Record,
)
from simulator.core.transfers import launch, next_transfer_ns, transfers_pending


def advance(engine: Engine, until_ns: int, max_steps: int) -> int:
    """Run until nothing before `until_ns` is left to do, or `max_steps` more steps were formed.

    Returns DONE, REACHED_UNTIL (also after max_steps), LOG_FULL (make room and call again), STUCK
    (requests wait and nothing can ever help them), LIVELOCK (steps without end and no token) or, with
    `report_finished`, SOME_FINISHED.
    Calling again continues exactly where the last call stopped.
    """
    return ADVANCE[int(engine.settings.kv_connector[0])](engine, until_ns, max_steps)


@compiled
def run(engine: Engine, until_ns: int, max_steps: int, connector: int) -> int:
    settings = engine.settings[0]
    queues = engine.queues
    counters = queues.counters[0]
    last_step = counters.num_steps + max_steps
    while True:
        if not counters.must_wait:
            if connector == OFFLOADING and counters.idle:
                wake_ns = min(next_arrival_ns(queues, engine.kv.infos), next_transfer_ns(engine))
                if wake_ns >= until_ns:
                    return REACHED_UNTIL
                counters.now_ns = max(counters.now_ns, wake_ns)
                counters.idle = 0
            if counters.num_batches == 0 and not has_requests(engine, connector):
                arrival_ns = next_arrival_ns(queues, engine.kv.infos)
                if arrival_ns == FOREVER:
                    return DONE
                if arrival_ns >= until_ns:
                    return REACHED_UNTIL
                counters.now_ns = max(counters.now_ns, arrival_ns)
            if counters.now_ns >= until_ns or counters.num_steps >= last_step:
                return REACHED_UNTIL
            if log_is_full(engine):
                return LOG_FULL
            take_arrivals(engine.kv, queues, settings.policy)
            if has_requests(engine, connector):
                num_tokens = form_batch(engine, connector)
                if num_tokens == 0 and is_stuck(engine, connector):
                    return STUCK
                if (
                    num_tokens > 0
                    and counters.num_batches < settings.batch_queue_size
                    and oldest(engine).end_ns > counters.now_ns
                ):
                    continue
            counters.must_wait = counters.num_batches > 0
        else:
            if oldest(engine).end_ns >= until_ns:
                return REACHED_UNTIL
            apply_oldest_batch(engine, connector)
            counters.must_wait = 0
            if counters.steps_without_token > settings.max_steps_without_token:
                return LIVELOCK
            if counters.num_reported > 0:
                return SOME_FINISHED


# One version for each kind of connector: `connector` is a constant in it, so that an engine has only
# what it needs, and the code of a connector costs nothing without one.


@entry
def advance_alone(engine: Engine, until_ns: int, max_steps: int) -> int:
    return run(engine, until_ns, max_steps, NO_CONNECTOR)


@entry
def advance_lmcache(engine: Engine, until_ns: int, max_steps: int) -> int:
    return run(engine, until_ns, max_steps, LMCACHE)


@entry
def advance_offloading(engine: Engine, until_ns: int, max_steps: int) -> int:
    return run(engine, until_ns, max_steps, OFFLOADING)


ADVANCE = {
    NO_CONNECTOR: advance_alone,
    LMCACHE: advance_lmcache,
    OFFLOADING: advance_offloading,
}


@compiled
def has_requests(engine: Engine, connector: int) -> bool:
    """Whether vLLM would form a batch.

    It forms an empty one after the last request finished, to tell the workers. Under synchronous
    scheduling that is left out where it has no effect: where nothing is being stored.
    """
    counters = engine.queues.counters[0]
    if counters.num_unfinished > 0:
        return True
    told = connector == OFFLOADING or engine.settings[0].async_scheduling
    return told and counters.finished_to_report > 0


@compiled
def is_stuck(engine: Engine, connector: int) -> bool:
    """After an empty batch: whether the next one would be empty too, and so for ever.

    A batch may be empty although work is left: its requests wait for output in flight, or the first
    to run preempted itself (priority policy).
    """
    if engine.queues.counters[0].num_unfinished == 0 or not nothing_in_flight(engine):
        return False
    return connector != OFFLOADING or not (transfers_pending(engine) or give_back_blocks(engine))


@compiled
def nothing_in_flight(engine: Engine) -> bool:
    """Whether all batches in flight are empty, and not because of a preemption."""
    counters = engine.queues.counters[0]
    for i in range(counters.num_batches):
        position = counters.oldest_batch + i
        batch = engine.batches.info[position % engine.settings[0].batch_queue_size]
        if batch.num_tokens > 0 or batch.num_preempted > 0:
            return False
    return True


@compiled
def newest(engine: Engine) -> Record:
    """The batch formed last; there is one."""
    counters = engine.queues.counters[0]
    slot = (counters.oldest_batch + counters.num_batches - 1) % engine.settings[0].batch_queue_size
    return engine.batches.info[slot]


@compiled
def oldest(engine: Engine) -> Record:
    return engine.batches.info[engine.queues.counters[0].oldest_batch]


@compiled
def form_batch(engine: Engine, connector: int) -> int:
    """Schedule, and put the batch behind the others. Returns its number of tokens."""
    settings = engine.settings[0]
    counters = engine.queues.counters[0]
    pool = engine.kv.pool[0]
    slot = (counters.oldest_batch + counters.num_batches) % settings.batch_queue_size
    batch = engine.batches.info[slot]
    queries = pool.queries
    hits = pool.hits
    preempted_queries = pool.preempted_queries
    preempted_hits = pool.preempted_hits

    if settings.engine == VLLM:
        schedule(engine, slot, connector)
    else:
        infinilm.schedule(engine, slot)
    counters.finished_to_report = 0
    counters.num_batches += 1
    batch.step = counters.num_steps
    host_ns = settings.host_ns_per_step + settings.host_ns_per_request * batch.num_requests
    launch_ns = counters.now_ns + host_ns
    if connector == OFFLOADING:
        launch_ns = launch(engine, slot, launch_ns)
    start_ns = max(launch_ns, counters.device_free_ns)
    if connector == LMCACHE:
        batch.load_ns = wait_for_loads(engine.storage, start_ns)
    batch.start_ns = start_ns + batch.load_ns
    if batch.num_tokens == 0:
        batch.end_ns = start_ns + settings.empty_step_ns
    elif settings.lockstep:
        batch.end_ns = batch.start_ns  # the group says when
    else:
        set_end(engine, batch, batch.num_tokens, batch.num_tokens, batch.num_tokens, 0)

    log_schedule(engine, slot, start_ns)
    step = engine.log.steps[counters.num_steps]
    step.prefix_queries = pool.queries - queries
    step.prefix_hits = pool.hits - hits
    step.preempted_queries = pool.preempted_queries - preempted_queries
    step.preempted_hits = pool.preempted_hits - preempted_hits
    counters.num_steps += 1
    return batch.num_tokens


@compiled
def set_end(
    engine: Engine,
    batch: Record,
    num_tokens: int,
    expert_tokens: int,
    share_tokens: int,
    more_mode_ns: int,
) -> None:
    """When the device ends a batch and may start the next.

    Its dense layers run `num_tokens`; experts shared with others run `expert_tokens`, exchanged in
    shares of `share_tokens`. `more_mode_ns` is what its execution mode adds beyond its own.
    """
    counters = engine.queues.counters[0]
    if len(engine.stage_free_ns) > 1:
        batch.end_ns = run_through(
            engine, batch, num_tokens, expert_tokens, share_tokens, more_mode_ns
        )
        counters.device_free_ns = engine.stage_free_ns[0]
        return
    latency = engine.latency
    if is_placed(latency):
        batch.end_ns = batch.start_ns + placed_step_ns(engine, batch, num_tokens)
    else:
        batch.end_ns = batch.start_ns + step_ns(
            latency,
            engine.outside,
            num_tokens,
            batch.num_requests,
            batch.prefill_chunk,
            batch.kv_prefill,
            batch.num_decodes,
            batch.kv_decode_sum,
            batch.kv_decode_max,
            batch.kv_decode_min,
        )
    if len(latency.expert_ns) > 1:
        experts = latency.expert_ns[expert_tokens] + latency.exchange_ns[share_tokens]
        batch.end_ns += latency.params[0].num_layers * experts
    batch.end_ns = max(batch.start_ns + 1, batch.end_ns + more_mode_ns)
    if (
        engine.storage.connection[0].kv_role == KV_PRODUCER
        and engine.storage.connection[0].by_layer
    ):
        batch.end_ns = max(batch.end_ns, sends_end_ns(engine, batch))
    counters.device_free_ns = batch.end_ns


@compiled
def apply_oldest_batch(engine: Engine, connector: int) -> None:
    """Wait for the oldest batch and take in its output."""
    counters = engine.queues.counters[0]
    slot = counters.oldest_batch
    counters.now_ns = max(counters.now_ns, engine.batches.info[slot].end_ns)
    num_sampled, num_finished = update_from_output(engine, slot, connector)
    if num_sampled > 0:
        counters.steps_without_token = 0
    elif connector != OFFLOADING or counters.changed or not transfers_pending(engine):
        # However many steps a transfer takes, each counts once.
        counters.steps_without_token += 1
    if connector == OFFLOADING:
        look_ahead(engine)
    log_update(engine, slot, num_sampled, num_finished)
    counters.num_updates += 1
    counters.oldest_batch = (slot + 1) % engine.settings[0].batch_queue_size
    counters.num_batches -= 1


@compiled_apart
def look_ahead(engine: Engine) -> None:
    """Whether nothing happens before a transfer ends or a request arrives.

    So it is if the batches in flight and the one just applied are empty, that one changed nothing, and
    no transfer has ended that a batch in flight will report: the next one would be as empty.
    """
    counters = engine.queues.counters[0]
    counters.idle = (
        counters.num_unfinished > 0
        and counters.changed == 0
        and nothing_in_flight(engine)
        and transfers_pending(engine)
        and next_transfer_ns(engine) > newest(engine).poll_ns
    )
    counters.changed = 0
