"""One vLLM V1 instance as a plain Python loop: what the compiled core is measured against.

Synchronous, fcfs, with chunked prefill, prefix caching and the whole-sequence gate. It shares no
rule with the core, only what was prepared for it: requests, numbered block hashes and step tables,
turned into objects and lists before it runs. Its clock is the core's to the ns.

It keeps less than the core: when steps ended, first and last tokens; no further step records, no
inter-token times, no account of lookups outside the measured grid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from itertools import islice
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from profiles.errors import InputError
from simulator.build import EngineSettings, end_num_tokens, refusals
from simulator.core.latency import LINEAR_LAW, Latency
from simulator.core.state import Engine
from simulator.prefix import BlockHashes
from simulator.workloads import Workload

NEVER = -1

# What the loop has no rules for: the only value it takes of a setting.
DEMANDED = {
    "engine": "vllm",
    "async_scheduling": False,
    "policy": "fcfs",
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "scheduler_reserve_full_isl": True,
    "long_prefill_token_threshold": 0,
    "tiers": (),
}


class Shape(NamedTuple):
    """What a batch's duration depends on; lengths are those before the step."""

    num_tokens: int
    num_seqs: int
    prefill_chunk: int
    kv_prefill: int
    n_decode: int
    kv_sum: int
    kv_max: int
    kv_min: int


class Law(Protocol):
    def step_ns(self, shape: Shape) -> int: ...


class LinearLaw:
    """A step's duration without tables."""

    def __init__(self, params: Any) -> None:
        self.base_ns = int(params.base_ns)
        self.per_token_ns = int(params.per_token_ns)
        self.per_kv_token_ns = int(params.per_kv_token_ns)
        self.per_request_ns = int(params.per_request_ns)

    def step_ns(self, shape: Shape) -> int:
        kv_tokens = shape.kv_prefill + shape.prefill_chunk + shape.kv_sum + shape.n_decode
        return (
            self.base_ns
            + self.per_token_ns * shape.num_tokens
            + self.per_kv_token_ns * kv_tokens
            + self.per_request_ns * shape.num_seqs
        )


Row = tuple[list[int], list[float]]  # kv_decode samples, ns
Slice = tuple[list[int], list[Row]]  # kv_prefill samples, a row for each


def bracket(keys: list[int], query: int) -> tuple[int, float]:
    """The sample below and how far the query is towards the next: clamped below, not above."""
    if query <= keys[0] or len(keys) == 1:
        return 0, 0.0
    low = bisect_right(keys, query, 1, len(keys) - 1) - 1
    below = keys[low]
    return low, (query - below) / (keys[low + 1] - below)


class MeasuredTables:
    """The dense and per-sequence layers by count, attention by bisection."""

    def __init__(self, latency: Latency) -> None:
        params = latency.params[0]
        self.num_layers = int(params.num_layers)
        self.tokens_ns: list[int] = latency.tokens_ns.tolist()
        self.sequences_ns: list[int] = latency.sequences_ns.tolist()
        self.chunk_low, self.chunk_t = latency.chunk_lo.tolist(), latency.chunk_t.tolist()
        self.decode_low, self.decode_t = latency.decode_lo.tolist(), latency.decode_t.tolist()
        slices = slices_of(latency)
        width = int(params.num_decode_samples)
        corners = [slices[i] for i in latency.slice_of.tolist()]
        self.slices = [corners[i : i + width] for i in range(0, len(corners), width)]

        self.num_decode_buckets = int(params.num_skew_decode_buckets)
        self.alpha: list[float] = latency.alpha.tolist()
        self.alpha_chunk = latency.alpha_chunk.tolist()
        self.alpha_decode = latency.alpha_decode.tolist()
        # The last bucket has no end.
        self.rate_edges = latency.skew_rate_edges.tolist()[:-1]
        self.kv_max_edges = latency.kv_max_edges.tolist()[:-1]
        self.kv_prefill_edges = latency.kv_prefill_edges.tolist()[:-1]

    def step_ns(self, shape: Shape) -> int:
        return (
            self.tokens_ns[shape.num_tokens]
            + self.sequences_ns[shape.num_seqs]
            + self.num_layers * self.attention_ns(shape)
        )

    def attention_ns(self, shape: Shape) -> int:
        """One layer, read at the mean decode length and corrected for skew."""
        _, _, chunk, kv_prefill, n_decode, kv_sum, kv_max, kv_min = shape
        kv_mean = kv_sum // n_decode if n_decode else 0
        ns = self.grid_ns(chunk, kv_prefill, n_decode, kv_mean)
        if n_decode <= 1 or kv_max == kv_mean or not self.num_decode_buckets:
            return ns
        rate = (kv_mean - kv_min) / (kv_max - kv_min)
        at = self.alpha_chunk[chunk] * self.num_decode_buckets + self.alpha_decode[n_decode]
        at = at * (len(self.rate_edges) + 1) + bisect_left(self.rate_edges, rate)
        at = at * (len(self.kv_max_edges) + 1) + bisect_left(self.kv_max_edges, kv_max)
        at = at * (len(self.kv_prefill_edges) + 1) + bisect_left(self.kv_prefill_edges, kv_prefill)
        alpha = self.alpha[at]
        if alpha == 0.0:
            return ns
        longest_ns = self.grid_ns(chunk, kv_prefill, n_decode, kv_max)
        return max(1, round(ns + alpha * (longest_ns - ns))) if longest_ns > ns else ns

    def grid_ns(self, chunk: int, kv_prefill: int, n_decode: int, kv_decode: int) -> int:
        low, t = self.chunk_low[chunk], self.chunk_t[chunk]
        ns = self.at_chunk(self.slices[low], kv_prefill, n_decode, kv_decode)
        if t:
            above = self.at_chunk(self.slices[low + 1], kv_prefill, n_decode, kv_decode)
            ns += t * (above - ns)
        return max(1, int(ns))

    def at_chunk(
        self, slices: list[Slice], kv_prefill: int, n_decode: int, kv_decode: int
    ) -> float:
        low, t = self.decode_low[n_decode], self.decode_t[n_decode]
        ns = in_slice(slices[low], kv_prefill, kv_decode)
        if t:
            ns += t * (in_slice(slices[low + 1], kv_prefill, kv_decode) - ns)
        return ns


def in_slice(part: Slice, kv_prefill: int, kv_decode: int) -> float:
    samples, rows = part
    low, t = bracket(samples, kv_prefill)
    ns = in_row(rows[low], kv_decode)
    if t:
        ns += t * (in_row(rows[low + 1], kv_decode) - ns)
    return ns


def in_row(row: Row, kv_decode: int) -> float:
    samples, times = row
    low, t = bracket(samples, kv_decode)
    ns = times[low]
    if t:
        ns += t * (times[low + 1] - ns)
    return ns


def slices_of(latency: Latency) -> list[Slice]:
    """The attention grid as nested lists."""
    keys = latency.axis_keys.tolist()
    grid_ns = latency.grid_ns.tolist()
    axes = [keys[a.keys : a.keys + a.count] for a in latency.axes]
    rows: list[Row] = []
    for row in latency.rows:
        axis = axes[row.axis]
        rows.append((axis, grid_ns[row.ns : row.ns + len(axis)]))
    return [
        (axes[part.axis], rows[part.row : part.row + len(axes[part.axis])])
        for part in latency.slices
    ]


class Block:
    __slots__ = ("block_hash", "ref_cnt")

    def __init__(self) -> None:
        self.block_hash: int | None = None
        self.ref_cnt = 0


class BlockPool:
    """The free queue in eviction order, and the blocks that hold each content."""

    def __init__(self, num_blocks: int) -> None:
        self.free_block_queue = OrderedDict.fromkeys(Block() for _ in range(num_blocks))
        self.cached_blocks: dict[int, list[Block]] = {}

    def get_new_block(self) -> Block:
        block, _ = self.free_block_queue.popitem(last=False)
        if block.block_hash is not None:
            self.evict(block)
        block.ref_cnt = 1
        return block

    def evict(self, block: Block) -> None:
        assert block.block_hash is not None
        holders = self.cached_blocks[block.block_hash]
        if len(holders) == 1:
            del self.cached_blocks[block.block_hash]
        else:
            holders.remove(block)
        block.block_hash = None

    def touch(self, block: Block) -> None:
        if block.ref_cnt == 0:
            del self.free_block_queue[block]
        block.ref_cnt += 1

    def cache(self, block: Block, block_hash: int) -> None:
        block.block_hash = block_hash
        holders = self.cached_blocks.get(block_hash)
        if holders is None:
            self.cached_blocks[block_hash] = [block]
        else:
            holders.append(block)

    def free(self, blocks: list[Block]) -> None:
        """Tail first, so that the head of a prefix is evicted last."""
        for block in reversed(blocks):
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue[block] = None


class Request:
    __slots__ = (
        "arrival_ns",
        "block_hashes",
        "blocks",
        "end_num_tokens",
        "first_token_ns",
        "last_token_ns",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_tokens",
    )

    def __init__(
        self, arrival_ns: int, num_tokens: int, end_num_tokens: int, block_hashes: list[int]
    ) -> None:
        self.arrival_ns = arrival_ns
        self.num_tokens = num_tokens
        self.end_num_tokens = end_num_tokens
        self.block_hashes = block_hashes
        self.num_computed_tokens = 0
        self.blocks: list[Block] = []
        self.num_cached_blocks = 0
        self.first_token_ns = NEVER
        self.last_token_ns = NEVER


class PlainLoop:
    """The engine; `run` once. Raises InputError for what it has no rules for."""

    def __init__(
        self,
        workload: Workload,
        hashes: BlockHashes,
        settings: EngineSettings,
        latency: Latency,
        arrival_ns: NDArray[Any] | None = None,
    ) -> None:
        check_supported(workload, settings, latency)
        params = latency.params[0]
        self.law: Law = LinearLaw(params) if params.law == LINEAR_LAW else MeasuredTables(latency)
        self.block_size = settings.block_size
        self.max_num_seqs = settings.max_num_seqs
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self.host_ns_per_step = settings.host_ns_per_step
        self.host_ns_per_request = settings.host_ns_per_request
        self.pool = BlockPool(settings.num_usable_blocks)

        offsets, ids = hashes.offsets.tolist(), hashes.ids.tolist()
        arrival = workload.arrival_ns if arrival_ns is None else arrival_ns
        ends = end_num_tokens(workload, settings.max_model_len)
        columns = zip(
            arrival.tolist(), workload.num_prompt_tokens.tolist(), ends.tolist(), strict=True
        )
        self.requests = [
            Request(*values, ids[offsets[r] : offsets[r + 1]]) for r, values in enumerate(columns)
        ]
        refused = refusals(workload, settings)
        to_come = [request for r, request in enumerate(self.requests) if r not in refused]
        self.to_come = deque(sorted(to_come, key=lambda request: request.arrival_ns))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

        self.now_ns = 0
        self.step_end_ns: list[int] = []
        self.num_preemptions = 0
        self.hit_tokens = 0  # over all admissions
        self.num_generated_tokens = 0

    def run(self) -> None:
        to_come, waiting = self.to_come, self.waiting
        while to_come or waiting or self.running:
            if not waiting and not self.running:
                self.now_ns = max(self.now_ns, to_come[0].arrival_ns)
            while to_come and to_come[0].arrival_ns <= self.now_ns:
                waiting.append(to_come.popleft())
            batch, shape = self.schedule()
            host_ns = self.host_ns_per_step + self.host_ns_per_request * len(batch)
            self.now_ns += host_ns + max(1, self.law.step_ns(shape))
            self.step_end_ns.append(self.now_ns)
            self.update_from_output(batch)

    def schedule(self) -> tuple[list[Request], Shape]:
        """Form a batch: running requests first; waiting ones unless somebody was preempted."""
        block_size = self.block_size
        budget = self.max_num_batched_tokens
        num_preemptions = self.num_preemptions
        batch: list[Request] = []
        decode_lengths: list[int] = []
        prefill_chunk = kv_prefill = 0

        for request in self.running:  # preemption only shortens it, from its tail
            if budget == 0:
                break
            computed = request.num_computed_tokens
            num_new_tokens = request.num_tokens - computed
            if num_new_tokens > budget:  # noqa: PLR1730 (faster than min)
                num_new_tokens = budget
            end = computed + num_new_tokens
            if end > len(request.blocks) * block_size and not self.allocate_slots(request, end):
                break
            if end >= (request.num_cached_blocks + 1) * block_size:
                self.cache_full_blocks(request, end)
            request.num_computed_tokens = end
            budget -= num_new_tokens
            batch.append(request)
            if num_new_tokens == 1:
                decode_lengths.append(computed)
            else:
                prefill_chunk += num_new_tokens
                kv_prefill += computed

        while (
            self.waiting
            and budget > 0
            and len(self.running) < self.max_num_seqs
            and self.num_preemptions == num_preemptions
        ):
            hit_blocks = self.get_computed_blocks(self.waiting[0])
            if not self.whole_sequence_fits(self.waiting[0], hit_blocks):
                break
            request = self.waiting.popleft()
            self.running.append(request)
            for block in hit_blocks:
                self.pool.touch(block)
            request.blocks = hit_blocks
            request.num_cached_blocks = len(hit_blocks)
            computed = len(hit_blocks) * block_size
            self.hit_tokens += computed
            num_new_tokens = min(request.num_tokens - computed, budget)
            end = computed + num_new_tokens
            self.append_blocks(request, end)
            self.cache_full_blocks(request, end)
            request.num_computed_tokens = end
            budget -= num_new_tokens
            batch.append(request)
            if num_new_tokens == 1:
                decode_lengths.append(computed)
            else:
                prefill_chunk += num_new_tokens
                kv_prefill += computed

        shape = Shape(
            num_tokens=self.max_num_batched_tokens - budget,
            num_seqs=len(batch),
            prefill_chunk=prefill_chunk,
            kv_prefill=kv_prefill,
            n_decode=len(decode_lengths),
            kv_sum=sum(decode_lengths),
            kv_max=max(decode_lengths, default=0),
            kv_min=min(decode_lengths, default=0),
        )
        return batch, shape

    def get_computed_blocks(self, request: Request) -> list[Block]:
        """The longest hit; at least the last token is always computed."""
        cached_blocks = self.pool.cached_blocks
        hit_blocks: list[Block] = []
        for block_hash in islice(request.block_hashes, (request.num_tokens - 1) // self.block_size):
            holders = cached_blocks.get(block_hash)
            if holders is None:
                break
            hit_blocks.append(holders[0])
        return hit_blocks

    def whole_sequence_fits(self, request: Request, hit_blocks: list[Block]) -> bool:
        """All current tokens of a waiting request, not only its first chunk."""
        num_new_blocks = -(-request.num_tokens // self.block_size) - len(hit_blocks)
        num_evictable_blocks = sum(block.ref_cnt == 0 for block in hit_blocks)
        return num_new_blocks + num_evictable_blocks <= len(self.pool.free_block_queue)

    def allocate_slots(self, request: Request, num_tokens: int) -> bool:
        """Preempt from the tail of `running` until it fits; False if the request itself had to go."""
        num_new_blocks = -(-num_tokens // self.block_size) - len(request.blocks)
        while num_new_blocks > len(self.pool.free_block_queue):
            victim = self.running.pop()
            self.preempt(victim)
            if victim is request:
                return False
        self.append_blocks(request, num_tokens)
        return True

    def append_blocks(self, request: Request, num_tokens: int) -> None:
        for _ in range(-(-num_tokens // self.block_size) - len(request.blocks)):
            request.blocks.append(self.pool.get_new_block())

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        num_full_blocks = num_tokens // self.block_size
        for i in range(request.num_cached_blocks, num_full_blocks):
            self.pool.cache(request.blocks[i], request.block_hashes[i])
        request.num_cached_blocks = num_full_blocks

    def preempt(self, request: Request) -> None:
        """Blocks go, their hashes stay; it starts over from the head of the queue."""
        self.free(request)
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def free(self, request: Request) -> None:
        self.pool.free(request.blocks)
        request.blocks = []
        request.num_cached_blocks = 0

    def update_from_output(self, batch: list[Request]) -> None:
        """Who has caught up with its tokens gets one; who has all of them is finished."""
        now_ns = self.now_ns
        num_sampled = 0
        finished = False
        for request in batch:
            if request.num_computed_tokens < request.num_tokens:
                continue
            num_sampled += 1
            request.num_tokens += 1
            if request.first_token_ns == NEVER:
                request.first_token_ns = now_ns
            if request.num_tokens == request.end_num_tokens:
                request.last_token_ns = now_ns
                self.free(request)
                finished = True
        self.num_generated_tokens += num_sampled
        if finished:
            self.running = [r for r in self.running if r.last_token_ns == NEVER]


def check_supported(workload: Workload, settings: EngineSettings, latency: Latency) -> None:
    """Raises InputError for what the loop has no rules for."""
    for name, demanded in DEMANDED.items():
        value = getattr(settings, name)
        if value != demanded:
            raise InputError("plain loop", name, value, repr(demanded))
    if (workload.session_parent >= 0).any():
        raise InputError("plain loop", "session_parent", "sessions", "requests on their own")
    params = latency.params[0]
    modes = int(params.full_graph_ns), int(params.piecewise_ns), int(params.eager_ns)
    if any(modes):
        raise InputError("plain loop", "mode times", modes, "0")


def differences(plain: PlainLoop, engine: Engine) -> list[str]:
    """What the plain loop and the core do not agree on, once both have run."""
    counters = engine.queues.counters[0]
    pairs = {
        "clock, ns": (plain.now_ns, counters.now_ns),
        "steps": (len(plain.step_end_ns), counters.num_steps),
        "preemptions": (plain.num_preemptions, counters.num_preemptions),
        "hit tokens": (plain.hit_tokens, counters.hit_tokens_all_admissions),
        "generated tokens": (plain.num_generated_tokens, counters.num_generated_tokens),
    }
    found = [
        f"{name}: plain loop {ours}, engine {theirs}"
        for name, (ours, theirs) in pairs.items()
        if ours != theirs
    ]
    if plain.step_end_ns != engine.log.steps.end_ns[: counters.num_steps].tolist():
        found.append("the end of a step")
    if [r.first_token_ns for r in plain.requests] != engine.kv.infos.first_token_ns.tolist():
        found.append("the first token of a request")
    if [r.last_token_ns for r in plain.requests] != engine.kv.requests.last_token_ns.tolist():
        found.append("the last token of a request")
    return found
