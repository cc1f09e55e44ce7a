"""Curves of a profile: layers over tokens, decode over length, prefill over chunk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.plots import COLOURS, DPI, STYLES, plain, save
from orchestrator.profile_views import Named
from profiles.bundle import AttentionGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mask = NDArray[np.bool_]


def draw(named: Named, path: Path) -> Path:
    """Three panels on logarithmic axes, written as PNG."""
    from matplotlib.figure import Figure

    bundle = named.bundle
    figure = Figure(figsize=(16, 5), dpi=DPI, layout="constrained")
    layers, decode, prefill = figure.subplots(1, 3)
    for number, (layer, table) in enumerate(bundle.dense.items()):
        layers.plot(table.keys, table.ns / 1e3, label=plain(layer), **_style(number))
    layers.set(xlabel="tokens", ylabel="us", title="one layer")
    grid = bundle.attention
    for number, n_decode in enumerate(_some(grid.n_decode[grid.prefill_chunk == 0])):
        here = (grid.prefill_chunk == 0) & (grid.n_decode == n_decode)
        _curve(decode, grid, here, "kv_decode", f"{n_decode} requests", number)
    decode.set(xlabel="tokens held", title="decode attention")
    alone = grid.n_decode == 0
    for number, history in enumerate(_some(grid.kv_prefill[alone])):
        _curve(prefill, grid, alone & (grid.kv_prefill == history), "prefill_chunk",
               f"after {history} tokens", number)  # fmt: skip
    prefill.set(xlabel="tokens of the chunk", title="prefill attention")
    for axis in (layers, decode, prefill):
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(plain(f"{bundle.card} {bundle.model} {bundle.variant} TP {bundle.tp}"))
    return save(figure, path)


def _style(number: int) -> dict[str, Any]:
    colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
    return {"color": colour, "linestyle": style}


def _some(values: NDArray[np.int64], most: int = 8) -> list[int]:
    """At most so many of the samples, spread over their order."""
    samples = np.unique(values)
    at = np.unique(np.linspace(0, len(samples) - 1, min(most, len(samples))).astype(int))
    found: list[int] = samples[at].tolist()
    return found


def _curve(axis: Axes, grid: AttentionGrid, here: Mask, key: str, label: str, n: int) -> None:
    keys = getattr(grid, key)[here]
    kept = keys > 0
    axis.plot(keys[kept], grid.ns[here][kept] / 1e3, label=label, **_style(n))
