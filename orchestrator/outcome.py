"""What a run leaves in a sweep: flat numbers, and the same for other pools that give the same run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from orchestrator.compare import compare
from orchestrator.shared import Job, Sibling
from orchestrator.truth_data import Truth
from simulator.result import Result

NOTHING_SERVED = "nothing_served"
# What every finished outcome has.
ESSENTIAL = ("steps", "requests/finished", "requests/refused", "kv/blocks")


def finished(point_id: str, result: Result, truth: Truth | None) -> dict[str, Any]:
    """A finished run's outcome: metrics and notes, with the comparison if there is a truth.

    A run that served nobody measured nothing, and is a failure. `notes` are those that the run alone
    gives; what is known without it is noted with the point (truth_notes.standing_notes).
    `enough_blocks`, where it is there: every pool that can hand out as many gives the same run.
    """
    requests = result.summary["requests"]
    if not requests["finished"]:
        first = next((f"; first: {r}: {why}" for r, why in requests["refusals"].items()), "")
        reason = f"no request finished, {requests['refused']} were refused{first}"
        return {"point_id": point_id, "status": NOTHING_SERVED, "reason": reason}
    metrics = metrics_of(result)
    notes: list[str] = []
    if truth is not None:
        comparison = compare(result, truth)
        metrics |= comparison.flat()
        notes += comparison.run_notes
    outcome = {"point_id": point_id, "status": "finished", "metrics": metrics, "notes": notes}
    kv = result.summary["kv"]
    if kv["capacity_inert"]:
        outcome["enough_blocks"] = kv["enough_blocks"]
    return outcome


def proven(job: Job, result: Result, truth: Truth | None) -> Iterator[dict[str, Any]]:
    """Outcomes of the siblings whose runs must be equal to this one."""
    kv = result.summary["kv"]
    if not kv["capacity_inert"]:
        return
    for sibling in job.siblings:
        if sibling.usable_blocks >= kv["enough_blocks"]:
            outcome = finished(sibling.point_id, _in_pool(result, sibling), truth)
            yield outcome | {"proven_by": job.point_id, "wall_s": 0.0}


def _in_pool(result: Result, sibling: Sibling) -> Result:
    """The run as it is in the sibling's pool: the same steps, another share of the blocks in use."""
    summary, usage = result.summary, result.timeseries["kv_cache_usage"].to_numpy()
    in_use = np.rint(usage * summary["kv"]["usable_blocks"])
    kv = {
        "num_gpu_blocks": sibling.num_gpu_blocks,
        "usable_blocks": sibling.usable_blocks,
    }
    at = result.timeseries.schema.get_field_index("kv_cache_usage")
    free = sibling.usable_blocks - in_use
    return replace(
        result,
        summary=summary | {"kv": summary["kv"] | kv},
        timeseries=result.timeseries.set_column(
            at, "kv_cache_usage", [1.0 - free / sibling.usable_blocks]
        ),
    )


def metrics_of(result: Result) -> dict[str, float]:
    """A result as flat numbers, under the names they are tracked with."""
    summary = result.summary
    kv, cache, requests = summary["kv"], summary["prefix_cache"], summary["requests"]
    flat: dict[str, float] = {
        f"{metric}/{statistic}": value
        for metric, values in summary["latency"].items()
        for statistic, value in values.items()
    }
    flat |= {f"throughput/{name}": value for name, value in summary.get("throughput", {}).items()}
    if summary["makespan_ms"] is not None:
        flat["makespan_ms"] = summary["makespan_ms"]
    flat |= {
        "steps": summary["steps"],
        "generated_tokens": summary["generated_tokens"],
        "requests/finished": requests["finished"],
        "requests/refused": requests["refused"],
        "requests/capped": requests["capped_at_max_model_len"],
        "kv/blocks": kv["num_gpu_blocks"],
        "kv/peak_blocks_in_use": kv["peak_blocks_in_use"],
        "kv/preemptions": summary["preemptions"],
        "kv/evicted_blocks": kv["evicted_blocks"],
        "prefix_cache/hit_rate": cache["hit_rate"],
        "prefix_cache/hit_tokens": cache["hit_tokens"],
        "outside_grid/lookups": sum(
            axis.get("above", 0) + axis.get("below", 0)
            for axis in summary["outside_measured_grid"].values()
        ),
    }
    flat |= {f"time_share/{name}": share for name, share in summary["time_by_source"].items()}
    if "peak_reserved_decode_blocks" in kv:
        flat["kv/peak_reserved_decode_blocks"] = kv["peak_reserved_decode_blocks"]
    for wave in summary.get("waves", []):
        for statistic, value in (wave["ttft_ms"] or {}).items():
            flat[f"wave{wave['wave']}/ttft_ms/{statistic}"] = value
    flat |= _storage(summary) | _kv_transfer(summary)
    return {name: float(value) for name, value in flat.items()}


def _kv_transfer(summary: dict[str, Any]) -> dict[str, float]:
    """What went from prefill to decode instances; nothing where there are none."""
    moved = summary.get("kv_transfer", {})
    flat = {f"kv_transfer/{name}": moved[name] for name in ("transfers", "bytes") if name in moved}
    for name in ("link", "link_wait", "waiting", "stalled"):
        if f"{name}_ns" in moved:
            flat[f"kv_transfer/{name}_ms"] = moved[f"{name}_ns"] / 1e6
    return flat


def _storage(summary: dict[str, Any]) -> dict[str, float]:
    """What the storage tiers did; nothing where there is none."""
    storage = summary["prefix_storage"]
    if not storage["tiers"]:
        return {}
    flat: dict[str, float] = {
        "storage/stalled_ms": storage["stalled_ns"] / 1e6,
        "storage/waiting_ms": storage["waiting_ns"] / 1e6,
        "storage/given_back": storage["given_back"],
    }
    for tier, counts in storage["tiers"].items():
        for name in ("hit_tokens", "loaded_tokens", "loaded_bytes", "written_bytes"):
            flat[f"storage/{tier}/{name}"] = counts[name]
        for name in ("evicted_chunks", "failed_stores"):
            flat[f"storage/{tier}/{name}"] = counts[name]
        for name in ("load", "link_wait", "store"):
            flat[f"storage/{tier}/{name}_ms"] = counts[f"{name}_ns"] / 1e6
    return flat
