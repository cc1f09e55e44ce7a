"""One point from configuration to result.

`prepare` reads and resolves everything, `run` simulates; points that share a workload or a profile
share what was prepared of it, within a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.bundle import Bundle
from profiles.errors import InputError, named
from profiles.llmservingsim import load_bundle
from profiles.recorded import RecordedRun, load_recorded_run
from simulator.attention_tables import UnfittedAlpha
from simulator.build import EngineSettings, build_engine
from simulator.capacity import Capacity, resolve_capacity
from simulator.config import Point
from simulator.core.latency import Latency
from simulator.overhead import ResolvedOverhead, resolve_overhead
from simulator.prefix import BlockHashes, block_hashes
from simulator.progress import run_to_end
from simulator.result import Result, requests_table, steps_table, timeseries_table
from simulator.step_tables import ModeTimes, linear_law, step_tables
from simulator.storage import TierSettings
from simulator.summary import summarize
from simulator.workloads import Workload, WorkloadConfig, load_workload

VARIANTS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8": "fp8"}


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a run needs, as plain data that can be sent to another process."""

    point: Point
    workload: Workload
    arrival_ns: NDArray[np.int64]
    hashes: BlockHashes
    latency: Latency
    profile_id: str
    capacity: Capacity
    overhead: ResolvedOverhead
    max_model_len: int
    notes: tuple[str, ...]

    @property
    def settings(self) -> EngineSettings:
        """The scheduler's settings with everything resolved."""
        engine, tiers = self.point.engine, resolve_tiers(self.point)
        return EngineSettings(
            num_gpu_blocks=self.capacity.num_gpu_blocks,
            max_model_len=self.max_model_len,
            block_size=engine.block_size,
            null_block=engine.null_block,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            enable_prefix_caching=engine.enable_prefix_caching,
            enable_chunked_prefill=engine.enable_chunked_prefill,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
            policy=engine.policy,
            async_scheduling=self.overhead.async_scheduling,
            host_ns_per_step=self.overhead.host_ns_per_step,
            host_ns_per_request=self.overhead.host_ns_per_request,
            # Without a tier there is nothing to connect: every point is the same run then.
            **({"kv_connector": self.point.kv_connector} if tiers else {}),
            tiers=tiers,
        )


def simulate(point: Point, *, steps: bool = False, source: str | Path = "point") -> Result:
    """Simulate one point. `steps` keeps who was scheduled in every step.

    Raises InputError for a wrong input, before simulating, and SimulationError if the engine makes
    no progress. `source` names the point in errors.
    """
    return run(prepare(point, source), steps=steps)


def prepare(point: Point, source: str | Path = "point") -> Prepared:
    """Read, check and resolve everything a point names. Raises InputError."""
    point.engine.check_against(point.model, source)
    capacity = resolve_capacity(point.model, point.card, point.engine, source)
    with named(source, "recorded_run"):
        recorded = _recorded_run(point.recorded_run) if point.recorded_run else None
    overhead = resolve_overhead(point.overhead, point.engine, recorded)
    with named(source, "profile"):
        latency, profile_id = _latency(point, overhead, source)
    with named(source, "workload"):
        workload, hashes = _workload(point.workload, point.engine.block_size)
    arrival_ns = workload.arrival_ns
    if point.arrivals == "recorded":
        assert recorded is not None  # Point demands it
        with named(source, "recorded_run"):
            arrival_ns = recorded_arrivals(workload, recorded)
    max_model_len = point.engine.resolved_max_model_len(point.model)
    notes = []
    tokens = capacity.num_gpu_blocks * point.engine.block_size
    if tokens < max_model_len:
        notes.append(
            f"vLLM would not start: the KV cache holds {tokens} tokens, max_model_len is "
            f"{max_model_len}"
        )
    if max_model_len > point.model.max_position_embeddings:
        notes.append(
            f"vLLM would not start: max_model_len {max_model_len} is beyond the model's "
            f"max_position_embeddings {point.model.max_position_embeddings}"
        )
    return Prepared(
        point,
        workload,
        arrival_ns,
        hashes,
        latency,
        profile_id,
        capacity,
        overhead,
        max_model_len,
        tuple(notes),
    )


def run(
    prepared: Prepared, *, steps: bool = False, look: Callable[[], None] | None = None
) -> Result:
    """Simulate what was prepared. `look` is called now and then and may stop the run by raising."""
    checked = prepared.point.check_invariants
    # The invariants look at every request's counters, which stand still while it is in stride.
    settings = replace(prepared.settings, log_events=steps, stride=not checked)
    engine, refused = build_engine(
        prepared.workload, prepared.hashes, settings, prepared.latency, prepared.arrival_ns
    )
    engine = run_to_end(engine, prepared.workload, check=prepared.point.check_invariants, look=look)
    requests = requests_table(engine, prepared.workload, refused, list(prepared.point.chosen_tiers))
    return Result(
        summary=summarize(prepared, engine, requests, refused),
        requests=requests,
        timeseries=timeseries_table(engine),
        steps=steps_table(engine, prepared.workload) if steps else None,
    )


def resolve_tiers(point: Point) -> tuple[TierSettings, ...]:
    """The storage tiers a point uses, in the order they are looked up. A host keeps all ranks' bytes."""
    engine, tp = point.engine, point.engine.tensor_parallel_size
    kv_dtype = engine.dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    return tuple(
        TierSettings(
            capacity_bytes=int(tier.capacity_gib * 2**30),
            tokens_per_chunk=tier.chunk_tokens,
            bytes_per_token=tp * point.model.kv_bytes_per_token(kv_dtype, tp),
            bytes_per_ns=tier.bandwidth_gbps,
            latency_ns=round(tier.latency_us * 1000),
            name=name,
        )
        for name, tier in point.chosen_tiers.items()
    )


def recorded_arrivals(workload: Workload, recorded: RecordedRun) -> NDArray[np.int64]:
    """When the recorded run queued each request, from the workload's first arrival on.

    The recording must be of this workload: as many requests, of the same lengths, in this order.
    """
    path = recorded.source / "requests.jsonl"
    if len(recorded) != len(workload):
        raise InputError(path, "requests", len(recorded), f"the workload's {len(workload)}")
    for name, ours, theirs in (
        ("input_toks", workload.num_prompt_tokens, recorded.num_prompt_tokens),
        ("output_toks", workload.num_output_tokens, recorded.num_output_tokens),
    ):
        differs = np.flatnonzero(ours != theirs)
        if len(differs):
            r = int(differs[0])
            raise InputError(
                f"{path}, line {r + 1}", name, int(theirs[r]), f"{int(ours[r])} as in the workload"
            )
    arrival: NDArray[np.int64] = recorded.queued_ns() + int(workload.arrival_ns.min())
    return arrival


def bundle_folder(point: Point) -> Path:
    """The folder of the point's measured tables."""
    profile, engine = point.profile, point.engine
    if profile.bundle is not None:
        return profile.bundle
    assert profile.bundles is not None
    dtype = point.model.torch_dtype if engine.dtype == "auto" else engine.dtype
    variant = VARIANTS[dtype]
    if engine.kv_cache_dtype not in ("auto", dtype):
        variant += f"-kv{VARIANTS[engine.kv_cache_dtype]}"
    return profile.bundles / point.card.name / point.model.name / variant


def _latency(point: Point, overhead: ResolvedOverhead, source: str | Path) -> tuple[Latency, str]:
    law = point.profile.linear
    if law is not None:
        latency = linear_law(
            law.base_ns,
            law.per_token_ns,
            law.per_kv_token_ns,
            law.per_request_ns,
            capture_sizes=overhead.capture_sizes,
            mode_ns=overhead.mode_ns,
        )
        values = (law.base_ns, law.per_token_ns, law.per_kv_token_ns, law.per_request_ns)
        return latency, "linear " + " ".join(map(str, values))
    bundle = _bundle(bundle_folder(point), point.engine.tensor_parallel_size)
    if bundle.architecture.name != point.model.model_type:
        raise InputError(
            source,
            "profile",
            f"{bundle.model}, measured as {bundle.architecture.name}",
            f"tables of a {point.model.model_type} model",
        )
    latency = _step_tables(
        bundle,
        point.model.num_hidden_layers,
        point.engine.max_num_batched_tokens,
        point.engine.max_num_seqs,
        overhead.capture_sizes,
        point.overhead.pad_to_capture_size,
        overhead.mode_ns,
        point.profile.unfitted_skew,
    )
    return latency, bundle.content_id


# Preparing costs more than simulating, and the points of a sweep share most of it.
@lru_cache(maxsize=16)
def _workload(config: WorkloadConfig, block_size: int) -> tuple[Workload, BlockHashes]:
    workload = _loaded_workload(config)
    return workload, block_hashes(workload, block_size)


@lru_cache(maxsize=8)
def _loaded_workload(config: WorkloadConfig) -> Workload:
    return load_workload(config, Path())


@lru_cache(maxsize=16)
def _bundle(folder: Path, tp: int) -> Bundle:
    return load_bundle(folder, tp)


@lru_cache(maxsize=16)
def _recorded_run(folder: Path) -> RecordedRun:
    return load_recorded_run(folder)


@lru_cache(maxsize=64)
def _step_tables(
    bundle: Bundle,
    num_layers: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    capture_sizes: tuple[int, ...],
    pad: bool,
    mode_ns: ModeTimes,
    unfitted: UnfittedAlpha,
) -> Latency:
    return step_tables(
        bundle,
        num_layers=num_layers,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        capture_sizes=capture_sizes,
        pad_to_capture_size=pad,
        mode_ns=mode_ns,
        unfitted_alpha=unfitted,
    )
