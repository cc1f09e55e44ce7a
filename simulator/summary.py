"""The summary of a run: what was simulated, what came out, and how far it can be trusted."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from simulator.core import state
from simulator.core.latency import OUTSIDE_NAMES
from simulator.core.state import Engine
from simulator.metrics import latency_metrics
from simulator.placement.report import placement_report
from simulator.time_sources import time_by_source
from simulator.workloads import Workload

if TYPE_CHECKING:
    from simulator.simulation import Prepared

SHOWN_REFUSALS = 20
TIER_COUNTS = (
    "loads",
    "loaded_tokens",
    "loaded_bytes",
    "load_ns",
    "link_wait_ns",
    "stores",
    "stored_chunks",
    "written_bytes",
    "store_ns",
    "failed_stores",
)


def servesweep_version() -> str:
    """The installed version; a checkout that is not installed has none."""
    try:
        return version("servesweep")
    except PackageNotFoundError:
        return "not installed"


def summarize(
    prepared: Prepared, engine: Engine, requests: pa.Table, refused: dict[int, str]
) -> dict[str, Any]:
    """Plain data for summary.json; times in ms or ns as named, rates per second."""
    point, counters = prepared.point, engine.queues.counters[0]
    intervals = engine.log.intervals[: engine.log.sizes[0].num_intervals]
    return {
        "servesweep": servesweep_version(),
        "model": point.model.name,
        "card": point.card.model_dump(mode="json"),
        "engine": engine_as_run(prepared),
        "overhead": point.overhead.model_dump(mode="json"),
        "arrivals": point.arrivals,
        "workload": {
            "content_id": prepared.workload.content_id,
            "requests": len(prepared.workload),
            "prompt_tokens": int(prepared.workload.num_prompt_tokens.sum()),
            "output_tokens": int(prepared.workload.num_output_tokens.sum()),
            **_manifest(prepared.workload),
        },
        "profile": {
            "content_id": prepared.profile_id,
            "scale": point.profile.scale.model_dump(mode="json"),
        },
        "calibration": point.calibration.model_dump(mode="json") if point.calibration else None,
        "requests": _request_counts(prepared, engine, refused),
        "steps": int(counters.num_steps),
        "preemptions": int(counters.num_preemptions),
        **_throughput(engine),
        "latency": latency_metrics(
            requests, np.ascontiguousarray(intervals.ns), np.ascontiguousarray(intervals["count"])
        ),
        **_waves(prepared.workload, requests),
        "kv": _kv(prepared, engine),
        "prefix_cache": _prefix_cache(engine),
        "prefix_storage": _storage(prepared, engine),
        **placement_report(point, point.moved, prepared.moved, prepared.sources, engine),
        "time_by_source": time_by_source(engine, prepared.sources),
        "outside_measured_grid": outside_report(engine),
        "notes": [*prepared.notes, *_notes(engine)],
    }


def _notes(engine: Engine) -> list[str]:
    given_back = int(engine.storage.connection[0].num_given_back)
    if given_back == 0:
        return []
    return [
        f"vLLM would hang: {given_back} times only loaded requests held blocks and the first of them "
        "did not fit; each time the last one gave its blocks back"
    ]


def engine_as_run(prepared: Prepared) -> dict[str, Any]:
    """The engine's settings, with those that something else decided as they were decided."""
    return {
        **prepared.point.engine.model_dump(mode="json"),
        "max_model_len": prepared.max_model_len,
        "async_scheduling": prepared.overhead.async_scheduling,
        "null_block": prepared.settings.null_block,
    }


def _manifest(workload: Workload) -> dict[str, Any]:
    """Which manifest the requests come from, if one."""
    return {} if workload.manifest_id is None else {"manifest": workload.manifest_id}


def _waves(workload: Workload, requests: pa.Table) -> dict[str, Any]:
    """Of a workload in waves: when each arrived, and its TTFT."""
    if workload.wave is None:
        return {}
    waves = []
    for wave in range(int(workload.wave.max()) + 1):
        part = requests.filter(pa.array(workload.wave == wave))
        arrived = [ns for ns in part["arrival_ns"].to_pylist() if ns is not None]
        metrics = latency_metrics(part, np.zeros(0, np.int64), np.zeros(0, np.int64))
        waves.append(
            {
                "wave": wave + 1,
                "requests": part.num_rows,
                "arrival_ms": min(arrived) / 1e6 if arrived else None,
                "ttft_ms": metrics.get("ttft_ms"),
            }
        )
    return {"waves": waves}


def _request_counts(prepared: Prepared, engine: Engine, refused: dict[int, str]) -> dict[str, Any]:
    requests = engine.kv.requests
    finished = requests.status == state.FINISHED
    generated = requests.num_tokens - engine.kv.infos.num_prompt_tokens
    ids = prepared.workload.request_ids
    shown = {ids[r]: reason for r, reason in list(refused.items())[:SHOWN_REFUSALS]}
    return {
        "finished": int(finished.sum()),
        "capped_at_max_model_len": int(
            (finished & (generated < prepared.workload.num_output_tokens)).sum()
        ),
        "refused": len(refused),
        "refusals": shown,
        "preempted": int((requests.num_preemptions > 0).sum()),
        "most_preemptions_of_one": int(requests.num_preemptions.max(initial=0)),
    }


def _throughput(engine: Engine) -> dict[str, Any]:
    """From the first arrival to the last token."""
    requests, infos = engine.kv.requests, engine.kv.infos
    ran = requests.last_token_ns != state.NEVER
    generated = int(engine.queues.counters[0].num_generated_tokens)
    if not ran.any():
        return {"end_ns": None, "makespan_ms": None, "generated_tokens": 0}
    end_ns = int(requests.last_token_ns[ran].max())
    makespan_ns = end_ns - int(infos.arrival_ns[ran].min())
    prompts = int(infos.num_prompt_tokens[ran].sum())
    seconds = makespan_ns / 1e9
    return {
        "end_ns": end_ns,
        "makespan_ms": makespan_ns / 1e6,
        "generated_tokens": generated,
        "throughput": {
            "requests_per_s": float((requests.status == state.FINISHED).sum() / seconds),
            "output_tokens_per_s": generated / seconds,
            "total_tokens_per_s": (generated + prompts) / seconds,
        },
    }


def _kv(prepared: Prepared, engine: Engine) -> dict[str, Any]:
    pool = engine.kv.pool[0]
    return {
        "num_gpu_blocks": prepared.capacity.num_gpu_blocks,
        "usable_blocks": int(pool.num_usable_blocks),
        "block_bytes": prepared.capacity.block_bytes,
        "weight_bytes": prepared.capacity.weight_bytes,
        "peak_blocks_in_use": int(pool.num_usable_blocks - pool.min_free_blocks),
        "distinct_blocks_used": int(engine.kv.blocks.used.sum()),
        "reused_blocks": int(pool.reused_blocks),
        "evicted_blocks": int(pool.evicted_blocks),
        "failed_allocations": int(pool.failed_allocations),
        **_reservations(engine),
        # No block was used twice and nobody ever waited for one: every pool that can hand out at
        # least enough_blocks gives this result.
        "enough_blocks": max(
            int(engine.kv.blocks.used.sum()), int(engine.queues.counters[0].peak_required_blocks)
        ),
        "capacity_inert": bool(
            pool.reused_blocks == 0 and pool.failed_allocations == 0 and not _pool_refused(engine)
        ),
    }


def _reservations(engine: Engine) -> dict[str, int]:
    """InfiniLM's: blocks that requests reserved and did not hold yet, at the end and at most."""
    if engine.settings[0].engine != state.INFINILM:
        return {}
    counters = engine.queues.counters[0]
    return {
        "num_reserved_decode_blocks": int(counters.num_reserved_decode_blocks),
        "peak_reserved_decode_blocks": int(counters.peak_reserved_decode_blocks),
    }


def _pool_refused(engine: Engine) -> bool:
    """Whether somebody was refused whom a larger pool would have served."""
    refused = engine.kv.infos[engine.kv.requests.status == state.REFUSED]
    return bool((refused.num_prompt_tokens < engine.settings[0].max_model_len).any())


def _prefix_cache(engine: Engine) -> dict[str, Any]:
    """hit_rate counts each request once, at its first admission, tokens of every tier;
    `vllm` counts every lookup of the device, as vLLM's own counters do.
    """
    pool, requests = engine.kv.pool[0], engine.kv.requests
    admitted = requests.num_cached_tokens != state.NONE
    prompts = engine.kv.infos.num_prompt_tokens[admitted]
    looked_up = int(prompts.sum()) if pool.enable_caching else 0
    hit = int(requests.num_cached_tokens[admitted].sum())
    return {
        "hit_rate": hit / looked_up if looked_up else 0.0,
        "hit_tokens": hit,
        "looked_up_tokens": looked_up,
        "hit_tokens_all_admissions": int(engine.queues.counters[0].hit_tokens_all_admissions),
        "vllm": {
            name: int(pool[name])
            for name in ("queries", "hits", "preempted_queries", "preempted_hits")
        },
    }


def _storage(prepared: Prepared, engine: Engine) -> dict[str, Any]:
    """What the storage tiers held and moved; bytes of all ranks.

    `hit_tokens` counts as hit_rate does; `loaded_tokens` counts every load, those after a preemption
    too. `stalled_ns`: steps delayed by transfers; `waiting_ns`: requests waiting for their loads.
    """
    point, storage = prepared.point, engine.storage
    if point.prefix_storage == "none":
        return {"tiers": {}}
    connection, infos = storage.connection[0], engine.kv.infos
    far = int(infos.num_far_tokens.sum())
    hits = (int(infos.num_external_tokens.sum()) - far, far)
    tiers = {
        name: {
            "capacity_chunks": int(tier.store[0].capacity),
            "chunks": int(tier.store[0].num_chunks),
            "evicted_chunks": int(tier.store[0].evicted_chunks),
            "hit_tokens": hit,
            **{field: int(use[field]) for field in TIER_COUNTS},
        }
        for name, tier, use, hit in zip(
            point.chosen_tiers, (storage.near, storage.far), storage.use, hits, strict=False
        )
    }
    return {
        "kv_connector": point.kv_connector,
        "tiers": tiers,
        "stalled_ns": int(connection.stalled_ns),
        "waiting_ns": int(connection.waiting_ns),
        "given_back": int(connection.num_given_back),
        "vllm": {
            name: int(connection[name])
            for name in ("queries", "hits", "preempted_queries", "preempted_hits")
        },
    }


def outside_report(engine: Engine) -> dict[str, dict[str, int]]:
    """Batches whose lookup left the measured grid, by table and axis, with the farthest one."""
    report: dict[str, dict[str, int]] = {}
    for name, record in zip(OUTSIDE_NAMES, engine.outside, strict=True):
        axis: dict[str, int] = {}
        if record.below:
            axis |= {
                "below": int(record.below),
                "lowest": int(record.lowest),
                "first_sample": int(record.first),
            }
        if record.above:
            axis |= {
                "above": int(record.above),
                "highest": int(record.highest),
                "last_sample": int(record.last),
            }
        if axis:
            report[name] = axis
    return report
