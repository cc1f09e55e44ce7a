"""The links between the device and the tier of an OffloadingConnector: its workers' side.

When a batch is launched (formed, plus host time), stores prepared with the batch before it go onto the
link, behind that batch; stores of requests it has preempted are waited for; then its loads go onto the
link. What has ended by then is reported with the batch's output, so a load that ends while a batch runs
is reported with the next one. An engine that has nothing to run looks every millisecond in vLLM; here it
goes on when the next transfer ends or a request arrives.
"""

from __future__ import annotations

from simulator.core.jit import compiled, compiled_apart
from simulator.core.kv_transfer import read_remote
from simulator.core.state import FOREVER, NO_ROLE, Engine, Record, Storage
from simulator.core.tier import transfer_ns


@compiled_apart
def launch(engine: Engine, slot: int, launch_ns: int) -> int:
    """Returns when the batch is launched, flushed stores waited for."""
    storage = engine.storage
    connection = storage.connection[0]
    batch = engine.batches.info[slot]
    launch_ns = max(launch_ns, connection.launched_ns)  # it may have waited with the one before
    after_ns = max(launch_ns, engine.queues.counters[0].device_free_ns)
    for i in range(connection.num_old_jobs):
        submit_store(storage, storage.jobs[i], after_ns)
    for i in range(connection.num_old_jobs, connection.num_jobs):
        storage.jobs[i - connection.num_old_jobs] = storage.jobs[i]
    connection.num_jobs -= connection.num_old_jobs
    connection.num_old_jobs = connection.num_jobs

    flushed_ns = launch_ns
    for i in range(batch.num_preempted if connection.kv_role == NO_ROLE else 0):
        flushed_ns = max(flushed_ns, storage.transfers[storage.flushed[i]].store_end_ns)
    connection.stalled_ns += flushed_ns - launch_ns

    counters = engine.queues.counters[0]
    for i in range(connection.num_submitted, counters.num_loading):
        if connection.kv_role == NO_ROLE:
            submit_load(storage, storage.loading[i], flushed_ns)
        else:
            read_remote(storage, storage.loading[i], engine.kv.pool[0].block_size, flushed_ns)
    connection.num_submitted = counters.num_loading
    connection.launched_ns = flushed_ns
    batch.poll_ns = flushed_ns
    return flushed_ns


@compiled
def submit_store(storage: Storage, job: Record, now_ns: int) -> None:
    store = storage.near.store[0]
    ns = transfer_ns(store, job.num_tokens * storage.connection[0].bytes_per_token)
    store.store_free_ns = max(now_ns, store.store_free_ns) + ns
    storage.transfers[job.request].store_end_ns = store.store_free_ns
    storage.use[0].store_ns += ns


@compiled
def submit_load(storage: Storage, r: int, now_ns: int) -> None:
    store = storage.near.store[0]
    transfer = storage.transfers[r]
    counts = storage.use[0]
    num_bytes = transfer.load_tokens * storage.connection[0].bytes_per_token
    ns = transfer_ns(store, num_bytes)
    begin_ns = max(now_ns, store.load_free_ns)
    store.load_free_ns = begin_ns + ns
    transfer.load_end_ns = store.load_free_ns
    counts.loads += 1
    counts.loaded_tokens += transfer.load_tokens
    counts.loaded_bytes += num_bytes
    counts.load_ns += ns
    counts.link_wait_ns += begin_ns - now_ns


@compiled
def transfers_pending(engine: Engine) -> bool:
    return engine.queues.counters[0].num_loading > 0 or engine.storage.connection[0].num_held > 0


@compiled
def next_transfer_ns(engine: Engine) -> int:
    """When the next load ends, or the last store of a request whose blocks are held."""
    storage = engine.storage
    connection = storage.connection[0]
    earliest = FOREVER
    if engine.queues.counters[0].num_loading > 0:
        earliest = storage.transfers[storage.loading[0]].load_end_ns
    for i in range(connection.num_held):
        earliest = min(earliest, storage.transfers[storage.held[i]].store_end_ns)
    return earliest
