"""Engines that share something have to be advanced in the order of time."""

from __future__ import annotations

from simulator.core import state
from simulator.core.state import Engine


def next_event_ns(engine: Engine) -> int:
    """When the engine next forms a batch or takes in one's output; FOREVER if it has nothing to do.

    `advance(engine, next_event_ns(engine) + 1, ...)` does what happens at that time. Of engines that
    share a tier, always advance the one whose next event is the earliest: then each finds the tier, and
    its links, as the others have left them by that time.
    """
    counters, storage = engine.queues.counters[0], engine.storage
    connection = storage.connection[0]
    if counters.must_wait:
        return max(int(counters.now_ns), int(engine.batches.info.end_ns[counters.oldest_batch]))
    if counters.idle:
        loads = storage.transfers.load_end_ns[storage.loading[: connection.num_submitted]]
        stores = storage.transfers.store_end_ns[storage.held[: connection.num_held]]
        ends = [int(ns) for ns in (*loads[:1], *stores)]
        return max(int(counters.now_ns), min([*ends, _next_arrival_ns(engine)]))
    offloads = engine.settings[0].kv_connector == state.OFFLOADING
    reports = counters.finished_to_report and (offloads or engine.settings[0].async_scheduling)
    if counters.num_batches or counters.num_unfinished or reports:
        return int(counters.now_ns)
    arrival_ns = _next_arrival_ns(engine)
    return arrival_ns if arrival_ns == state.FOREVER else max(int(counters.now_ns), arrival_ns)


def _next_arrival_ns(engine: Engine) -> int:
    queues, infos = engine.queues, engine.kv.infos
    counters = queues.counters[0]
    coming = [*queues.arrival_order[counters.next_arrival :][:1], *queues.released[:1]]
    if not counters.num_released:
        coming = coming[: int(counters.next_arrival < len(queues.arrival_order))]
    return min((int(infos.arrival_ns[r]) for r in coming), default=int(state.FOREVER))
