"""A recorded vLLM run: what was asked, when it was answered, and what the engine resolved.

A folder with meta.json, requests.jsonl and timeseries.csv, as LLMServingSim 2.0's bench writes it.
A field that is missing is an error, never a 0. Older recordings have neither the KV cache nor the
resolved configuration; what they don't have is None.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from profiles.bundle import Floats, Ints
from profiles.checks import CsvTable
from profiles.errors import InputError, parse_model
from profiles.foreign import Foreign, json_object, read_file

# vLLM's CUDAGraphMode, by value; the pair is (decode batches, all others).
CUDAGRAPH_MODES = {
    (0,): "NONE",
    (1,): "PIECEWISE",
    (2,): "FULL",
    (2, 0): "FULL_DECODE_ONLY",
    (2, 1): "FULL_AND_PIECEWISE",
}

SERIES = ("t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct")

Positive = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class _Arguments(Foreign):
    tensor_parallel_size: Positive
    data_parallel_size: Positive
    enable_expert_parallel: bool
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    max_model_len: Positive | None
    dtype: str
    kv_cache_dtype: str


class _KvCache(Foreign):
    num_gpu_blocks: Positive
    block_size: Positive
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    enable_prefix_caching: bool


class _Compilation(Foreign):
    cudagraph_capture_sizes: tuple[Positive, ...]
    cudagraph_mode: int | tuple[int, ...]


class _Scheduler(Foreign):
    async_scheduling: bool


class _Resolved(Foreign):
    compilation_config: _Compilation
    scheduler_config: _Scheduler


class _Meta(Foreign):
    model: str
    vllm_version: str
    engine_kwargs: _Arguments
    dataset_path: str
    num_requests: Positive
    kv_cache: _KvCache | None = None
    resolved_config: _Resolved | None = None


class _Request(Foreign):
    request_id: Annotated[str, Field(strict=True, min_length=1)]
    input_toks: Positive
    output_toks: Positive
    arrival_time: Seconds
    sent_ts: Seconds | None = None
    queued_ts: Seconds
    scheduled_ts: Seconds
    first_token_ts: Seconds
    last_token_ts: Seconds


@dataclass(frozen=True)
class ResolvedEngine:
    """What the engine made of its arguments."""

    cudagraph_mode: str  # vLLM's name
    cudagraph_capture_sizes: tuple[int, ...]
    async_scheduling: bool


@dataclass(frozen=True)
class RecordedRun:
    """One run; the arrays have an entry per request, in the file's order.

    `arrival_s` is on the client's wall clock, the other times are on the engine's monotonic clock:
    only differences within one of the two mean anything. `sent_s` is when the client sent a request,
    where the recorder knew it on the engine's clock.
    """

    source: Path
    model: str
    vllm_version: str
    tensor_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    dtype: str
    kv_cache_dtype: str
    dataset_path: str
    num_gpu_blocks: int | None
    block_size: int | None
    gpu_memory_utilization: float | None
    enable_prefix_caching: bool | None
    resolved: ResolvedEngine | None
    request_ids: tuple[str, ...]
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    arrival_s: Floats
    sent_s: Floats | None
    queued_s: Floats
    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    series: dict[str, Floats]  # by column of timeseries.csv

    def __len__(self) -> int:
        return len(self.request_ids)

    @property
    def begin_s(self) -> Floats:
        """When each request began: sent by the client where that is known, else queued.

        An engine queues what came during a step at its end, which hides up to a step of waiting.
        """
        return self.queued_s if self.sent_s is None else self.sent_s

    def begin_ns(self) -> Ints:
        """When each request began, relative to the first one that did."""
        relative: Floats = np.round((self.begin_s - self.begin_s.min()) * 1e9)
        return relative.astype(np.int64)


def load_recorded_run(folder: Path) -> RecordedRun:
    """The run recorded in `folder`. Raises InputError."""
    folder = Path(folder)
    meta_path, path = folder / "meta.json", folder / "requests.jsonl"
    meta = parse_model(_Meta, json_object(read_file(meta_path), meta_path), meta_path)
    requests = list(_requests(path))
    sent = [request.sent_ts for request in requests if request.sent_ts is not None]
    if sent and len(sent) != len(requests):
        raise InputError(path, "sent_ts", f"{len(sent)} values", f"{len(requests)}, or none")
    if len(requests) != meta.num_requests:
        raise InputError(path, "requests", len(requests), f"the {meta.num_requests} of meta.json")
    arguments, kv_cache, resolved = meta.engine_kwargs, meta.kv_cache, meta.resolved_config
    return RecordedRun(
        source=folder,
        model=meta.model,
        vllm_version=meta.vllm_version,
        dataset_path=meta.dataset_path,
        **dict(arguments),
        num_gpu_blocks=kv_cache.num_gpu_blocks if kv_cache else None,
        block_size=kv_cache.block_size if kv_cache else None,
        gpu_memory_utilization=kv_cache.gpu_memory_utilization if kv_cache else None,
        enable_prefix_caching=kv_cache.enable_prefix_caching if kv_cache else None,
        resolved=_resolved(resolved, meta_path) if resolved else None,
        request_ids=tuple(request.request_id for request in requests),
        num_prompt_tokens=np.array([r.input_toks for r in requests], np.int64),
        num_output_tokens=np.array([r.output_toks for r in requests], np.int64),
        arrival_s=np.array([r.arrival_time for r in requests]),
        sent_s=np.array(sent) if sent else None,
        queued_s=np.array([r.queued_ts for r in requests]),
        scheduled_s=np.array([r.scheduled_ts for r in requests]),
        first_token_s=np.array([r.first_token_ts for r in requests]),
        last_token_s=np.array([r.last_token_ts for r in requests]),
        series=_series(folder / "timeseries.csv"),
    )


def _resolved(config: _Resolved, path: Path) -> ResolvedEngine:
    mode = config.compilation_config.cudagraph_mode
    pair = (mode,) if isinstance(mode, int) else tuple(mode)
    if pair not in CUDAGRAPH_MODES:
        known = ", ".join(f"{list(values)} ({name})" for values, name in CUDAGRAPH_MODES.items())
        field = "resolved_config.compilation_config.cudagraph_mode"
        raise InputError(path, field, mode, f"one of {known}")
    return ResolvedEngine(
        cudagraph_mode=CUDAGRAPH_MODES[pair],
        cudagraph_capture_sizes=config.compilation_config.cudagraph_capture_sizes,
        async_scheduling=config.scheduler_config.async_scheduling,
    )


def _requests(path: Path) -> Iterator[_Request]:
    """The lines of requests.jsonl, each checked: whole, in order of time, its id new."""
    known: set[str] = set()
    for number, line in enumerate(read_file(path).splitlines(), 1):
        where = f"{path}, line {number}"
        request = parse_model(_Request, json_object(line, where), where)
        if request.request_id in known:
            raise InputError(where, "request_id", request.request_id, "an id of its own")
        known.add(request.request_id)
        moments = ["queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"]
        if request.sent_ts is not None:
            moments.insert(0, "sent_ts")
        for earlier, later in itertools.pairwise(moments):
            if getattr(request, later) < getattr(request, earlier):
                expected = f"at least {earlier} ({getattr(request, earlier)})"
                raise InputError(where, later, getattr(request, later), expected)
        yield request


def _series(path: Path) -> dict[str, Floats]:
    """The columns of timeseries.csv; seconds in which no step ran have no row."""
    table = CsvTable(path, read_file(path), SERIES)
    series = {column: table.floats(column) for column in SERIES}
    for column, values in series.items():
        least, most = 0.0, 100.0 if column == "kv_cache_pct" else np.inf
        wrong = np.flatnonzero((values < least) | (values > most))
        if len(wrong):
            expected = f"a number from 0 to {most:g}" if most < np.inf else "a number from 0 on"
            raise table.error(int(wrong[0]), column, float(values[wrong[0]]), expected)
    late = np.flatnonzero(np.diff(series["t"]) <= 0)
    if len(late):
        row, before = int(late[0]) + 1, float(series["t"][late[0]])
        raise table.error(row, "t", float(series["t"][row]), f"more than {before}, the row before")
    return series
