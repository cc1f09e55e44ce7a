"""Attention of one rank: prefill and decode kernels as measured, and curves through them.

Prefill of one request is measured without a prefix, over its length. Decode is measured over batch
size and length; the package counts a length with the new token, the tables here without it, as the
core does. Both rules below go by the rate of a KV token in the largest measured batches.

Cells that would not fit on the card were not measured: every KV token beyond the last measured length
costs that rate. And kernels were timed again and again over one cache: what fits into the last-level
cache stayed there, while in an engine every layer reads its own. So no batch costs less than its tokens
at that rate (an RTX PRO 6000 reads 64 x 511 tokens in 49 us from its cache; LLMServingSim measured 127).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profiles.aiconfigurator.gemm import NS_PER_MS
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import Columns, System, read_columns
from profiles.bundle import Floats, Ints
from profiles.errors import InputError
from profiles.provenance import DERIVED, MEASURED, Codes

WARM = 1.05  # beyond it a time was read from the cache, and is no longer the measured one
HEADS = ("num_heads", "num_key_value_heads", "head_dim")


@dataclass(frozen=True, eq=False)
class Prefill:
    """ns of one prompt without a prefix, by its length; and the kernel that ran it."""

    tokens: Ints
    ns: Floats
    kernel: str

    def at(self, tokens: Ints) -> Floats:
        """Between measured lengths: monotone cubic through the logarithms of length and time.

        Leaving out every measured length in turn its mean error is 2.9 to 5.5 % (linear: 5.3 to
        9.0 %), with a bias below 1 % from 1024 tokens on.
        """
        from scipy.interpolate import PchipInterpolator

        curve = PchipInterpolator(np.log(self.tokens), np.log(self.ns))
        clipped = np.clip(tokens, self.tokens[0], self.tokens[-1])
        ns: Floats = np.exp(curve(np.log(clipped)))
        return ns

    def ns_per_pair(self) -> float:
        """ns of one query token and one key, all heads, in the longest prompts: the kernel's rate."""
        half = int(np.searchsorted(self.tokens, self.tokens[-1] // 2))
        longer, shorter = float(self.tokens[-1]), float(self.tokens[half])
        return float(2 * (self.ns[-1] - self.ns[half]) / (longer**2 - shorter**2))


@dataclass(frozen=True, eq=False)
class Decode:
    """ns[i, j] of n_decode[i] requests that hold kv[j] tokens each; where it comes from; the kernel."""

    n_decode: Ints
    kv: Ints
    ns: Floats
    source: Codes
    kernel: str


def prefill_table(system: System, shape: Shape) -> Prefill:
    """Raises InputError if the shape was not measured."""
    path = system.path("context_attention")
    rows = _rows(system, shape, path, ("batch_size", "isl", "latency", "kernel_source"))
    rows = rows.where(rows["batch_size"] == 1)
    tokens, index = np.unique(rows["isl"], return_inverse=True)
    ns = np.bincount(index, rows["latency"]) / np.bincount(index) * NS_PER_MS
    return Prefill(tokens.astype(np.int64), ns, _last_kernel(rows))


def decode_table(system: System, shape: Shape) -> Decode:
    """Raises InputError if the shape was not measured."""
    path = system.path("generation_attention")
    rows = _rows(system, shape, path, ("batch_size", "step", "latency", "kernel_source"))
    n_decode, i = np.unique(rows["batch_size"], return_inverse=True)
    kv, j = np.unique(rows["step"], return_inverse=True)
    ns = np.full((len(n_decode), len(kv)), np.nan)
    ns[i, j] = rows["latency"] * NS_PER_MS
    held = n_decode[:, np.newaxis] * kv.astype(np.float64)
    largest = ~np.isnan(ns) & (held >= np.nanmax(np.where(np.isnan(ns), np.nan, held)) / 2)
    rate = float(np.median(ns[largest] / held[largest]))
    full = np.maximum(_complete(ns, held, kv, rate), rate * held)
    source = np.where(np.isnan(ns) | (full > WARM * ns), DERIVED, MEASURED)
    return Decode(
        n_decode.astype(np.int64),
        kv.astype(np.int64),
        full,
        source.astype(np.uint8),
        _last_kernel(rows),
    )


def _complete(ns: Floats, held: Floats, kv: Ints, rate: float) -> Floats:
    """Cells that were not measured: `rate` ns for every token beyond the last measured length."""
    full = ns.copy()
    for i in range(len(ns)):
        measured = np.flatnonzero(~np.isnan(ns[i]))
        last = measured[-1]
        beyond = np.arange(len(kv)) > last
        full[i, beyond] = ns[i, last] + rate * (held[i, beyond] - held[i, last])
        gaps = np.isnan(full[i])
        full[i, gaps] = np.interp(kv[gaps], kv[~gaps], full[i, ~gaps])
    return full


def _rows(system: System, shape: Shape, path: Path, names: tuple[str, ...]) -> Columns:
    rows = read_columns(path, (*names, *HEADS), kv_cache_dtype=shape.kv_cache_dtype, window_size=0)
    if not len(rows):
        expected = f"bfloat16; {system.name} measured no attention over {shape.kv_cache_dtype}"
        raise system.place.error_at("engine.kv_cache_dtype", shape.kv_cache_dtype, expected)
    wanted = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
    same: npt.NDArray[np.bool_] = np.logical_and.reduce(
        [rows[name] == value for name, value in zip(HEADS, wanted, strict=True)]
    )
    if not same.any():
        raise _not_covered(system, rows, shape)
    return rows.where(same)


def _not_covered(system: System, rows: Columns, shape: Shape) -> InputError:
    measured = sorted({tuple(map(int, row)) for row in zip(*(rows[h] for h in HEADS), strict=True)})
    of_dim = [f"{heads}/{kv}" for heads, kv, dim in measured if dim == shape.head_dim]
    dims = sorted({dim for _, _, dim in measured})
    found = f"{shape.num_heads} heads, {shape.num_kv_heads} KV heads of {shape.head_dim} on a rank"
    expected = f"heads/KV heads of {shape.head_dim} measured on {system.name}: {', '.join(of_dim)}"
    if not of_dim:
        expected = f"a head_dim measured on {system.name}: {', '.join(map(str, dims))}"
    return system.place.error("system", found, expected)


def _last_kernel(rows: Columns) -> str:
    """The kernel of the last row, which has the largest shape."""
    return str(rows["kernel_source"][-1])
