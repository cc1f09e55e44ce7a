"""What one card, model, variant and TP degree measured: plain arrays, times in integer ns.

Every row says where it comes from (`provenance.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profiles.architecture import Architecture
from profiles.provenance import Codes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LayerTable:
    """A layer's time over one axis: `keys` tokens or sequences, increasing."""

    keys: Ints
    ns: Ints
    source: Codes


@dataclass(frozen=True, eq=False)
class AttentionGrid:
    """Attention over four axes, one entry per measured point.

    Sorted by (prefill_chunk, n_decode, kv_prefill, kv_decode). The grid is ragged: a slice
    (prefill_chunk, n_decode) has kv_prefill values of its own, a row of it kv_decode values of
    its own, and some slices were not measured at all.
    """

    prefill_chunk: Ints
    n_decode: Ints
    kv_prefill: Ints
    kv_decode: Ints
    ns: Ints
    source: Codes


@dataclass(frozen=True, eq=False)
class MoeTable:
    """The expert block over (activated_experts, tokens), sorted by both, one entry per point."""

    activated_experts: Ints
    tokens: Ints
    ns: Ints
    source: Codes


@dataclass(frozen=True, eq=False)
class SkewFit:
    """How much of (time at the longest decode - time at the mean) a batch pays, per bucket.

    Bucket i of an axis holds the values above `*_edges[i - 1]` up to and including `*_edges[i]`;
    the last one has no upper end. `chunk` is compared exactly.
    """

    n_decode_edges: Ints
    skew_rate_edges: Floats
    kv_max_edges: Ints
    kv_prefill_edges: Ints
    pooled_alpha: float
    chunk: Ints
    n_decode_bucket: Ints
    skew_rate_bucket: Ints
    kv_max_bucket: Ints
    kv_prefill_bucket: Ints
    alpha: Floats


@dataclass(frozen=True, eq=False)
class Bundle:
    """The measured tables; layers that TP does not change are already taken from tp1."""

    source: Path
    content_id: str
    card: str
    model: str
    variant: str
    tp: int
    architecture: Architecture
    dense: dict[str, LayerTable]
    per_sequence: dict[str, LayerTable]
    attention: AttentionGrid
    moe: MoeTable | None
    skew: SkewFit | None

    def scaled(self, *, dense: float, per_sequence: float, attention: float, moe: float) -> Bundle:
        """The same tables, each kind's times multiplied; rounded to whole ns, at least 1."""
        return replace(
            self,
            dense=_scaled_layers(self.dense, dense),
            per_sequence=_scaled_layers(self.per_sequence, per_sequence),
            attention=replace(self.attention, ns=_scaled_ns(self.attention.ns, attention)),
            moe=replace(self.moe, ns=_scaled_ns(self.moe.ns, moe)) if self.moe else None,
        )


def _scaled_layers(tables: dict[str, LayerTable], factor: float) -> dict[str, LayerTable]:
    if factor == 1.0:
        return tables
    return {n: replace(table, ns=_scaled_ns(table.ns, factor)) for n, table in tables.items()}


def _scaled_ns(ns: Ints, factor: float) -> Ints:
    if factor == 1.0:
        return ns
    scaled: Ints = np.maximum(1, np.rint(ns * factor)).astype(np.int64)
    return scaled
