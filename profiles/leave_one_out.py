"""How well tables interpolate: every inner sample left out in turn and read from its neighbours.

The error is |read / measured - 1|. It bounds what interpolation between samples costs from above, as the
left-out gap is twice as wide as any gap that a lookup meets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profiles.bundle import AttentionGrid, Bundle, Floats, Ints, LayerTable

AXES = ("prefill_chunk", "n_decode", "kv_prefill", "kv_decode")


@dataclass(frozen=True)
class Errors:
    """Of one table along one axis; shares, not per cent."""

    table: str
    axis: str
    samples: int
    mean: float
    median: float
    p95: float

    @classmethod
    def of(cls, table: str, axis: str, errors: Floats) -> Errors:
        if not len(errors):
            return cls(table, axis, 0, 0.0, 0.0, 0.0)
        mean, median = float(errors.mean()), float(np.median(errors))
        return cls(table, axis, len(errors), mean, median, float(np.percentile(errors, 95)))


def bundle_errors(bundle: Bundle) -> Iterator[Errors]:
    """Every layer over its axis, and the attention grid over each of its four."""
    for axis, tables in (("tokens", bundle.dense), ("sequences", bundle.per_sequence)):
        for layer, table in tables.items():
            yield Errors.of(layer, axis, layer_errors(table))
    for axis in AXES:
        yield Errors.of("attention", axis, grid_errors(bundle.attention, axis))


def layer_errors(table: LayerTable) -> Floats:
    return line_errors(table.keys, table.ns.astype(np.float64))


def line_errors(keys: Ints, ns: Floats) -> Floats:
    """Linear from the two neighbours of every inner sample."""
    share = (keys[1:-1] - keys[:-2]) / (keys[2:] - keys[:-2])
    read = ns[:-2] + share * (ns[2:] - ns[:-2])
    errors: Floats = np.abs(read / ns[1:-1] - 1)
    return errors


def grid_errors(grid: AttentionGrid, axis: str) -> Floats:
    """Along `axis`, over all lines of the grid on which the other three stand still.

    The step to 0 of an axis, where its requests are absent, is another kernel and no neighbour.
    """
    columns = {name: getattr(grid, name) for name in AXES}
    keys = columns.pop(axis)
    order = np.lexsort((keys, *columns.values()))
    key, ns = keys[order], grid.ns[order].astype(np.float64)
    same = np.ones(max(0, len(order) - 2), bool)
    for column in columns.values():
        other = column[order]
        same &= (other[:-2] == other[1:-1]) & (other[1:-1] == other[2:])
    if axis in ("prefill_chunk", "n_decode"):
        same &= key[:-2] > 0
    low, middle, high = key[:-2][same], key[1:-1][same], key[2:][same]
    below, there, above = ns[:-2][same], ns[1:-1][same], ns[2:][same]
    read = below + (middle - low) / (high - low) * (above - below)
    errors: Floats = np.abs(read / there - 1)
    return errors
