"""What somebody should know who reads a comparison: in plain words, nothing if all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.truth_data import Truth
from simulator.summary import engine_as_run

if TYPE_CHECKING:
    from simulator.simulation import Prepared

SHOWN = 3
NOT_COMPARED = ("gpu_memory_utilization",)  # told with the blocks
DEFAULTS = {"data_parallel_size": 1}


def standing_notes(prepared: Prepared, truth: Truth | None) -> list[str]:
    """What is known before a run, and stands for a point whatever run its result comes from."""
    instances = prepared.cluster.instances if prepared.cluster else (prepared,)
    notes = list(dict.fromkeys(note for one in instances for note in one.notes))
    if truth is not None:
        engine, model = engine_as_run(prepared), prepared.point.model.name
        notes += truth.notes
        notes += blocks_note(
            (prepared.capacity.num_gpu_blocks, truth.num_gpu_blocks), engine, truth
        )
        notes += settings_note(engine, model, truth)
    return notes


def population_note(summary: dict[str, Any], truth: Truth) -> list[str]:
    """Simulated requests that were refused or cut short, and statistics over other numbers."""
    counts, total = summary["requests"], summary["workload"]["requests"]
    notes = []
    if counts["refused"]:
        first = "; ".join(f"{r}: {why}" for r, why in list(counts["refusals"].items())[:SHOWN])
        notes.append(
            f"{counts['refused']} of {total} simulated requests were refused, first: {first}"
        )
    if counts["capped_at_max_model_len"]:
        notes.append(
            f"{counts['capped_at_max_model_len']} of {total} simulated requests were cut short at "
            f"max_model_len {summary['engine']['max_model_len']}"
        )
    unfinished = total - counts["finished"] - counts["refused"]
    if unfinished:
        notes.append(f"{unfinished} of {total} simulated requests did not finish")
    if truth.num_requests is not None and truth.num_requests != counts["finished"]:
        notes.append(
            f"metrics of {counts['finished']} simulated and {truth.num_requests} measured requests"
        )
    return notes


def blocks_note(blocks: tuple[int, int | None], engine: dict[str, Any], truth: Truth) -> list[str]:
    simulated, measured = blocks
    if measured is None or simulated == measured:
        return []
    change = (simulated - measured) / measured * 100
    note = f"KV blocks differ: {simulated} simulated, {measured} measured ({change:+.2f} %)"
    asked = truth.settings.get("gpu_memory_utilization")
    if engine["num_gpu_blocks_override"] is None and asked is not None:
        ours = engine["gpu_memory_utilization"]
        note += f", at gpu_memory_utilization {ours:g} and {asked:g}"
    return [f"{note}; errors of latency may come from that alone"]


def settings_note(engine: dict[str, Any], model: str, truth: Truth) -> list[str]:
    """Settings that the measured engine had otherwise; a sweep may well mean it so."""
    ours = {**DEFAULTS, **engine, "model": model}
    differ = [
        f"{name} {ours[name]} (measured {measured})"
        for name, measured in truth.settings.items()
        if name in ours and name not in NOT_COMPARED and not _same(ours[name], measured)
    ]
    return [f"settings differ: {', '.join(differ)}"] if differ else []


def _same(ours: Any, measured: Any) -> bool:
    if isinstance(ours, str) and isinstance(measured, str):
        names = {ours.rsplit("/", 1)[-1], measured.rsplit("/", 1)[-1]}
        return len(names) == 1 or "auto" in names
    return bool(ours == measured)
