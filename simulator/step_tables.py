"""From measured tables to the arrays that `core/latency.py` reads: once per profile and limits.

A step's device time is
    dense layers of the scheduled tokens (block layers once per transformer block)
    + per-sequence layers of the sequences
    + attention x transformer blocks
    + what the execution mode adds.
Under tensor parallelism this is one rank's, with its all-reduces among the dense layers. The expert
block of a model with experts is a dense layer too, at the experts that so many tokens wake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from profiles.bundle import Bundle, Floats, Ints, LayerTable
from profiles.errors import InputError
from profiles.provenance import NAMES
from profiles.routing import Routing, experts_by_tokens
from simulator.attention_tables import (
    NO_END,
    UnfittedAlpha,
    attention_arrays,
    bracket,
    skew_arrays,
)
from simulator.core import latency as core
from simulator.core.latency import Latency
from simulator.time_sources import TimeSources


class ModeTimes(NamedTuple):
    """What an execution mode adds to a step, ns; may be negative.

    Tables are measured eager, layer by layer. Up to the largest capture size a batch of decodes
    only replays one graph and a batch with a prefill chunk runs piecewise; above, it runs eager.
    """

    full_graph: int = 0
    piecewise: int = 0
    eager: int = 0


class Stages(NamedTuple):
    """Pipeline stages: transformer blocks of each, and ns from one to the next by scheduled tokens."""

    layers: tuple[int, ...] = ()
    send_ns: tuple[int, ...] = ()


ONE_STAGE = Stages()


def step_tables(
    bundle: Bundle,
    *,
    num_layers: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    capture_sizes: Sequence[int] = (),
    pad_to_capture_size: bool = True,
    mode_ns: ModeTimes = ModeTimes(),  # noqa: B008 (immutable)
    unfitted_alpha: UnfittedAlpha = "pooled",
    routing: Routing | None = None,
    stages: Stages = ONE_STAGE,
    expert_ns: tuple[int, ...] = (),
    exchange_ns: tuple[int, ...] = (),
) -> Latency:
    """The lookup arrays of one rank; of one rank of every stage under pipeline parallelism.

    `expert_ns`: by tokens of all data-parallel replicas, a block's experts that they share;
    `exchange_ns`: by the tokens of each, what they exchange around them. The bundle's own expert block
    is left out then.

    `capture_sizes` empty means CUDA graphs are off: no padding, every step runs eager. With
    `pad_to_capture_size` the dense layers run as many tokens as the graph they replay; attention
    and the per-sequence layers never do. `unfitted_alpha` is the skew share of a bucket that has no
    fit: none, or the bundle's own pooled share. `routing` is needed where the bundle measured experts
    over how many are awake; raises InputError where it is missing.
    """
    bundle = without_experts(bundle) if expert_ns else complete(bundle, routing)
    sizes = graph_sizes(capture_sizes, max_num_batched_tokens)
    padded = padded_tokens(sizes, max_num_batched_tokens, pad_to_capture_size)
    attention, num_decode_samples = attention_arrays(
        bundle.attention, max_num_batched_tokens, max_num_seqs
    )
    skew = skew_arrays(bundle.skew, max_num_batched_tokens, max_num_seqs, unfitted_alpha)
    params = one_record(
        law=core.TABLE_LAW,
        num_layers=attention_times(bundle, num_layers),
        num_decode_samples=num_decode_samples,
        num_skew_decode_buckets=len(bundle.skew.n_decode_edges) if bundle.skew else 0,
        **mode_fields(sizes, mode_ns),
    )
    return frozen(
        Latency(
            params=params,
            tokens_ns=dense_ns(bundle, num_layers, padded).sum(axis=1),
            **stage_arrays(bundle, stages, num_layers, padded),
            sequences_ns=sequences_ns(bundle, num_layers, max_num_seqs).sum(axis=1),
            padded_tokens=padded.astype(np.int32),
            **attention,
            **skew,
            ends=outside_ends(bundle),
            expert_ns=np.array(expert_ns or (0,), np.int64),
            exchange_ns=np.array(exchange_ns or (0,), np.int64),
            **nothing_outside(len(stages.layers)),
        )
    )


def step_sources(
    bundle: Bundle,
    *,
    num_layers: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    capture_sizes: Sequence[int] = (),
    pad_to_capture_size: bool = True,
    routing: Routing | None = None,
    expert_ns: tuple[int, ...] = (),
) -> TimeSources:
    """Where the times of `step_tables` with the same arguments come from."""
    bundle = without_experts(bundle) if expert_ns else complete(bundle, routing)
    sizes = graph_sizes(capture_sizes, max_num_batched_tokens)
    padded = padded_tokens(sizes, max_num_batched_tokens, pad_to_capture_size)
    return TimeSources(
        tokens_ns=dense_ns(bundle, num_layers, padded),
        sequences_ns=sequences_ns(bundle, num_layers, max_num_seqs),
        attention=bundle.attention.source,
    )


def linear_law(
    base_ns: int,
    per_token_ns: int,
    per_kv_token_ns: int,
    per_request_ns: int,
    *,
    capture_sizes: Sequence[int] = (),
    mode_ns: ModeTimes = ModeTimes(),  # noqa: B008 (immutable)
    stages: Stages = ONE_STAGE,
) -> Latency:
    """A step of base + per_token x tokens + per_kv_token x kv + per_request x requests.

    kv is what the batch's requests hold after the step. Nothing is ever outside. Pipeline stages
    have shares of it by their layers.
    """
    sizes = graph_sizes(capture_sizes, None)
    params = one_record(
        law=core.LINEAR_LAW,
        base_ns=base_ns,
        per_token_ns=per_token_ns,
        per_kv_token_ns=per_kv_token_ns,
        per_request_ns=per_request_ns,
        num_layers=sum(stages.layers) or 1,
        **mode_fields(sizes, mode_ns),
    )
    i4, i8, f8 = np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.float64)
    i2 = np.zeros(1, np.int16)
    ends = np.zeros(len(core.OUTSIDE_NAMES), core.ENDS_DTYPE).view(np.recarray)
    ends.last = NO_END
    return frozen(
        Latency(
            params=params,
            tokens_ns=i8,
            sequences_ns=i8,
            padded_tokens=i4,
            chunk_lo=i4,
            chunk_t=f8,
            decode_lo=i4,
            decode_t=f8,
            slice_of=i4,
            slices=np.zeros(1, core.SLICE_DTYPE).view(np.recarray),
            rows=np.zeros(1, core.ROW_DTYPE).view(np.recarray),
            grid_ns=f8,
            axes=np.zeros(1, core.AXIS_DTYPE).view(np.recarray),
            axis_keys=i8,
            axis_lo=i4,
            kv_prefill_sample=i2,
            kv_decode_sample=i2,
            alpha=f8,
            alpha_chunk=i4,
            alpha_decode=i4,
            skew_rate_edges=f8,
            kv_max_edges=i8,
            kv_prefill_edges=i8,
            ends=ends,
            stage_layers=np.array(stages.layers or (1,), np.int64),
            stage_tokens_ns=np.zeros((1, 1), np.int64),
            send_ns=np.array(stages.send_ns or (0,), np.int64),
            expert_ns=np.zeros(1, np.int64),
            exchange_ns=np.zeros(1, np.int64),
            **nothing_outside(len(stages.layers)),
        )
    )


def nothing_outside(num_stages: int) -> dict[str, Any]:
    """The fields of a Latency whose weights and KV cache are on the device."""
    return {
        "stage_read_ns": np.zeros(max(1, num_stages), np.int64),
        "reads": np.zeros(1, core.READ_DTYPE).view(np.recarray),
        "stage_reads": np.zeros(1, np.int64),
        "layers_by_tokens": np.zeros((1, 1), np.int64),
        "layers_by_sequences": np.zeros((1, 1), np.int64),
        "memory_bytes_per_ns": np.ones(1, np.float64),
    }


def new_outside(latency: Latency) -> np.recarray[Any, Any]:
    """An empty account of lookups outside the grid: one record per name in OUTSIDE_NAMES."""
    outside = np.zeros(len(core.OUTSIDE_NAMES), core.OUTSIDE_DTYPE).view(np.recarray)
    outside.first = outside.lowest = latency.ends.first
    outside.last = outside.highest = latency.ends.last
    return outside


def graph_sizes(capture_sizes: Sequence[int], max_num_batched_tokens: int | None) -> Ints:
    """The sizes that are captured: vLLM drops those no batch can reach."""
    sizes = np.unique(np.asarray(capture_sizes, dtype=np.int64))
    if max_num_batched_tokens is not None:
        sizes = sizes[sizes <= max_num_batched_tokens]
    return sizes


def pad(tokens: Ints, sizes: Ints) -> Ints:
    """The smallest capture size that holds `tokens`; `tokens` above the largest."""
    if not len(sizes):
        return tokens
    index = np.searchsorted(sizes, tokens)
    return np.where(index < len(sizes), sizes[np.minimum(index, len(sizes) - 1)], tokens)


def padded_tokens(sizes: Ints, max_num_batched_tokens: int, pad_to_capture_size: bool) -> Ints:
    """By scheduled tokens: what the dense layers run."""
    scheduled = np.arange(max_num_batched_tokens + 1)
    return pad(scheduled, sizes) if pad_to_capture_size else scheduled


def mode_fields(sizes: Ints, mode_ns: ModeTimes) -> dict[str, int]:
    return {
        "max_capture_size": int(sizes[-1]) if len(sizes) else 0,
        "full_graph_ns": mode_ns.full_graph,
        "piecewise_ns": mode_ns.piecewise,
        "eager_ns": mode_ns.eager,
    }


def complete(bundle: Bundle, routing: Routing | None) -> Bundle:
    """The bundle with every layer that a step runs by tokens or sequences. Raises InputError."""
    if bundle.moe is None:
        return bundle
    if routing is None:
        expected = "how many experts there are and how many a token chooses"
        raise InputError(bundle.source, "routing", routing, expected)
    (layer,) = bundle.architecture.layers("moe")
    return replace(
        bundle,
        architecture=bundle.architecture.with_experts_by_tokens(),
        dense={**bundle.dense, layer: experts_by_tokens(bundle.moe, routing)},
        moe=None,
    )


def without_experts(bundle: Bundle) -> Bundle:
    return replace(bundle, architecture=bundle.architecture.without_experts(), moe=None)


def stage_arrays(bundle: Bundle, stages: Stages, num_layers: int, tokens: Ints) -> dict[str, Any]:
    """What a stage's dense layers take: its blocks, and what comes before or after all."""
    if len(stages.layers) <= 1:
        one = {"stage_tokens_ns": np.zeros((1, 1), np.int64), "send_ns": np.zeros(1, np.int64)}
        return {"stage_layers": np.array([num_layers]), **one}
    architecture = bundle.architecture
    once = [architecture.prologue, *((),) * (len(stages.layers) - 2), architecture.head]
    block = architecture.block("dense")
    rows = [
        layers_ns(bundle.dense, here, block, layers, tokens).sum(axis=1)
        for here, layers in zip(once, stages.layers, strict=True)
    ]
    return {
        "stage_layers": np.array(stages.layers, np.int64),
        "stage_tokens_ns": np.stack(rows),
        "send_ns": np.array(stages.send_ns, np.int64),
    }


def dense_ns(bundle: Bundle, num_layers: int, tokens: Ints) -> Ints:
    once, block = bundle.architecture.once("dense"), bundle.architecture.block("dense")
    return layers_ns(bundle.dense, once, block, num_layers, tokens)


def sequences_ns(bundle: Bundle, num_layers: int, max_num_seqs: int) -> Ints:
    once = bundle.architecture.once("per_sequence")
    block = bundle.architecture.block("per_sequence")
    return layers_ns(bundle.per_sequence, once, block, num_layers, np.arange(max_num_seqs + 1))


def attention_times(bundle: Bundle, num_layers: int) -> int:
    """How often a step runs what the attention grid measured."""
    once, block = bundle.architecture.once("attention"), bundle.architecture.block("attention")
    return len(once) + num_layers * len(block)


def layers_ns(
    tables: dict[str, LayerTable],
    once: Sequence[str],
    block: Sequence[str],
    num_layers: int,
    queries: Ints,
) -> Ints:
    """[query, source]: the sum of the layers; a layer that a step runs k times counts k times.

    Each layer is clamped below, extrapolated above, cut to whole ns and at least 1 before it is
    summed. Its source is that of the sample below.
    """
    total = np.zeros((len(queries), len(NAMES)), np.int64)
    every = np.arange(len(queries))
    brackets: dict[bytes, tuple[Ints, Floats]] = {}
    for layer, table in tables.items():
        times = once.count(layer) + num_layers * block.count(layer)
        if not times:
            continue
        samples = table.keys.tobytes()
        if samples not in brackets:
            brackets[samples] = bracket(table.keys, queries)
        lo, t = brackets[samples]
        slope = np.append(np.diff(table.ns), 0)
        ns = table.ns[lo] + t * slope[lo]
        total[every, table.source[lo]] += times * np.maximum(1, ns.astype(np.int64))
    return total


def outside_ends(bundle: Bundle) -> np.recarray[Any, Any]:
    """Where each axis is measured, in the order of OUTSIDE_NAMES.

    For layers the range that all of them share; for kv lengths the widest range of any slice that
    has such tokens.
    """
    grid = bundle.attention
    with_chunk, with_decode = grid.prefill_chunk > 0, grid.n_decode > 0
    ranges = [
        common_range(bundle.dense),
        common_range(bundle.per_sequence),
        whole_range(grid.prefill_chunk),
        whole_range(grid.kv_prefill[with_chunk]),
        whole_range(grid.n_decode),
        whole_range(grid.kv_decode[with_decode]),
    ]
    return np.array(ranges, core.ENDS_DTYPE).view(np.recarray)


def whole_range(values: Ints) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)


def common_range(tables: dict[str, LayerTable]) -> tuple[int, int]:
    if not tables:
        return 0, NO_END
    first = max(int(table.keys[0]) for table in tables.values())
    last = min(int(table.keys[-1]) for table in tables.values())
    return first, last


def one_record(**values: int) -> np.recarray[Any, Any]:
    params = np.zeros(1, core.PARAMS_DTYPE).view(np.recarray)
    for field, value in values.items():
        params[field] = value
    return params


def frozen(latency: Latency) -> Latency:
    """Read-only and contiguous, so that every Latency has the same compiled type."""
    views: list[Any] = []
    for array in map(np.ascontiguousarray, latency):
        view = array.view(np.recarray if array.dtype.names else np.ndarray)
        view.flags.writeable = False
        views.append(view)
    return Latency(*views)
