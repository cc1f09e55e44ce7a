"""The engine's state: numpy record arrays, grouped by role.

`request = kv.requests[r]` is a reference into the array: reading and writing its fields works the
same in compiled code and in plain Python. Scalars live in one-record arrays (`kv.pool[0]`), because
compiled code can change an array but not a number it was passed.

Requests, blocks and block hashes are integers. A field ending in `_ns` is integer nanoseconds of
simulated time; `NEVER` stands for a time that has not come.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.core.latency import Latency

NEVER = -1
NONE = -1
PENDING = -1  # TierChunk.ref_cnt
FOREVER = np.iinfo(np.int64).max

# Request.status
UNBORN, WAITING, RUNNING, PREEMPTED, FINISHED, REFUSED, WAITING_FOR_REMOTE_KVS = range(7)

# Settings.engine: whose scheduler forms the batches
VLLM, INFINILM = range(2)

# Settings.admission, InfiniLM's: what a running request reserves
LEGACY, EXACT_SCAN, INCREMENTAL = range(3)

# Settings.policy
FCFS, PRIORITY = range(2)

# Settings.kv_connector
NO_CONNECTOR, LMCACHE, OFFLOADING = range(3)

# Connection.kv_role
NO_ROLE, KV_PRODUCER, KV_CONSUMER = range(3)

# What `advance` returns
DONE, REACHED_UNTIL, LOG_FULL, STUCK, LIVELOCK, SOME_FINISHED = range(6)

# Event.kind
SCHEDULED_NEW, SCHEDULED_RESUMED, SCHEDULED_RUNNING, EVENT_PREEMPTED, EVENT_FINISHED = range(5)
# Of OFFLOADING only: a load begins (with its tokens) and is reported done; a store is prepared (with
# its tokens); a finished request's stores are reported done.
EVENT_LOAD, EVENT_LOADED, EVENT_STORE, EVENT_STORED = range(5, 9)


def _record(fields: dict[str, str]) -> np.dtype[np.void]:
    return np.dtype(list(fields.items()), align=True)


# What a step touches of a request: 64 bytes, one cache line.
REQUEST = _record(
    {
        "num_tokens": "i4",  # prompt plus output tokens known so far
        "num_computed_tokens": "i4",
        "num_output_placeholders": "i4",  # tokens of batches in flight (asynchronous scheduling)
        "num_blocks": "i4",  # held, in block_table[block_table_start:][:num_blocks]
        "num_cached_blocks": "i4",  # of those, the leading ones that are in the hash index
        "end_num_tokens": "i4",  # finished when num_tokens reaches it
        "status": "i4",
        "stride_from": "i4",  # the first batch it is in without being named (stride.py), or NONE
        "last_token_ns": "i8",
        "block_table_start": "i8",
        "block_hashes_start": "i8",
        "num_preemptions": "i4",
        "num_cached_tokens": "i4",  # prefix hit at its first admission
    }
)

# The rest of it.
REQUEST_INFO = _record(
    {
        "arrival_ns": "i8",
        "queued_ns": "i8",
        "first_scheduled_ns": "i8",
        "first_token_ns": "i8",
        "tool_ns": "i8",
        "num_prompt_tokens": "i4",
        "next_in_session": "i4",
        "num_external_tokens": "i4",  # of num_cached_tokens, those the storage tiers gave
        "num_far_tokens": "i4",  # of these, those of the far tier
        "num_life_tokens": "i4",  # prompt plus the most it may generate (admission.py)
        "priority": "i4",
        "id_rank": "i4",  # position of its id among all ids sorted as strings
    }
)

BLOCK = _record(
    {
        "ref_cnt": "i4",
        "block_hash": "i4",  # NONE while it is not in the index
        "prev_free": "i4",
        "next_free": "i4",
        "prev_same_hash": "i4",
        "next_same_hash": "i4",
        "used": "i4",  # 1 once it was handed out
        "_pad": "i4",  # to 32 bytes: never across two cache lines
    }
)

# hash -> the blocks that hold it, first inserted first
CACHED_BLOCKS = _record({"first": "i4", "last": "i4"})

TIER_CHUNK = _record(
    {
        "block_hash": "i4",  # NONE while the place is free
        "prev": "i4",  # in order of use
        "next": "i4",  # in order of use, or the next free place
        "ref_cnt": "i4",  # loads under way; PENDING while it is being stored
        "next_pending": "i4",  # the next chunk that the same request is storing
        "_pad": "i4",
    }
)

# A tier's own state: one record, shared by every engine that uses the tier.
TIER_STORE = _record(
    {
        "capacity": "i8",  # chunks; 0: there is no such tier
        "num_chunks": "i8",
        "num_places": "i8",  # places used so far; those given back are in a list
        "free_place": "i8",
        "head": "i8",  # sentinels of the order of use, as indices into chunks
        "tail": "i8",
        "bytes_per_ns": "f8",
        "latency_ns": "i8",
        "load_free_ns": "i8",  # when the link is free again, tier to device
        "store_free_ns": "i8",  # the other direction
        "evicted_chunks": "i8",
    }
)

# What one engine moved to and from one tier.
TIER_USE = _record(
    {
        "loads": "i8",
        "loaded_tokens": "i8",
        "loaded_bytes": "i8",
        "load_ns": "i8",  # on the link
        "link_wait_ns": "i8",  # loads waiting for the link
        "batch_ns": "i8",  # LMCACHE: on the link for the batch being formed
        "stores": "i8",
        "stored_chunks": "i8",
        "written_bytes": "i8",
        "store_ns": "i8",  # OFFLOADING: on the link
        "failed_stores": "i8",  # everything in the tier was pinned
    }
)

# How an engine is connected to its tiers; one record.
CONNECTION = _record(
    {
        "tokens_per_chunk": "i8",
        "blocks_per_chunk": "i8",
        "bytes_per_token": "i8",  # of all ranks
        "stalled_ns": "i8",  # steps delayed by loads, or by stores that had to be flushed
        "waiting_ns": "i8",  # requests in WAITING_FOR_REMOTE_KVS, all together
        "num_given_back": "i8",  # requests that lost loaded blocks to end a deadlock
        # vLLM's PrefixCacheStats of the connector, at every admission
        "queries": "i8",
        "hits": "i8",
        "preempted_queries": "i8",
        "preempted_hits": "i8",
        # OFFLOADING
        "num_submitted": "i8",  # of those who load, on the link already
        "num_held": "i8",
        "num_jobs": "i8",
        "launched_ns": "i8",  # when the workers launched the newest batch
        "num_old_jobs": "i8",  # of those, prepared with the batch before
        # KV caches between instances (kv_transfer.py)
        "kv_role": "i8",
        "by_layer": "i8",  # 1: sent while the prompt is computed; 0: read once it has been
        "instance": "i8",  # this engine's place in Storage.kv_links
        "kv_bytes_per_token": "i8",  # of all ranks and layers; by layer: of one layer
        "kv_send_links": "i8",  # by layer: over so many at once
        "kv_layers": "i8",
        "kv_bytes_per_ns": "f8",  # of one rank's link
        "kv_latency_ns": "i8",
    }
)

# One instance's links to the others.
KV_LINK = _record(
    {
        "num_shards": "i8",  # ranks that hold different parts of a KV cache
        "out_free_ns": "i8",
        "in_free_ns": "i8",
    }
)

# What OFFLOADING keeps of a request.
TRANSFER = _record(
    {
        "load_begin_ns": "i8",
        "load_end_ns": "i8",
        "store_end_ns": "i8",
        "told_step": "i8",  # the first step formed after it finished
        "load_first_chunk": "i4",
        "load_end_chunk": "i4",
        "load_tokens": "i4",
        "loaded": "i4",  # 1: reported, but not looked at since
        "next_stored_chunk": "i4",
        "first_pending": "i4",  # a place in the tier
        "has_stored": "i4",
        "prefill_instance": "i4",  # that holds its KV cache, NONE: none does (any more)
    }
)

STORE_JOB = _record({"request": "i4", "num_tokens": "i4"})

POOL = _record(
    {
        "block_size": "i8",
        "num_usable_blocks": "i8",
        "num_free_blocks": "i8",
        "free_head": "i8",  # sentinels of the free queue, as indices into blocks
        "free_tail": "i8",
        "enable_caching": "i8",
        "min_free_blocks": "i8",
        "reused_blocks": "i8",  # blocks handed out that somebody had used before
        "failed_allocations": "i8",
        "evicted_blocks": "i8",
        # vLLM's PrefixCacheStats: every lookup, retries of a blocked admission included
        "queries": "i8",
        "hits": "i8",
        "preempted_queries": "i8",
        "preempted_hits": "i8",
    }
)

SETTINGS = _record(
    {
        "engine": "i8",
        "admission": "i8",
        "max_num_seqs": "i8",
        "max_num_batched_tokens": "i8",
        "max_model_len": "i8",
        "enable_chunked_prefill": "i8",
        "long_prefill_token_threshold": "i8",
        "scheduler_reserve_full_isl": "i8",
        "policy": "i8",
        "async_scheduling": "i8",
        "batch_queue_size": "i8",
        "stride": "i8",
        "host_ns_per_step": "i8",
        "host_ns_per_request": "i8",
        "empty_step_ns": "i8",
        "max_steps_without_token": "i8",
        "log_events": "i8",
        "report_finished": "i8",
        "lockstep": "i8",
        "routed": "i8",
        "kv_connector": "i8",
    }
)

COUNTERS = _record(
    {
        "num_running": "i8",
        "num_preempted_waiting": "i8",
        "fresh_head": "i8",  # fresh[fresh_head:fresh_tail] wait for their first admission
        "fresh_tail": "i8",
        "heap_size": "i8",
        "next_arrival": "i8",  # position in arrival_order
        "num_released": "i8",  # size of the heap of released session calls
        "num_reported": "i8",  # size of finished
        "num_unfinished": "i8",  # queued or running
        "num_to_come": "i8",  # neither queued, running, finished nor refused
        "finished_to_report": "i8",  # vLLM schedules once more to tell workers who finished
        "now_ns": "i8",
        "device_free_ns": "i8",
        "must_wait": "i8",  # the next thing to do is to wait for the oldest batch
        "oldest_batch": "i8",
        "num_batches": "i8",
        "num_steps": "i8",
        "num_updates": "i8",
        "steps_without_token": "i8",
        "last_update_ns": "i8",
        "num_strided": "i8",  # stride.py
        "offset_sum": "i8",
        "offset_max": "i8",
        "offset_min": "i8",
        "offsets_stale": "i8",
        "num_preemptions": "i8",
        "num_generated_tokens": "i8",
        "hit_tokens_all_admissions": "i8",
        "admissions": "i8",
        # InfiniLM's (admission.py)
        "num_reserved_decode_blocks": "i8",
        "peak_reserved_decode_blocks": "i8",
        "peak_required_blocks": "i8",  # a pool this large accepts whatever was accepted
        # OFFLOADING
        "num_skipped": "i8",
        "num_loading": "i8",
        "changed": "i8",  # the batch being applied did more than computing
        "idle": "i8",  # nothing happens before a transfer ends or a request arrives
    }
)

BATCH = _record(
    {
        "step": "i8",
        "num_requests": "i8",
        "num_entries": "i8",  # requests named in entries; the others are in stride
        "num_strided": "i8",
        "num_tokens": "i8",
        "num_admitted": "i8",
        "num_preempted": "i8",
        "prefill_chunk": "i8",
        "kv_prefill": "i8",
        "num_decodes": "i8",
        "kv_decode_sum": "i8",
        "kv_decode_max": "i8",
        "kv_decode_min": "i8",
        "load_ns": "i8",  # moving what a storage tier gives, before the batch runs
        "start_ns": "i8",
        "end_ns": "i8",
        "poll_ns": "i8",  # transfers that have ended by then are reported with its output
    }
)

BATCH_ENTRY = _record(
    {
        "request": "u4",
        "num_scheduled_tokens": "i4",
        "num_computed_tokens": "i4",  # before this step
        "samples": "i4",  # 1: this batch gives it a token
    }
)

# What only the event log asks of a batch entry.
BATCH_DETAIL = _record({"kind": "i4", "num_new_blocks": "i4"})

STEP = _record(
    {
        "formed_ns": "i8",
        "start_ns": "i8",
        "end_ns": "i8",
        "update_ns": "i8",
        "load_ns": "i8",
        "kv_prefill": "i8",
        "kv_decode": "i8",
        "num_requests": "i4",
        "num_tokens": "i4",
        "prefill_tokens": "i4",
        "num_decodes": "i4",
        "num_admitted": "i4",
        "num_preempted": "i4",
        "num_sampled": "i4",
        "num_finished": "i4",
        "running_after_schedule": "i4",
        "waiting_after_schedule": "i4",
        "free_after_schedule": "i4",
        "running_after_update": "i4",
        "waiting_after_update": "i4",
        "free_after_update": "i4",
        "formed_before_update": "i4",  # steps formed when this one's output was applied
        "prefix_queries": "i4",
        "prefix_hits": "i4",
        "preempted_queries": "i4",
        "preempted_hits": "i4",
        "num_reserved_decode_blocks": "i4",  # InfiniLM's, after the batch was formed
        "loading_after_schedule": "i4",
    }
)

EVENT = _record(
    {
        "step": "i4",
        "kind": "i4",
        "request": "i4",
        "num_scheduled_tokens": "i4",
        "num_computed_tokens": "i4",
        "num_new_blocks": "i4",
        "samples": "i4",
    }
)

INTERVAL = _record({"ns": "i8", "count": "i8"})

LOG_SIZES = _record({"num_events": "i8", "num_intervals": "i8"})

# What steps waited for memories outside the device, beyond what is in the step tables.
MEMORY_WAITS = _record({"weights_ns": "i8", "kv_ns": "i8"})

# Arrays of records, and one record: their fields are attributes that type checkers cannot know.
Records = Any
Record = Any


class KVCache(NamedTuple):
    """Who holds which block, and which blocks hold which content."""

    requests: Records  # REQUEST[n]
    infos: Records  # REQUEST_INFO[n]
    blocks: Records  # BLOCK[num_usable_blocks + 2]: two sentinels last
    cached_blocks: Records  # CACHED_BLOCKS[number of distinct block hashes]
    block_table: NDArray[np.int32]
    block_hashes: NDArray[np.int32]
    pool: Records  # POOL[1]


class Tier(NamedTuple):
    """Prefix storage outside the device. Several engines may hold the same one."""

    place: NDArray[np.int32]  # block hash -> index into chunks, or NONE
    chunks: Records  # TIER_CHUNK[capacity + 2]: two sentinels last
    store: Records  # TIER_STORE[1]


class Storage(NamedTuple):
    """The tiers of one engine, in the order they are looked up, and its traffic with them."""

    near: Tier
    far: Tier
    use: Records  # TIER_USE[2]: of near, of far
    connection: Records  # CONNECTION[1]
    pinned: NDArray[np.int8]  # LMCACHE: at the chunk's last block hash, 1 near, 2 far
    transfers: Records  # OFFLOADING: TRANSFER[n]
    being_loaded: NDArray[np.int8]  # OFFLOADING: block hash -> 1 while this engine loads its chunk
    loading: NDArray[np.int32]  # OFFLOADING: requests, in the order of their loads
    held: NDArray[np.int32]  # OFFLOADING: finished requests whose blocks are still being stored
    jobs: Records  # OFFLOADING: STORE_JOB[2 * max_num_seqs], not yet on the link
    flushed: NDArray[np.int32]  # OFFLOADING: requests preempted by the batch being formed
    kv_links: Records  # KV_LINK[instances of a cluster], shared by them
    kv_ready_ns: NDArray[np.int64]  # by layer: [before, after] a block's attention x tokens


class Queues(NamedTuple):
    """Who comes next. Each array holds request indices; sizes are in COUNTERS."""

    running: NDArray[np.uint32]  # unsigned: numba then need not ask whether an index is negative
    due: NDArray[np.int64]  # beside running: from which batch on the plain rules apply again
    preempted: NDArray[np.int32]  # a stack: the last preempted is the first to resume
    fresh: NDArray[np.int32]  # fcfs: in order of arrival; InfiniLM: who was deferred goes last
    heap: NDArray[np.int32]  # priority policy: everyone who waits
    skipped: NDArray[np.int32]  # fcfs: passed over because of a load; before all others who wait
    arrival_order: NDArray[np.int32]
    released: NDArray[np.int32]  # heap of session calls whose arrival became known
    finished: NDArray[np.int32]  # with settings.report_finished: whom nobody has looked at yet
    counters: Records  # COUNTERS[1]


class Batches(NamedTuple):
    """The batches in flight: a ring of `batch_queue_size`."""

    info: Records  # BATCH[batch_queue_size]
    entries: Records  # BATCH_ENTRY[batch_queue_size, max_num_seqs]
    details: Records  # BATCH_DETAIL, the same shape; kept up only with settings.log_events


class Log(NamedTuple):
    """What steps leave behind; grown from Python when `advance` returns LOG_FULL."""

    steps: Records  # STEP[...]
    events: Records  # EVENT[...], empty unless settings.log_events
    intervals: Records  # INTERVAL[...]: run-length coded inter-token times
    sizes: Records  # LOG_SIZES[1]


class Placed(NamedTuple):
    """Memories outside the device that hold weights or KV cache (placement.py)."""

    free_ns: NDArray[np.int64]  # by memory: when its link is free, within a step
    ended_ns: NDArray[np.int64]  # beside latency.reads: when their layers have run, within a step
    waits: Records  # MEMORY_WAITS[1]


class Engine(NamedTuple):
    """One instance: of vLLM, or of InfiniLM on the same pool."""

    settings: Records  # SETTINGS[1]
    kv: KVCache
    storage: Storage
    queues: Queues
    batches: Batches
    latency: Latency
    stage_free_ns: NDArray[np.int64]  # when each pipeline stage can start its next batch
    placed: Placed
    outside: Records  # latency.OUTSIDE[...]: lookups outside the measured grid
    log: Log
