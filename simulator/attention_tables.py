"""The attention grid and its skew fit as the arrays that `core/latency.py` indexes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from profiles.bundle import AttentionGrid, Floats, Ints, SkewFit
from simulator.core import latency as core

UnfittedAlpha = Literal["zero", "pooled"]
# A kv axis of a slice that has no such tokens: whatever is asked, it is not outside.
NO_END = 2**62


def bracket(samples: Ints, queries: Ints) -> tuple[Ints, Floats]:
    """The sample below each query and how far the query is towards the next one.

    Up to the first sample that one itself; above the last the top two, with more than 1.
    """
    if len(samples) == 1:
        return np.zeros(len(queries), np.int64), np.zeros(len(queries))
    lo = np.searchsorted(samples, queries, side="right") - 1
    lo = np.minimum(np.maximum(lo, 0), len(samples) - 2)
    below = samples[lo]
    t = (queries - below) / (samples[lo + 1] - below)
    t[queries <= samples[0]] = 0.0
    return lo, t


def attention_arrays(
    grid: AttentionGrid, max_num_batched_tokens: int, max_num_seqs: int
) -> tuple[dict[str, Any], int]:
    """The grid as slices of rows, and how many n_decode samples it has.

    Equal lists of kv lengths are stored once, as an axis.
    """
    slice_starts = starts(grid.prefill_chunk, grid.n_decode)
    row_starts = starts(grid.prefill_chunk, grid.n_decode, grid.kv_prefill)
    chunks, decodes = grid.prefill_chunk[slice_starts], grid.n_decode[slice_starts]
    chunk_samples, decode_samples = np.unique(chunks), np.unique(decodes)
    chunk_lo, chunk_t = bracket(chunk_samples, np.arange(max_num_batched_tokens + 1))
    decode_lo, decode_t = bracket(decode_samples, np.arange(max_num_seqs + 1))

    axes = Axes()
    rows = np.zeros(len(row_starts), core.ROW_DTYPE)
    rows["ns"] = row_starts
    rows["axis"], kv_decode_union = axes.add(
        grid.kv_decode, row_starts, matters=grid.n_decode[row_starts] > 0
    )
    slices = np.zeros(len(slice_starts), core.SLICE_DTYPE)
    slices["row"] = np.searchsorted(row_starts, slice_starts)
    slices["axis"], kv_prefill_union = axes.add(
        grid.kv_prefill[row_starts], slices["row"], matters=chunks > 0
    )
    arrays = {
        "chunk_lo": chunk_lo.astype(np.int32),
        "chunk_t": chunk_t,
        "decode_lo": decode_lo.astype(np.int32),
        "decode_t": decode_t,
        "slice_of": nearest_slices(chunks, decodes),
        "slices": slices,
        "rows": rows,
        "grid_ns": grid.ns.astype(np.float64),
        "axes": np.array(axes.records, core.AXIS_DTYPE),
        "axis_keys": np.concatenate(axes.keys),
        "axis_lo": np.concatenate(axes.lo).astype(np.int32),
        "kv_prefill_sample": sample_below(kv_prefill_union),
        "kv_decode_sample": sample_below(kv_decode_union),
    }
    return arrays, len(decode_samples)


class Axes:
    """Distinct lists of kv lengths, in the order they were added."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, int, int]] = []
        self.keys: list[Ints] = []
        self.lo: list[Ints] = []

    def add(self, values: Ints, begins: Ints, matters: Any) -> tuple[Ints, Ints]:
        """Add the lists that start at `begins` in `values`.

        Returns the number of each list's axis, and every value there is. Lists that do not matter
        belong to slices without such tokens.
        """
        union = np.unique(values)
        known: dict[tuple[bytes, bool], int] = {}
        new = differs_from_last(values, begins)
        new[1:] |= matters[1:] != matters[:-1]
        ends = np.append(begins[1:], len(values))
        numbers = []
        for group in np.flatnonzero(new):
            keys = values[begins[group] : ends[group]]
            name = (keys.tobytes(), bool(matters[group]))
            if name not in known:
                known[name] = self._store(keys, union, name[1])
            numbers.append(known[name])
        return np.array(numbers)[np.cumsum(new) - 1], union

    def _store(self, keys: Ints, union: Ints, matters: bool) -> int:
        first, last = int(keys[0]), int(keys[-1])
        if not matters and len(keys) == 1:
            first, last = 0, NO_END
        at_keys, at_lo = sum(map(len, self.keys)), sum(map(len, self.lo))
        self.records.append((at_keys, len(keys), at_lo, first, last))
        self.keys.append(keys)
        below = np.searchsorted(keys, union, side="right") - 1
        self.lo.append(np.clip(below, 0, max(0, len(keys) - 2)))
        return len(self.records) - 1


def differs_from_last(values: Ints, begins: Ints) -> npt.NDArray[np.bool_]:
    """For every list whether it differs from the list before it."""
    lengths = np.diff(np.append(begins, len(values)))
    before = np.arange(len(values)) - np.repeat(lengths, lengths)
    same = np.logical_and.reduceat(values == values[np.maximum(before, 0)], begins)
    same[1:] &= lengths[1:] == lengths[:-1]
    same[0] = False
    return ~same


def starts(*columns: Ints) -> Ints:
    """Where a new combination of values begins in sorted columns."""
    changed = np.zeros(len(columns[0]), bool)
    changed[0] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def nearest_slices(chunks: Ints, decodes: Ints) -> Any:
    """For every corner (chunk sample, decode sample) its slice.

    A corner that was not measured takes the nearest one that was: by squared distance, the first
    in order where two are equally far.
    """
    chunk_samples, chunk_index = np.unique(chunks, return_inverse=True)
    decode_samples, decode_index = np.unique(decodes, return_inverse=True)
    corners = np.full((len(chunk_samples), len(decode_samples)), -1)
    corners[chunk_index, decode_index] = np.arange(len(chunks))
    i, k = np.nonzero(corners < 0)
    chunk_distance = (chunks - chunk_samples[i, np.newaxis]) ** 2
    decode_distance = (decodes - decode_samples[k, np.newaxis]) ** 2
    corners[i, k] = np.argmin(chunk_distance + decode_distance, axis=1)
    return corners.ravel().astype(np.int32)


def sample_below(union: Ints) -> Any:
    """For every length 0..last the number of the sample at or below it (0 below the first)."""
    counts = np.diff(np.append(union, union[-1] + 1))
    counts[0] += union[0]
    return np.repeat(np.arange(len(union)), counts).astype(np.int16)


def skew_arrays(
    fit: SkewFit | None, max_num_batched_tokens: int, max_num_seqs: int, unfitted: UnfittedAlpha
) -> dict[str, Any]:
    """The shares as one table; a chunk that was not fitted has a row of unfitted buckets."""
    if fit is None:
        one = {"alpha": np.zeros(1), "skew_rate_edges": np.zeros(1)}
        i4, i8 = np.zeros(1, np.int32), np.zeros(1, np.int64)
        edges = {"kv_max_edges": i8, "kv_prefill_edges": i8}
        return {**one, "alpha_chunk": i4, "alpha_decode": i4, **edges}
    chunks, chunk_index = np.unique(fit.chunk, return_inverse=True)
    shape = (
        len(chunks) + 1,
        len(fit.n_decode_edges),
        len(fit.skew_rate_edges),
        len(fit.kv_max_edges),
        len(fit.kv_prefill_edges),
    )
    alpha = np.full(shape, fit.pooled_alpha if unfitted == "pooled" else 0.0)
    buckets = (
        fit.n_decode_bucket,
        fit.skew_rate_bucket,
        fit.kv_max_bucket,
        fit.kv_prefill_bucket,
    )
    alpha[(chunk_index, *buckets)] = fit.alpha
    alpha_chunk = np.full(max_num_batched_tokens + 1, len(chunks), np.int32)
    reachable = chunks <= max_num_batched_tokens
    alpha_chunk[chunks[reachable]] = np.flatnonzero(reachable)
    n_decode = np.searchsorted(fit.n_decode_edges[:-1], np.arange(max_num_seqs + 1))
    return {
        "alpha": alpha.ravel(),
        "alpha_chunk": alpha_chunk,
        "alpha_decode": n_decode.astype(np.int32),
        "skew_rate_edges": fit.skew_rate_edges,
        "kv_max_edges": fit.kv_max_edges,
        "kv_prefill_edges": fit.kv_prefill_edges,
    }
