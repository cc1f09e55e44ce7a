"""From a workload, settings and step tables to the core's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.core import state
from simulator.core.latency import Latency
from simulator.core.log import INTERVALS_PER_SEAT, events_of_a_step
from simulator.core.state import Engine
from simulator.kv_transfer import Handover, KVTransferSettings
from simulator.prefix import BlockHashes
from simulator.records import one, records
from simulator.step_tables import new_outside
from simulator.storage import CONNECTORS, TierSettings, build_storage
from simulator.workloads import Workload

ADMISSIONS = {
    "legacy": state.LEGACY,
    "exact-scan": state.EXACT_SCAN,
    "incremental": state.INCREMENTAL,
}
INITIAL_STEPS = 8192
INITIAL_INTERVALS = 16384


@dataclass(frozen=True)
class EngineSettings:
    """The scheduler's settings with everything resolved: counts, ns, no None."""

    num_gpu_blocks: int
    max_model_len: int
    block_size: int = 16
    null_block: bool = True
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    policy: str = "fcfs"
    engine: str = "vllm"
    admission: str = "legacy"
    """Of engine infinilm: legacy, exact-scan or incremental."""
    async_scheduling: bool = False
    host_ns_per_step: int = 0
    host_ns_per_request: int = 0
    empty_step_ns: int = 0
    kv_connector: str = "LMCacheConnectorV1"
    tiers: tuple[TierSettings, ...] = ()
    """In the order they are looked up: at most two, of equal chunks and bytes per token."""
    log_events: bool = False
    report_finished: bool = False
    """Stop when requests have finished, so that a cluster can look at them."""
    lockstep: bool = False
    """Batches end when those of a data-parallel group do."""
    routed: bool = False
    """Requests do not arrive by themselves: a cluster's router hands them over."""
    kv_transfer: KVTransferSettings | None = None
    """Of a cluster's prefill or decode instance."""
    stride: bool = True
    """Whether core/stride.py may take its short cut. Results are the same without it."""

    @property
    def uses_tiers(self) -> bool:
        return bool(self.tiers) and self.enable_prefix_caching

    @property
    def connector(self) -> int:
        """Which of the core's connectors runs. Sending by layer needs none."""
        if self.kv_transfer is not None:
            sends = self.kv_transfer.role == state.KV_PRODUCER and self.kv_transfer.by_layer
            return state.NO_CONNECTOR if sends else state.OFFLOADING
        return CONNECTORS[self.kv_connector] if self.uses_tiers else state.NO_CONNECTOR

    @property
    def only_prefills(self) -> bool:
        """Whether a request is done with its first token, and goes on elsewhere."""
        return self.kv_transfer is not None and self.kv_transfer.role == state.KV_PRODUCER

    @property
    def offloads(self) -> bool:
        return self.connector == state.OFFLOADING

    @property
    def num_usable_blocks(self) -> int:
        return self.num_gpu_blocks - 1 if self.null_block else self.num_gpu_blocks

    @property
    def is_infinilm(self) -> bool:
        return self.engine == "infinilm"


def end_num_tokens(
    workload: Workload, max_model_len: int, only_prefills: bool = False
) -> NDArray[np.int64]:
    """Tokens at which each request is finished: prompt plus output (one), or max_model_len."""
    output = 1 if only_prefills else workload.num_output_tokens
    total = workload.num_prompt_tokens.astype(np.int64) + output
    end: NDArray[np.int64] = np.minimum(total, max_model_len)
    return end


def num_life_tokens(workload: Workload, max_model_len: int) -> NDArray[np.int64]:
    """Tokens each request may grow to, as its max_tokens says: what InfiniLM reserves blocks for."""
    most = workload.num_output_tokens if workload.max_tokens is None else workload.max_tokens
    life: NDArray[np.int64] = np.minimum(
        workload.num_prompt_tokens.astype(np.int64) + most, max_model_len
    )
    return life


def refusals(workload: Workload, settings: EngineSettings) -> dict[int, str]:
    """Requests that can never run, with the reason. Their sessions end with them.

    vLLM's front end refuses a prompt that leaves no room for a token. A request that outgrows the
    whole pool would make vLLM wait for ever; here it is refused. The last token needs no slot, but
    InfiniLM reserves one for it, and for every other token that max_tokens allows.
    """
    prompts = workload.num_prompt_tokens
    slots = (
        num_life_tokens(workload, settings.max_model_len)
        if settings.is_infinilm
        else end_num_tokens(workload, settings.max_model_len, settings.only_prefills) - 1
    )
    blocks = -(-slots // settings.block_size)
    too_long = prompts >= settings.max_model_len
    too_large = blocks > settings.num_usable_blocks
    refused: dict[int, str] = {}
    for r in np.flatnonzero(too_long | too_large).tolist():
        refused[r] = (
            f"prompt of {prompts[r]} tokens, max_model_len is {settings.max_model_len}"
            if too_long[r]
            else f"needs {blocks[r]} blocks, the pool has {settings.num_usable_blocks}"
        )
    return refused if settings.routed else with_their_sessions(refused, workload)


def with_their_sessions(refused: dict[int, str], workload: Workload) -> dict[int, str]:
    """The same, and every call that comes after one of them."""
    refused = dict(refused)
    if refused and (workload.session_parent >= 0).any():
        for r, parent in enumerate(workload.session_parent.tolist()):
            if parent in refused and r not in refused:
                refused[r] = f"the call before it, {workload.request_ids[parent]}, was refused"
    return refused


def build_engine(
    workload: Workload,
    hashes: BlockHashes,
    settings: EngineSettings,
    latency: Latency,
    arrival_ns: NDArray[np.int64] | None = None,
    tiers: Sequence[state.Tier | None] = (),
    between: Handover | None = None,
    instance: int = 0,
) -> tuple[Engine, dict[int, str]]:
    """The engine before its first step, and the requests it refuses with the reasons.

    `tiers`: those it shares with other engines, from `build_tier` with the same settings and the
    same numbering of hashes; None is one of its own. `between`: with settings.kv_transfer, what the
    instances of a cluster share, of which this one is number `instance`.
    """
    refused = refusals(workload, settings)
    arrival = workload.arrival_ns if arrival_ns is None else arrival_ns
    requests = _requests(workload, hashes, settings, refused)
    n = len(requests)
    blocks_needed = -(-(requests.end_num_tokens.astype(np.int64) - 1) // settings.block_size)
    table_start = np.zeros(n + 1, np.int64)
    np.cumsum(np.where(requests.status == state.REFUSED, 0, blocks_needed), out=table_start[1:])
    requests.block_table_start = table_start[:-1]

    kv = state.KVCache(
        requests=requests,
        infos=_infos(workload, settings, arrival, refused),
        blocks=_blocks(settings.num_usable_blocks),
        cached_blocks=_cached_blocks(hashes.count),
        block_table=np.zeros(max(1, int(table_start[-1])), np.int32),
        block_hashes=hashes.ids,
        pool=_pool(settings),
    )
    comes = (workload.session_parent < 0) & (requests.status != state.REFUSED)
    roots = np.flatnonzero(comes & (not settings.routed))
    order = roots[np.argsort(arrival[roots], kind="stable")].astype(np.int32)
    counters = one(state.COUNTERS)
    counters.num_to_come = 0 if settings.routed else n - len(refused)
    seats, places = settings.max_num_seqs + 1, n + 1
    if settings.is_infinilm:
        # Its limit is of a batch: more may run, each with a block of its own. Deferred requests go
        # to the end of the queue, see core/infinilm.py.
        seats = max(seats, min(n, settings.num_usable_blocks) + 1)
        places *= 2
    queues = state.Queues(
        running=np.zeros(seats, np.uint32),
        due=np.zeros(seats, np.int64),
        preempted=np.zeros(settings.max_num_seqs + 1, np.int32),
        fresh=np.zeros(places, np.int32),
        heap=np.zeros(n + 1 if settings.policy == "priority" else 1, np.int32),
        skipped=np.zeros(n + 1 if settings.offloads else 1, np.int32),
        arrival_order=order,
        released=np.zeros(n - len(order) + 1, np.int32),
        finished=np.zeros(seats if settings.report_finished else 1, np.int32),
        counters=counters,
    )
    num_stages = len(latency.stage_layers)
    depth = num_stages if num_stages > 1 else 2 if settings.async_scheduling else 1
    batches = state.Batches(
        info=records(depth, state.BATCH),
        entries=records((depth, settings.max_num_seqs), state.BATCH_ENTRY),
        details=records((depth, settings.max_num_seqs), state.BATCH_DETAIL),
    )
    log = state.Log(
        steps=records(INITIAL_STEPS, state.STEP),
        events=records(4 * settings.max_num_seqs + 4096 if settings.log_events else 1, state.EVENT),
        intervals=records(INITIAL_INTERVALS + settings.max_num_seqs, state.INTERVAL),
        sizes=one(state.LOG_SIZES),
    )
    engine = Engine(
        settings=_settings(settings, depth, int(requests.end_num_tokens.max(initial=1))),
        kv=kv,
        storage=build_storage(settings, hashes, n, tiers, between, instance),
        queues=queues,
        batches=batches,
        latency=latency,
        stage_free_ns=np.zeros(num_stages, np.int64),
        placed=state.Placed(
            free_ns=np.zeros(len(latency.memory_bytes_per_ns), np.int64),
            ended_ns=np.zeros(len(latency.reads), np.int64),
            waits=one(state.MEMORY_WAITS),
        ),
        outside=new_outside(latency),
        log=log,
    )
    return engine, refused


def grow_log(engine: Engine) -> Engine:
    """Room for at least one more step of what steps leave behind; what is there is kept."""
    log, sizes = engine.log, engine.log.sizes[0]
    seats = int(engine.settings[0].max_num_seqs)
    events = log.events
    if engine.settings[0].log_events:
        # Compiled, it cannot be called from here; the function behind it can.
        room = getattr(events_of_a_step, "py_func", events_of_a_step)(engine)
        events = _grown(events, int(sizes.num_events), int(room))
    return engine._replace(
        log=log._replace(
            steps=_grown(log.steps, int(engine.queues.counters[0].num_steps), 1),
            intervals=_grown(log.intervals, int(sizes.num_intervals), INTERVALS_PER_SEAT * seats),
            events=events,
        )
    )


def _grown(array: state.Records, used: int, room: int) -> state.Records:
    """The array itself if it has room, else one at least twice as large."""
    if used + room <= len(array):
        return array
    larger = records(max(2 * len(array), used + room), array.dtype)
    larger[:used] = array[:used]
    return larger


def _requests(
    workload: Workload, hashes: BlockHashes, settings: EngineSettings, refused: dict[int, str]
) -> state.Records:
    requests = records(len(workload), state.REQUEST)
    requests.num_tokens = workload.num_prompt_tokens
    requests.end_num_tokens = end_num_tokens(
        workload, settings.max_model_len, settings.only_prefills
    )
    requests.status = state.UNBORN
    requests.block_hashes_start = hashes.offsets[:-1]
    requests.last_token_ns = state.NEVER
    requests.num_cached_tokens = state.NONE
    requests.stride_from = state.NONE
    requests.status[list(refused)] = state.REFUSED
    return requests


def _infos(
    workload: Workload,
    settings: EngineSettings,
    arrival: NDArray[np.int64],
    refused: dict[int, str],
) -> state.Records:
    n = len(workload)
    infos = records(n, state.REQUEST_INFO)
    infos.arrival_ns = arrival
    for field in ("queued_ns", "first_scheduled_ns", "first_token_ns"):
        infos[field] = state.NEVER
    infos.tool_ns = workload.tool_ns
    infos.num_prompt_tokens = workload.num_prompt_tokens
    infos.num_life_tokens = num_life_tokens(workload, settings.max_model_len)
    infos.next_in_session = state.NONE
    if not settings.routed:  # of a cluster, who comes next in a session is the router's business
        children = np.flatnonzero(workload.session_parent >= 0)
        children = children[~np.isin(children, list(refused))]
        infos.next_in_session[workload.session_parent[children]] = children
    infos.priority = workload.priority
    if settings.policy == "priority":
        infos.id_rank[sorted(range(n), key=workload.request_ids.__getitem__)] = np.arange(n)
    return infos


def _blocks(num_usable_blocks: int) -> state.Records:
    """All blocks in the free queue, lowest first; the last two records are its sentinels."""
    n = num_usable_blocks
    blocks = records(n + 2, state.BLOCK)
    head, tail = n, n + 1
    blocks.block_hash = state.NONE
    blocks.next_free[:n] = np.arange(1, n + 1)
    blocks.prev_free[:n] = np.arange(-1, n - 1)
    blocks.next_free[head], blocks.prev_free[head] = 0, state.NONE
    blocks.prev_free[0] = head
    blocks.next_free[n - 1] = tail
    blocks.prev_free[tail], blocks.next_free[tail] = n - 1, state.NONE
    return blocks


def _cached_blocks(num_hashes: int) -> state.Records:
    cached = records(max(1, num_hashes), state.CACHED_BLOCKS)
    cached.first = state.NONE
    cached.last = state.NONE
    return cached


def _pool(settings: EngineSettings) -> state.Records:
    pool = one(state.POOL)
    n = settings.num_usable_blocks
    pool.block_size = settings.block_size
    pool.num_usable_blocks = pool.num_free_blocks = pool.min_free_blocks = n
    pool.free_head, pool.free_tail = n, n + 1
    pool.enable_caching = settings.enable_prefix_caching
    return pool


def _settings(settings: EngineSettings, depth: int, longest: int) -> state.Records:
    record = one(state.SETTINGS)
    for field in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "scheduler_reserve_full_isl",
        "async_scheduling",
        "host_ns_per_step",
        "host_ns_per_request",
        "empty_step_ns",
        "log_events",
        "report_finished",
        "lockstep",
        "routed",
    ):
        record[field] = getattr(settings, field)
    record.engine = state.INFINILM if settings.is_infinilm else state.VLLM
    record.admission = ADMISSIONS[settings.admission]
    # A prefill batch of InfiniLM's leaves out everybody who decodes: nobody keeps in stride.
    record.stride = (
        settings.stride
        and settings.policy == "fcfs"
        and not settings.log_events
        and not settings.is_infinilm
        and depth == 1 + settings.async_scheduling  # in stride is who is in every batch
    )
    record.policy = state.PRIORITY if settings.policy == "priority" else state.FCFS
    record.batch_queue_size = depth
    record.kv_connector = settings.connector
    # The head of the line computes at least one token a step, so it samples within as many steps as
    # it has tokens; a few preemptions may make it start over.
    record.max_steps_without_token = 1000 + 4 * longest
    return record
