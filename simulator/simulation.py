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
from profiles.recorded import RecordedRun, load_recorded_run
from profiles.routing import Routing
from profiles.stamp import Stamp, stamp_of
from simulator.attention_tables import UnfittedAlpha
from simulator.build import EngineSettings, build_engine
from simulator.capacity import Capacity, resolve_capacity
from simulator.cluster.config import KVTransferConfig, RoutingConfig
from simulator.config import Point, TableScale
from simulator.core.latency import Latency
from simulator.kv_transfer import KVTransferSettings
from simulator.network_tables import expert_exchange, shared_experts, stages_of
from simulator.overhead import ResolvedOverhead, resolve_overhead
from simulator.placement.report import Moved, moved_weights, placement_notes
from simulator.placement.tables import placed_tables
from simulator.prefix import BlockHashes, block_hashes
from simulator.profile_tables import (
    card_note,
    element_types,
    load_tables,
    modelled_note,
    routing_of,
)
from simulator.progress import SimulationError, run_to_end
from simulator.result import Result, requests_table, steps_table, timeseries_table
from simulator.step_tables import (
    ModeTimes,
    Stages,
    complete,
    linear_law,
    step_sources,
    step_tables,
    without_experts,
)
from simulator.storage import TierSettings
from simulator.summary import summarize
from simulator.time_sources import TimeSources, linear_sources
from simulator.waves import wave_arrivals
from simulator.workloads import Workload, WorkloadConfig, load_workload


@dataclass(frozen=True, eq=False)
class PreparedCluster:
    """Instances in order; those of a group are numbers of instances that step together."""

    instances: tuple[Prepared, ...]
    groups: tuple[tuple[int, ...], ...]
    max_in_flight: tuple[int | None, ...]
    routing: RoutingConfig
    roles: tuple[str, ...]
    """both, prefill or decode."""
    parts: tuple[KVTransferSettings | None, ...]
    """What prefill and decode instances do to hand over."""
    kv_transfer: KVTransferConfig | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a run needs, as plain data that can be sent to another process."""

    point: Point
    workload: Workload
    arrival_ns: NDArray[np.int64]
    hashes: BlockHashes
    latency: Latency
    sources: TimeSources
    profile_id: str
    capacity: Capacity
    overhead: ResolvedOverhead
    max_model_len: int
    notes: tuple[str, ...]
    moved: Moved | None = None
    """Weights outside the device; None: all weights and the KV cache are on it."""
    cluster: PreparedCluster | None = None
    """The instances, where there are several; the rest is then the first one's."""

    @property
    def settings(self) -> EngineSettings:
        """The scheduler's settings with everything resolved.

        What InfiniLM's scheduler does not know stays at its default, so that points that differ in it
        alone are one run.
        """
        engine, tiers = self.point.engine, resolve_tiers(self.point)
        if engine.is_infinilm:
            assert engine.admission is not None  # EngineConfig demands it
            return EngineSettings(
                num_gpu_blocks=self.capacity.num_gpu_blocks,
                max_model_len=self.max_model_len,
                block_size=engine.block_size,
                null_block=False,
                max_num_seqs=engine.max_num_seqs,
                max_num_batched_tokens=engine.max_num_batched_tokens,
                enable_prefix_caching=engine.enable_prefix_caching,
                engine=engine.engine,
                admission=engine.admission,
                host_ns_per_step=self.overhead.host_ns_per_step,
                host_ns_per_request=self.overhead.host_ns_per_request,
            )
        return EngineSettings(
            num_gpu_blocks=self.capacity.num_gpu_blocks,
            max_model_len=self.max_model_len,
            block_size=engine.block_size,
            null_block=engine.keeps_null_block,
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
            kv_connector=self.point.kv_connector if tiers else EngineSettings.kv_connector,
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
    if point.cluster is not None:
        from simulator.cluster.prepare import prepare_cluster

        return prepare_cluster(point, source)
    return prepare_instance(point, source)


def prepare_instance(point: Point, source: str | Path, replicas: int = 1) -> Prepared:
    """One engine, or one of `replicas` that step together and share their experts."""
    point.engine.check_against(point.model, source)
    expert_ranks = point.engine.tensor_parallel_size * replicas
    placement = point.moved
    capacity = resolve_capacity(
        point.model, point.card, point.engine, source, expert_ranks, placement
    )
    with named(source, "recorded_run"):
        folder = point.recorded_run
        recorded = _recorded_run(folder, stamp_of(folder)) if folder else None
    overhead = resolve_overhead(point.overhead, point.engine, recorded)
    with named(source, "profile"):
        latency, sources, profile_id = _latency(point, overhead, source, replicas)
    with named(source, "workload"):
        stamp = stamp_of(point.workload.path)
        workload, hashes = _workload(point.workload, point.engine.block_size, stamp)
    arrival_ns = workload.arrival_ns
    if point.arrivals == "recorded":
        assert recorded is not None  # Point demands it
        with named(source, "recorded_run"):
            arrival_ns = recorded_arrivals(workload, recorded)
    max_model_len = point.engine.resolved_max_model_len(point.model)
    notes = [*modelled_note(point), *card_note(point, source)]
    if overhead.async_scheduling and point.engine.pipeline_parallel_size > 1:
        overhead = replace(overhead, async_scheduling=False)
        notes.append("pipeline stages: asynchronous scheduling is simulated as synchronous")
    moved = None if placement is None else moved_weights(point, placement, expert_ranks)
    if placement is not None and moved is not None:
        notes += placement_notes(point, placement, moved)
    if point.calibration is not None:
        notes += point.calibration.notes(point.card.name, point.model.name)
    tokens = capacity.num_gpu_blocks * point.engine.block_size
    if tokens < max_model_len and not point.engine.is_infinilm:
        notes.append(
            f"vLLM would not start: the KV cache holds {tokens} tokens, max_model_len is "
            f"{max_model_len}"
        )
    if max_model_len > point.model.max_position_embeddings and not point.engine.is_infinilm:
        notes.append(
            f"vLLM would not start: max_model_len {max_model_len} is beyond the model's "
            f"max_position_embeddings {point.model.max_position_embeddings}"
        )
    without_effect = ", ".join(f"{n} {v}" for n, v in point.engine.without_effect.items())
    if without_effect:
        notes.append(f"without effect, because engine is infinilm: {without_effect}")
    prepared = Prepared(
        point,
        workload,
        arrival_ns,
        hashes,
        latency,
        sources,
        profile_id,
        capacity,
        overhead,
        max_model_len,
        tuple(notes),
        moved,
    )
    if workload.wave is None or point.arrivals == "recorded":
        return prepared
    try:
        arrival_ns = wave_arrivals(workload, hashes, prepared.settings, latency)
    except SimulationError as error:
        expected = f"waves that are served; {error}"
        raise InputError(source, "workload", workload.source, expected) from None
    return replace(prepared, arrival_ns=arrival_ns)


def run(
    prepared: Prepared, *, steps: bool = False, look: Callable[[], None] | None = None
) -> Result:
    """Simulate what was prepared. `look` is called now and then and may stop the run by raising."""
    if prepared.cluster is not None:
        from simulator.cluster.run import run_cluster

        return run_cluster(prepared, prepared.cluster, steps=steps, look=look)
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
    _, kv_dtype = element_types(point)
    ranks = point.engine.tensor_parallel_size
    return tuple(
        TierSettings(
            capacity_bytes=int(tier.capacity_gib * 2**30),
            tokens_per_chunk=tier.chunk_tokens,
            bytes_per_token=ranks * point.model.kv_bytes_per_token(kv_dtype, ranks),
            bytes_per_ns=tier.bandwidth_gbps,
            latency_ns=round(tier.latency_us * 1000),
            name=name,
            shared=tier.shared,
        )
        for name, tier in point.chosen_tiers.items()
    )


def recorded_arrivals(workload: Workload, recorded: RecordedRun) -> NDArray[np.int64]:
    """When each request of the recorded run began, from the workload's first arrival on.

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
    arrival: NDArray[np.int64] = recorded.begin_ns() + int(workload.arrival_ns.min())
    return arrival


def point_bundle(point: Point, source: str | Path = "point") -> Bundle | None:
    """The tables that a point's steps are looked up in; None where a law takes their place.

    Raises InputError.
    """
    if point.profile.linear is not None:
        return None
    with named(source, "profile"):
        scaled = _scaled(load_tables(point, source), point.profile.scale)
        return complete(scaled, routing_of(point, source))


def _latency(
    point: Point, overhead: ResolvedOverhead, source: str | Path, replicas: int
) -> tuple[Latency, TimeSources, str]:
    law = point.profile.linear
    if law is not None:
        latency = linear_law(
            law.base_ns,
            law.per_token_ns,
            law.per_kv_token_ns,
            law.per_request_ns,
            capture_sizes=overhead.capture_sizes,
            mode_ns=overhead.mode_ns,
            stages=stages_of(point, source),
        )
        values = (law.base_ns, law.per_token_ns, law.per_kv_token_ns, law.per_request_ns)
        sources = linear_sources()
        if point.moved is not None:
            latency, sources = placed_tables(latency, sources, point, point.moved, None, source)
        return latency, sources, "linear " + " ".join(map(str, values))
    bundle = _scaled(load_tables(point, source), point.profile.scale)
    if bundle.architecture.is_whole_step:
        if bundle.model != point.model.name:
            expected = f"steps measured with {point.model.name}"
            raise InputError(source, "profile", f"steps of {bundle.model}", expected)
    elif bundle.architecture.name != point.model.model_type:
        raise InputError(
            source,
            "profile",
            f"{bundle.model}, measured as {bundle.architecture.name}",
            f"tables of a {point.model.model_type} model",
        )
    longest_batch = point.engine.max_num_batched_tokens
    if point.engine.is_infinilm:  # a longer prompt runs alone
        longest_batch = max(longest_batch, point.engine.resolved_max_model_len(point.model))
    routing = routing_of(point, source, replicas)
    expert_ns: tuple[int, ...] = ()
    exchange_ns: tuple[int, ...] = ()
    if routing is not None and replicas > 1:
        expert_ns = shared_experts(bundle, point, routing, replicas, source)
        exchange_ns = expert_exchange(point, replicas, source)
    latency, sources = _step_tables(
        bundle,
        point.model.num_hidden_layers,
        longest_batch,
        point.engine.max_num_seqs,
        overhead.capture_sizes,
        point.overhead.pad_to_capture_size,
        overhead.mode_ns,
        point.profile.unfitted_skew,
        routing,
        stages_of(point, source),
        expert_ns,
        exchange_ns,
    )
    if point.moved is not None:
        run = without_experts(bundle) if expert_ns else complete(bundle, routing)
        ranks = point.engine.tensor_parallel_size * replicas
        latency, sources = placed_tables(latency, sources, point, point.moved, run, source, ranks)
    return latency, sources, bundle.content_id


# Preparing costs more than simulating, and the points of a sweep share most of it. A stamp is there so
# that a file that was edited is read again.
@lru_cache(maxsize=16)
def _workload(
    config: WorkloadConfig, block_size: int, stamp: Stamp
) -> tuple[Workload, BlockHashes]:
    workload = _loaded_workload(config, stamp)
    return workload, block_hashes(workload, block_size)


@lru_cache(maxsize=8)
def _loaded_workload(config: WorkloadConfig, _: Stamp) -> Workload:
    return load_workload(config, Path())


@lru_cache(maxsize=16)
def _scaled(bundle: Bundle, scale: TableScale) -> Bundle:
    return bundle if scale == TableScale() else bundle.scaled(**dict(scale))


@lru_cache(maxsize=16)
def _recorded_run(folder: Path, _: Stamp) -> RecordedRun:
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
    routing: Routing | None,
    stages: Stages,
    expert_ns: tuple[int, ...],
    exchange_ns: tuple[int, ...],
) -> tuple[Latency, TimeSources]:
    latency = step_tables(
        bundle,
        num_layers=num_layers,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        capture_sizes=capture_sizes,
        pad_to_capture_size=pad,
        mode_ns=mode_ns,
        unfitted_alpha=unfitted,
        routing=routing,
        stages=stages,
        expert_ns=expert_ns,
        exchange_ns=exchange_ns,
    )
    sources = step_sources(
        bundle,
        num_layers=num_layers,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        capture_sizes=capture_sizes,
        pad_to_capture_size=pad,
        routing=routing,
    )
    return latency, sources
