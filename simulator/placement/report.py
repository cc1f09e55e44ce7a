"""What a result says of weights and KV cache outside the device. Bytes are those of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.config import Point
from simulator.core.state import Engine
from simulator.parallel import shards
from simulator.placement.config import DEVICE, Placement
from simulator.placement.weights import BEFORE, GIB, LayerWeights, placed_stages
from simulator.time_sources import TimeSources

ADDED = ("weight_read_bytes", "kv_moved_bytes", "weight_wait_ms", "kv_wait_ms")


@dataclass(frozen=True)
class Moved:
    """kept: weights by memory. step_bytes: read in every step. row_bytes: of a token's embedding row."""

    kept: dict[str, int]
    step_bytes: int
    row_bytes: int


def moved_weights(point: Point, placement: Placement, expert_ranks: int | None = None) -> Moved:
    engine, model = point.engine, point.model
    stages = placed_stages(
        model,
        engine.dtype,
        engine.quantization,
        placement,
        shards(model, engine, expert_ranks),
        "point",
    )
    ranks = engine.tensor_parallel_size
    kept: Counter[str] = Counter()
    step_bytes = row_bytes = 0
    for one in _elsewhere(stages):
        kept[one.place] += ranks * one.held_bytes
        if placement.weight_reads == "streamed" and one.block == BEFORE:
            row_bytes += model.hidden_size * model.bytes_per_element(engine.dtype)
        else:
            step_bytes += ranks * one.num_bytes
    in_order = {name: kept[name] for name in placement.memories if name in kept}
    return Moved(in_order, step_bytes, row_bytes)


def placement_notes(point: Point, placement: Placement, moved: Moved) -> list[str]:
    notes = []
    if moved.kept:
        where = ", ".join(f"{size / GIB:.2f} GiB in {name}" for name, size in moved.kept.items())
        notes.append(
            f"weights outside the device: {where}; {placement.weight_reads} reads, modelled"
        )
    if placement.kv_cache != DEVICE:
        notes.append(f"the KV cache is in {placement.kv_cache}: its transfers are modelled")
    return notes


def placement_report(
    point: Point,
    placement: Placement | None,
    moved: Moved | None,
    sources: TimeSources,
    engine: Engine,
) -> dict[str, Any]:
    """A section of the summary; nothing of a point with everything on the device.

    weight_wait_ms, kv_wait_ms: device time beyond that of the layers themselves, all stages together.
    """
    if placement is None or moved is None:
        return {}
    steps = engine.log.steps[: engine.queues.counters[0].num_steps]
    steps = steps[steps.num_tokens > 0]
    held = steps.kv_prefill + steps.prefill_tokens + steps.kv_decode + steps.num_decodes
    kv_bytes = 0
    if placement.kv_cache != DEVICE:
        kv_bytes = int(held.sum()) * kv_token_bytes(point)
    waits = engine.placed.waits[0]
    weights_ns = int(waits.weights_ns) + sources.read_ns(steps.num_tokens, steps.num_requests)
    rows = int(steps.num_tokens.sum(dtype=np.int64)) * moved.row_bytes
    return {
        "placement": {
            "weight_reads": placement.weight_reads,
            "weight_bytes": dict(moved.kept),
            "kv_cache": placement.kv_cache,
            "weight_read_bytes": len(steps) * moved.step_bytes + rows,
            "kv_moved_bytes": kv_bytes,
            "weight_wait_ms": weights_ns / 1e6,
            "kv_wait_ms": int(waits.kv_ns) / 1e6,
        }
    }


def added(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sections of a cluster's instances as one, where there are any."""
    given = [part["placement"] for part in parts if "placement" in part]
    if not given:
        return {}
    return {"placement": {name: sum(one[name] for one in given) for name in ADDED}}


def kv_token_bytes(point: Point) -> int:
    ranks = point.engine.tensor_parallel_size
    return ranks * point.model.kv_bytes_per_token(point.engine.stored_kv_dtype, ranks)


def _elsewhere(stages: Iterable[Iterable[LayerWeights]]) -> list[LayerWeights]:
    return [one for layers in stages for one in layers if one.place != DEVICE]
