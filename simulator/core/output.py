"""A batch has run: its requests get their tokens, and those with enough are finished."""

from __future__ import annotations

from simulator.core import kv_cache_manager as kv_cache
from simulator.core.admission import release_reservation
from simulator.core.arrivals import release_next_call
from simulator.core.jit import compiled
from simulator.core.lmcache import loads_are_done, write_through
from simulator.core.log import log_finished, log_inter_token_time
from simulator.core.offloading import hold_blocks, update_from_transfers
from simulator.core.request_queue import remove_preempted_request
from simulator.core.state import (
    FINISHED,
    INFINILM,
    LMCACHE,
    NEVER,
    NONE,
    OFFLOADING,
    PREEMPTED,
    RUNNING,
    Engine,
)


@compiled
def update_from_output(engine: Engine, slot: int, connector: int) -> tuple[int, int]:
    """The batch has run: its requests get their tokens, those with enough are finished.

    Nobody in it has finished before: a request whose last token is in flight is not scheduled.
    Returns (tokens sampled, requests finished).
    """
    batches = engine.batches
    kv = engine.kv
    counters = engine.queues.counters[0]
    batch = batches.info[slot]
    asynchronous = engine.settings[0].async_scheduling
    infinilm = engine.settings[0].engine == INFINILM
    now_ns = counters.now_ns
    num_sampled = batch.num_strided
    num_finished = 0
    interval_ns = now_ns - counters.last_update_ns
    num_intervals = batch.num_strided
    for i in range(batch.num_entries):
        entry = batches.entries[slot, i]
        request = kv.requests[entry.request]
        if connector == LMCACHE:
            before = entry.num_computed_tokens
            loads_are_done(kv, engine.storage, request, before)
            if request.status == RUNNING:
                after = before + entry.num_scheduled_tokens
                write_through(kv, engine.storage, request, before, after)
        if not entry.samples:
            continue
        num_sampled += 1
        num_tokens = request.num_tokens + 1
        request.num_tokens = num_tokens
        last_token_ns = request.last_token_ns
        request.last_token_ns = now_ns
        if last_token_ns == NEVER:
            kv.infos[entry.request].first_token_ns = now_ns
        elif now_ns - last_token_ns == interval_ns:
            num_intervals += 1
        else:
            log_inter_token_time(engine.log, interval_ns, num_intervals)
            interval_ns = now_ns - last_token_ns
            num_intervals = 1
        if asynchronous:
            placeholders = request.num_output_placeholders - 1
            request.num_output_placeholders = placeholders
            if request.status == RUNNING and request.stride_from == NONE:
                kv_cache.cache_full_blocks(kv, request, request.num_computed_tokens - placeholders)
        elif infinilm:  # indexes blocks when they have been computed, not when they are given
            kv_cache.cache_full_blocks(kv, request, request.num_computed_tokens)
        if num_tokens >= request.end_num_tokens:
            finish(engine, entry.request, connector)
            num_finished += 1
    log_inter_token_time(engine.log, interval_ns, num_intervals)
    if num_finished > 0:
        drop_finished(engine)
    if connector == OFFLOADING:
        update_from_transfers(engine, slot)
    counters.num_generated_tokens += num_sampled
    counters.last_update_ns = now_ns
    return num_sampled, num_finished


@compiled
def finish(engine: Engine, r: int, connector: int) -> None:
    counters = engine.queues.counters[0]
    request = engine.kv.requests[r]
    if request.status == PREEMPTED:
        remove_preempted_request(engine.queues, engine.kv.infos, engine.settings[0].policy, r)
    request.status = FINISHED
    if engine.settings[0].engine == INFINILM:
        release_reservation(engine, r)
    if connector != OFFLOADING or not hold_blocks(engine, r):
        kv_cache.free(engine.kv, request)
    counters.num_unfinished -= 1
    counters.finished_to_report = 1
    release_next_call(engine.kv, engine.queues, r)
    if engine.settings[0].report_finished:
        engine.queues.finished[counters.num_reported] = r
        counters.num_reported += 1
    log_finished(engine, r)


@compiled
def drop_finished(engine: Engine) -> None:
    """Take the finished requests out of `running`."""
    running = engine.queues.running
    due = engine.queues.due
    counters = engine.queues.counters[0]
    kept = 0
    for i in range(counters.num_running):
        if engine.kv.requests[running[i]].status == RUNNING:
            running[kept] = running[i]
            due[kept] = due[i]
            kept += 1
    counters.num_running = kept
