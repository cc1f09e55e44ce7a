"""How long the device needs for one batch.

The tables and the way they are read are LLMServingSim 2.0's: a step is the sum of its layers, every
axis is interpolated linearly, an axis is clamped below its first sample and extrapolated from its
top two samples above the last, and lookups that leave the measured grid are noted in `outside`.
Decode lengths are read at their integer mean; a measured fit adds a share of the difference to a
batch as long as its longest request. CUDA-graph modes and capture sizes are vLLM V1's.

`step_tables.py` prepares the arrays, so that a lookup is an index, a short blend and no search.
All times are ns, all lengths tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.core.jit import compiled

TABLE_LAW = 0
LINEAR_LAW = 1

# Rows of `outside`: one per table and axis.
DENSE_TOKENS = 0
PER_SEQUENCE_SEQUENCES = 1
ATTENTION_PREFILL_CHUNK = 2
ATTENTION_KV_PREFILL = 3
ATTENTION_N_DECODE = 4
ATTENTION_KV_DECODE = 5

OUTSIDE_NAMES = (
    "dense/tokens",
    "per_sequence/sequences",
    "attention/prefill_chunk",
    "attention/kv_prefill",
    "attention/n_decode",
    "attention/kv_decode",
)


def _record(*fields: str) -> np.dtype[Any]:
    return np.dtype([(field, np.int64) for field in fields], align=True)


# below, above: batches that left the axis on that side. lowest, highest: the farthest value asked
# for. first, last: where the measured axis ended for that value. *_now: seen in this batch.
OUTSIDE_DTYPE = _record(
    "below", "above", "lowest", "highest", "first", "last", "below_now", "above_now"
)
# What `outside` starts from: the ends of every axis over the whole table.
ENDS_DTYPE = _record("first", "last")

PARAMS_DTYPE = _record(
    "law",
    "num_layers",
    "base_ns",
    "per_token_ns",
    "per_kv_token_ns",
    "per_request_ns",
    "max_capture_size",
    "full_graph_ns",
    "piecewise_ns",
    "eager_ns",
    "num_decode_samples",  # values of n_decode in the attention grid
    "num_skew_decode_buckets",  # 0 without a fit
    # Outside the device (placement.py); 0: nothing is.
    "num_reads",
    "kv_memory",
    "kv_token_bytes",  # of one block, on the link
    "kv_latency_ns",
)

# A distinct list of kv lengths. keys: start in axis_keys. lo: start in axis_lo. first, last: where
# a lookup counts as outside; an axis that cannot matter has none.
AXIS_DTYPE = _record("keys", "count", "lo", "first", "last")
# One (prefill_chunk, n_decode): its kv_prefill axis, and the row of its first kv_prefill value.
SLICE_DTYPE = _record("axis", "row")
# One (prefill_chunk, n_decode, kv_prefill): its kv_decode axis, and its first time in grid_ns.
ROW_DTYPE = _record("axis", "ns")
# Prefetched weights (placement.py): a read and the layers that run from there to the next one.
# memory: -1 reads nothing. after: the place among reads whose end makes room for it, -1: none has to.
# layers, sequence_layers: rows of the times of those layers, -1: there are none. attention: how
# many of them are attention.
READ_DTYPE = _record("memory", "ns", "after", "layers", "sequence_layers", "attention")


class Latency(NamedTuple):
    """Everything a step's duration is looked up in. Read-only; the same types for every law."""

    params: np.recarray[Any, Any]  # PARAMS_DTYPE[1]
    tokens_ns: npt.NDArray[np.int64]  # by scheduled tokens: dense layers, all blocks, padding
    sequences_ns: npt.NDArray[np.int64]  # by sequences: the layers after the last hidden state
    padded_tokens: npt.NDArray[np.int32]  # by scheduled tokens: what the dense layers run
    chunk_lo: npt.NDArray[np.int32]  # by prefill_chunk: the sample below
    chunk_t: npt.NDArray[np.float64]  # by prefill_chunk: how far towards the next sample
    decode_lo: npt.NDArray[np.int32]  # by n_decode: the sample below
    decode_t: npt.NDArray[np.float64]  # by n_decode: how far towards the next sample
    slice_of: npt.NDArray[np.int32]  # by chunk sample x decode sample: the slice, or the nearest
    slices: np.recarray[Any, Any]  # SLICE_DTYPE
    rows: np.recarray[Any, Any]  # ROW_DTYPE
    grid_ns: npt.NDArray[np.float64]  # attention of one layer, row after row
    axes: np.recarray[Any, Any]  # AXIS_DTYPE
    axis_keys: npt.NDArray[np.int64]  # the axes' values
    axis_lo: npt.NDArray[np.int32]  # by union sample: the axis' own sample below
    kv_prefill_sample: npt.NDArray[np.int16]  # by kv_prefill: the sample below, over all slices
    kv_decode_sample: npt.NDArray[np.int16]  # by kv_decode: the sample below, over all rows
    alpha: npt.NDArray[np.float64]  # skew: chunk x n_decode x skew rate x kv_max x kv_prefill
    alpha_chunk: npt.NDArray[np.int32]  # by prefill_chunk: the fitted chunk, or the unfitted row
    alpha_decode: npt.NDArray[np.int32]  # by n_decode: the bucket
    skew_rate_edges: npt.NDArray[np.float64]  # upper ends of the buckets, inclusive
    kv_max_edges: npt.NDArray[np.int64]
    kv_prefill_edges: npt.NDArray[np.int64]
    ends: np.recarray[Any, Any]  # ENDS_DTYPE, in the order of OUTSIDE_NAMES
    # Pipeline stages (pipeline.py); one stage, and tables that nobody reads, without them.
    stage_layers: npt.NDArray[np.int64]  # by stage: transformer blocks
    stage_tokens_ns: npt.NDArray[np.int64]  # stage x scheduled tokens: its part of tokens_ns
    send_ns: npt.NDArray[np.int64]  # by scheduled tokens: hidden states to the next stage
    # Experts that data-parallel replicas share (lockstep.py); one entry that nobody reads without.
    expert_ns: npt.NDArray[np.int64]  # by tokens of all replicas: a block's experts
    exchange_ns: npt.NDArray[np.int64]  # by tokens of one of equal shares: what a block exchanges
    # Weights and KV cache outside the device (placement.py); entries that nobody reads without.
    stage_read_ns: npt.NDArray[np.int64]  # by stage: weights read serially, of several stages
    reads: np.recarray[Any, Any]  # READ_DTYPE, stage after stage
    stage_reads: npt.NDArray[np.int64]  # by stage: where its reads begin, and the end
    layers_by_tokens: npt.NDArray[np.int64]  # row x scheduled tokens
    layers_by_sequences: npt.NDArray[np.int64]  # row x sequences
    memory_bytes_per_ns: npt.NDArray[np.float64]  # by memory


class Shape(NamedTuple):
    """A point of the attention grid."""

    prefill_chunk: int
    kv_prefill: int
    n_decode: int
    kv_decode: int


@compiled
def step_ns(
    latency: Latency,
    outside: Any,
    num_tokens: int,
    num_seqs: int,
    prefill_chunk: int,
    kv_prefill: int,
    n_decode: int,
    kv_sum: int,
    kv_max: int,
    kv_min: int,
) -> int:
    """Device time of one batch.

    `prefill_chunk` and `kv_prefill` sum the chunks and the lengths before them over the requests
    with a chunk; `n_decode`, `kv_sum`, `kv_max`, `kv_min` describe the lengths before this step of
    the requests with one token.
    """
    params = latency.params[0]
    if params.law == LINEAR_LAW:
        kv_tokens = kv_prefill + prefill_chunk + kv_sum + n_decode
        ns = linear_ns(params, num_tokens, num_seqs, kv_tokens)
    else:
        note(outside[DENSE_TOKENS], latency.padded_tokens[num_tokens])
        note(outside[PER_SEQUENCE_SEQUENCES], num_seqs)
        attention = attention_ns(
            latency, outside, prefill_chunk, kv_prefill, n_decode, kv_sum, kv_max, kv_min
        )
        ns = (
            latency.tokens_ns[num_tokens]
            + latency.sequences_ns[num_seqs]
            + params.num_layers * attention
        )
    return max(1, int(ns + mode_ns(params, num_tokens, prefill_chunk)))


@compiled
def batch_attention_ns(latency: Latency, outside: Any, batch: Any, num_tokens: int) -> int:
    """Attention of one block of a batch whose dense layers run `num_tokens`; lookups are noted."""
    note(outside[DENSE_TOKENS], latency.padded_tokens[num_tokens])
    note(outside[PER_SEQUENCE_SEQUENCES], batch.num_requests)
    return attention_ns(
        latency,
        outside,
        batch.prefill_chunk,
        batch.kv_prefill,
        batch.num_decodes,
        batch.kv_decode_sum,
        batch.kv_decode_max,
        batch.kv_decode_min,
    )


@compiled
def linear_ns(params: Any, num_tokens: int, num_seqs: int, kv_tokens: int) -> int:
    """A step without tables; `kv_tokens` is what the batch's requests hold after it."""
    return (
        params.base_ns
        + params.per_token_ns * num_tokens
        + params.per_kv_token_ns * kv_tokens
        + params.per_request_ns * num_seqs
    )


@compiled
def mode_ns(params: Any, num_tokens: int, prefill_chunk: int) -> int:
    """What the execution mode adds (vLLM's FULL_AND_PIECEWISE); may be negative."""
    if num_tokens > params.max_capture_size:
        return params.eager_ns
    if prefill_chunk == 0:
        return params.full_graph_ns
    return params.piecewise_ns


@compiled
def attention_ns(
    latency: Latency,
    outside: Any,
    prefill_chunk: int,
    kv_prefill: int,
    n_decode: int,
    kv_sum: int,
    kv_max: int,
    kv_min: int,
) -> int:
    """Attention of one layer: read at the mean decode length, then corrected for skew."""
    if prefill_chunk + n_decode == 0:
        return 0
    if prefill_chunk > 0:
        note(outside[ATTENTION_PREFILL_CHUNK], prefill_chunk)
    kv_mean = 0
    if n_decode > 0:
        note(outside[ATTENTION_N_DECODE], n_decode)
        kv_mean = kv_sum // n_decode
    ns = grid_ns(latency, outside, Shape(prefill_chunk, kv_prefill, n_decode, kv_mean))
    if latency.params[0].num_skew_decode_buckets > 0 and n_decode > 1 and kv_max != kv_mean:
        skew_rate = (kv_mean - kv_min) / (kv_max - kv_min)
        longest = Shape(prefill_chunk, kv_prefill, n_decode, kv_max)
        alpha = skew_alpha(latency, longest, skew_rate)
        if alpha != 0.0:
            ns_longest = grid_ns(latency, outside, longest)
            if ns_longest > ns:
                ns = max(1, round(ns + alpha * (ns_longest - ns)))
    settle(outside[ATTENTION_KV_PREFILL])
    settle(outside[ATTENTION_KV_DECODE])
    return ns


@compiled
def grid_ns(latency: Latency, outside: Any, shape: Shape) -> int:
    """One point of the grid: blended along kv_decode, kv_prefill, n_decode, then prefill_chunk.

    Up to two measured prefill_chunk, in each up to two n_decode, in each up to two kv_prefill rows.
    Loops, because code that is written out per corner takes eight times as long to compile.
    """
    chunk_lo, chunk_t = latency.chunk_lo[shape.prefill_chunk], latency.chunk_t[shape.prefill_chunk]
    decode_lo, decode_t = latency.decode_lo[shape.n_decode], latency.decode_t[shape.n_decode]
    ns = at_chunk = at_decode = 0.0
    for chunk_side in range(sides(chunk_t)):
        corner = (chunk_lo + chunk_side) * latency.params[0].num_decode_samples + decode_lo
        for decode_side in range(sides(decode_t)):
            part = latency.slices[latency.slice_of[corner + decode_side]]
            axis = latency.axes[part.axis]
            if shape.prefill_chunk > 0:
                watch(outside[ATTENTION_KV_PREFILL], axis, shape.kv_prefill)
            row, row_t = bracket(latency, axis, latency.kv_prefill_sample, shape.kv_prefill)
            for row_side in range(sides(row_t)):
                in_row = row_ns(latency, outside, part.row + row + row_side, shape)
                at_decode = blend(row_side, at_decode, in_row, row_t)
            at_chunk = blend(decode_side, at_chunk, at_decode, decode_t)
        ns = blend(chunk_side, ns, at_chunk, chunk_t)
    return max(1, int(ns))


@compiled
def sides(t: float) -> int:
    """How many samples a lookup needs: one if it is on the lower of the two."""
    return 1 if t == 0.0 else 2


@compiled
def blend(side: int, below: float, value: float, t: float) -> float:
    """The lower sample's value as it is, the upper one's blended with it."""
    return value if side == 0 else below + t * (value - below)


@compiled
def row_ns(latency: Latency, outside: Any, index: int, shape: Shape) -> float:
    """Within row number `index`, between two of its kv_decode samples."""
    row = latency.rows[index]
    axis = latency.axes[row.axis]
    if shape.n_decode > 0:
        watch(outside[ATTENTION_KV_DECODE], axis, shape.kv_decode)
    lo, t = bracket(latency, axis, latency.kv_decode_sample, shape.kv_decode)
    ns = latency.grid_ns[row.ns + lo]
    if t != 0.0:
        ns = ns + t * (latency.grid_ns[row.ns + lo + 1] - ns)
    return ns


@compiled
def bracket(latency: Latency, axis: Any, sample_of: Any, query: int) -> tuple[int, float]:
    """The sample of `axis` below `query` and how far it is towards the next one.

    (0, 0.0) up to the first sample; above the last one, from the top two with more than 1.0.
    """
    if axis.count == 1 or query <= latency.axis_keys[axis.keys]:
        return 0, 0.0
    union_sample = sample_of[min(query, len(sample_of) - 1)]
    lo = int(latency.axis_lo[axis.lo + union_sample])
    x0 = latency.axis_keys[axis.keys + lo]
    x1 = latency.axis_keys[axis.keys + lo + 1]
    return lo, (query - x0) / (x1 - x0)


@compiled
def skew_alpha(latency: Latency, shape: Shape, skew_rate: float) -> float:
    """The fitted share of a bucket; `shape.kv_decode` is the longest, `skew_rate` as fitted."""
    rates = latency.skew_rate_edges
    lengths = latency.kv_max_edges
    histories = latency.kv_prefill_edges
    at = latency.alpha_chunk[shape.prefill_chunk] * latency.params[0].num_skew_decode_buckets
    at = at + latency.alpha_decode[shape.n_decode]
    at = at * len(rates) + bucket(rates, min(1.0, max(0.0, skew_rate)))
    at = at * len(lengths) + bucket(lengths, shape.kv_decode)
    at = at * len(histories) + bucket(histories, shape.kv_prefill)
    return latency.alpha[at]


@compiled
def bucket(edges: Any, value: float) -> int:
    """The first bucket whose upper end is not below `value`; the last one has no end."""
    for index in range(len(edges) - 1):
        if value <= edges[index]:
            return index
    return len(edges) - 1


@compiled
def note(record: Any, value: int) -> None:
    """Count a value outside an axis that is the same in the whole table."""
    if value > record.last:
        record.above += 1
        record.highest = max(record.highest, value)
    elif value < record.first:
        record.below += 1
        record.lowest = min(record.lowest, value)


@compiled
def watch(record: Any, axis: Any, value: int) -> None:
    """Remember a value outside one of the several axes that a batch reads."""
    if value > axis.last:
        if record.above + record.above_now == 0 or value > record.highest:
            record.highest = value
            record.last = axis.last
        record.above_now = 1
    elif value < axis.first:
        if record.below + record.below_now == 0 or value < record.lowest:
            record.lowest = value
            record.first = axis.first
        record.below_now = 1


@compiled
def settle(record: Any) -> None:
    """Count a batch once, however many of its lookups were outside."""
    record.above += record.above_now
    record.below += record.below_now
    record.above_now = 0
    record.below_now = 0
