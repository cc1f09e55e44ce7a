"""Reads tables at any point, one at a time: for looking at them, not for simulating.

Linear on every axis, clamped below the first sample, extrapolated from the top two above the last, as
simulator/core/latency.py does. A slice that was not measured is not replaced by another one here.
"""

from __future__ import annotations

import numpy as np

from profiles.bundle import AttentionGrid, Floats, Ints, LayerTable
from profiles.leave_one_out import AXES
from profiles.provenance import Codes


def layer_ns(table: LayerTable, count: int) -> float:
    return _between(table.keys, table.ns.astype(np.float64), count)


def attention_ns(
    grid: AttentionGrid, prefill_chunk: int, n_decode: int, kv_prefill: int, kv_decode: int
) -> float:
    """ns of one layer's attention; NaN where the samples around it were not measured."""
    rows = np.arange(len(grid.ns))
    query = (prefill_chunk, n_decode, kv_prefill, kv_decode)
    columns = [getattr(grid, axis) for axis in AXES]
    return _read(columns, grid.ns, rows, query)


def _read(columns: list[Ints], ns: Ints, rows: Ints, query: tuple[int, ...]) -> float:
    if not query:
        return float(ns[rows[0]])
    if not len(rows):
        return float("nan")
    values = columns[0][rows]
    samples = np.unique(values)
    low, high = around(samples, query[0])
    below = _read(columns[1:], ns, rows[values == samples[low]], query[1:])
    if low == high or query[0] == samples[low]:
        return below
    above = _read(columns[1:], ns, rows[values == samples[high]], query[1:])
    share = (query[0] - samples[low]) / (samples[high] - samples[low])
    return float(below + share * (above - below))


def around(samples: Ints, query: int) -> tuple[int, int]:
    """The samples a value is read from: equal ones where it is clamped."""
    if len(samples) == 1 or query <= samples[0]:
        return 0, 0
    high = min(int(np.searchsorted(samples, query)), len(samples) - 1)
    return high - 1, high


def _between(keys: Ints, ns: Floats, query: int) -> float:
    low, high = around(keys, query)
    if low == high:
        return float(ns[low])
    share = (query - keys[low]) / (keys[high] - keys[low])
    return float(ns[low] + share * (ns[high] - ns[low]))


def source_below(keys: Ints, source: Codes, query: int) -> int:
    """The source of the sample at or below."""
    return int(source[max(0, int(np.searchsorted(keys, query, side="right")) - 1)])
