"""Weights and KV cache outside the device, as a step pays for them: prepared into its tables.

Of layers whose weights are elsewhere, read in read_ns = latency + floor(bytes / bandwidth):
serial      step = tables + sum of read_ns
streamed    each layer takes max(its time, read_ns); of an embedding only the rows of the batch are read
prefetched  core/placement.py, over the runs of layers between reads that prefetch.py makes
A KV cache elsewhere is core/placement.py's too. What is read this way counts as assumed: no bandwidth
of a link was measured with the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from profiles.bundle import Bundle, Ints
from profiles.errors import InputError
from profiles.provenance import ASSUMED
from simulator.config import Point
from simulator.core import latency as core
from simulator.core.latency import Latency
from simulator.parallel import shards
from simulator.placement.config import DEVICE, Placement
from simulator.placement.links import Links
from simulator.placement.prefetch import prefetched
from simulator.placement.weights import LayerWeights, placed_stages
from simulator.step_layers import one_layer_ns
from simulator.step_tables import frozen
from simulator.time_sources import TimeSources


def placed_tables(
    latency: Latency,
    sources: TimeSources,
    point: Point,
    placement: Placement,
    bundle: Bundle | None,
    source: str | Path,
    expert_ranks: int | None = None,
) -> tuple[Latency, TimeSources]:
    """The tables of a point with everything on the device, with what is elsewhere.

    `bundle` is complete, without experts that replicas share; None for a law. Raises InputError.
    """
    _check(point, placement, bundle, latency, source)
    held = placed_stages(
        point.model,
        point.engine.dtype,
        point.engine.quantization,
        placement,
        shards(point.model, point.engine, expert_ranks),
        source,
    )
    links = Links(placement, point.engine.tensor_parallel_size)
    latency = _with_kv(latency, point, placement)
    if not any(one.place != DEVICE for layers in held for one in layers):
        return latency, sources
    if placement.weight_reads == "serial":
        return _serial(latency, sources, links, held)
    assert bundle is not None  # _check
    if placement.weight_reads == "streamed":
        row_bytes = point.model.hidden_size * point.model.bytes_per_element(point.engine.dtype)
        return _streamed(latency, sources, links, held, bundle, row_bytes)
    return prefetched(latency, bundle, links, held, point.model.num_hidden_layers), sources


def _check(
    point: Point, placement: Placement, bundle: Bundle | None, latency: Latency, source: str | Path
) -> None:
    reads = placement.weight_reads
    whole = bundle is not None and bundle.architecture.is_whole_step
    if whole and reads != "serial":
        expected = "serial, because whole steps were measured, not layers"
        raise InputError(source, "placement.weight_reads", reads, expected)
    if whole and placement.kv_cache != DEVICE:
        expected = "device, because whole steps were measured, not attention"
        raise InputError(source, "placement.kv_cache", placement.kv_cache, expected)
    if reads != "serial" and placement.moves_weights and len(latency.expert_ns) > 1:
        expected = "serial, because data-parallel replicas share their experts"
        raise InputError(source, "placement.weight_reads", reads, expected)


def _with_kv(latency: Latency, point: Point, placement: Placement) -> Latency:
    names = list(placement.memories)
    params = latency.params.copy()
    if placement.kv_cache != DEVICE:
        memory, engine = placement.memories[placement.kv_cache], point.engine
        ranks = engine.tensor_parallel_size
        token_bytes = point.model.kv_bytes_per_token(engine.stored_kv_dtype, ranks, 1)
        params.kv_memory = names.index(placement.kv_cache)
        params.kv_latency_ns = memory.latency_ns
        params.kv_token_bytes = token_bytes * (ranks if memory.link == "shared" else 1)
        if params[0].law == core.LINEAR_LAW:
            params.num_layers = point.model.num_hidden_layers
    bandwidths = [memory.bandwidth_gbps for memory in placement.memories.values()]
    return frozen(
        latency._replace(params=params, memory_bytes_per_ns=np.array(bandwidths, np.float64))
    )


def _serial(
    latency: Latency, sources: TimeSources, links: Links, held: Sequence[Sequence[LayerWeights]]
) -> tuple[Latency, TimeSources]:
    per_stage = [sum(links.ns(one) for one in layers if one.place != DEVICE) for layers in held]
    changed: dict[str, Any] = {}
    if len(held) > 1:
        changed["stage_read_ns"] = np.array(per_stage, np.int64)
    if latency.params[0].law == core.LINEAR_LAW:
        if len(held) == 1:
            changed["params"] = latency.params.copy()
            changed["params"].base_ns += per_stage[0]
        of_all = np.array([sum(per_stage)], np.int64)
        return frozen(latency._replace(**changed)), replace(sources, placed_tokens_ns=of_all)
    more = np.full_like(latency.tokens_ns, sum(per_stage))
    changed["tokens_ns"] = latency.tokens_ns + more
    return frozen(latency._replace(**changed)), _assumed(sources, more, None)


def _streamed(
    latency: Latency,
    sources: TimeSources,
    links: Links,
    held: Sequence[Sequence[LayerWeights]],
    bundle: Bundle,
    row_bytes: int,
) -> tuple[Latency, TimeSources]:
    scheduled = np.arange(len(latency.tokens_ns))
    padded = latency.padded_tokens.astype(np.int64)
    sequences = np.arange(len(latency.sequences_ns))
    stage_tokens = latency.stage_tokens_ns.copy()
    more_tokens, more_sequences = np.zeros_like(latency.tokens_ns), np.zeros_like(sequences)
    for stage, layers in enumerate(held):
        same = Counter(
            (replace(one, block=0, held_bytes=0)) for one in layers if one.place != DEVICE
        )
        for layer, times in same.items():
            own = bundle.per_sequence.get(layer.layer)
            if own is not None:
                ns = one_layer_ns(layer.layer, own, sequences)
                more_sequences += times * np.maximum(0, links.ns(layer) - ns)
                continue
            if layer.layer == "embedding":
                read: Any = links.rows_ns(layer, row_bytes, scheduled)
            else:
                read = links.ns(layer)
            ns = one_layer_ns(layer.layer, bundle.dense[layer.layer], padded)
            more = times * np.maximum(0, read - ns)
            more_tokens += more
            if len(held) > 1:
                stage_tokens[stage] += more
    changed = latency._replace(
        tokens_ns=latency.tokens_ns + more_tokens,
        stage_tokens_ns=stage_tokens,
        sequences_ns=latency.sequences_ns + more_sequences,
    )
    return frozen(changed), _assumed(sources, more_tokens, more_sequences)


def _assumed(sources: TimeSources, tokens_ns: Ints, sequences_ns: Ints | None) -> TimeSources:
    tokens, sequences = sources.tokens_ns.copy(), sources.sequences_ns.copy()
    tokens[:, ASSUMED] += tokens_ns
    if sequences_ns is not None:
        sequences[:, ASSUMED] += sequences_ns
    return TimeSources(tokens, sequences, sources.attention, tokens_ns, sequences_ns)
