"""The pictures of a sweep: the best points over the truth, and the error over two axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.expand import SweepPoint
from orchestrator.plan import Plan
from orchestrator.ranking import LATENCY, MEAN_ABS, PARTIAL, best_points, measure, score
from orchestrator.resolve import short
from orchestrator.store import SweepStore
from orchestrator.truth_data import Truth

SHOWN = 3
SERIES = {"running": "running", "waiting": "waiting", "kv_cache_usage": "share of KV blocks in use"}
MAPS = {
    MEAN_ABS: ("error.png", "mean absolute error (%)"),
    PARTIAL: ("error.png", "mean absolute error (%), of some metrics"),
    LATENCY: ("mean_latency.png", "mean latency (ms)"),
}
CURVES = {"ttft_ms": "TTFT (ms)", "tpot_ms": "TPOT (ms)", "latency_ms": "latency (ms)"}


def draw(plan: Plan, folder: Path) -> list[Path]:
    """Draw what the sweep's folder has data for, into `folder`/plots. Returns the files."""
    # matplotlib takes half a second to import.
    from orchestrator import plots

    pictures = folder / "plots"
    pictures.mkdir(exist_ok=True)
    written = []
    store = SweepStore(folder)
    kept = {p.point_id: store.read_point(p.point_id) for p in best_points(plan, SHOWN)}
    best = [p for p in best_points(plan, SHOWN) if kept[p.point_id] is not None]
    truth = best[0].truth if best else None
    best = [p for p in best if p.truth_id == (truth.content_id if truth else None)]
    if best:
        tables = {_label(p): kept[p.point_id] or {} for p in best}
        if truth is None or truth.requests is not None:
            curves = {name: _latencies(own["requests"]) for name, own in tables.items()}
            measured = _truth_latencies(truth) if truth else None
            written.append(plots.latency_cdfs(pictures / "latency.png", measured, curves))
        if truth is None or truth.series:
            series = {name: _series(own["timeseries"]) for name, own in tables.items()}
            path = pictures / "over_time.png"
            recorded = _truth_series(truth) if truth else None
            written.append(plots.over_time(path, recorded, series))
    written += _heatmap(plan, pictures)
    return written


def _heatmap(plan: Plan, pictures: Path) -> list[Path]:
    """What ranks the points, over the two axes with the most values."""
    from orchestrator import plots

    values: dict[str, set[str]] = {}
    for point in plan.points:
        for axis, value in point.axes.items():
            values.setdefault(axis, set()).add(str(value))
    axes = sorted((a for a in values if len(values[a]) > 1), key=lambda a: -len(values[a]))[:2]
    rows = [(p, o) for p, o, _ in plan.rows()]
    by = measure(plan)
    scores = [score((o or {}).get("metrics") or {}, by) for _, o in rows]
    shown = [float("nan") if value is None else value for value in scores]
    if len(axes) < 2 or not np.isfinite(shown).any():
        return []
    x, y = ([_cell(p.axes[axis]) for p, _ in rows] for axis in axes)
    file, name = MAPS[by]
    return [plots.error_heatmap(pictures / file, x, y, shown, axes[0], axes[1], name)]


def _cell(value: Any) -> Any:
    """Lists and sections by their text."""
    return value if isinstance(value, str | int | float | None) else str(value)


def _label(point: SweepPoint) -> str:
    """The values of its axes, in the sweep's order: a legend has no room for more."""
    values = (f"{v:.4g}" if isinstance(v, float) else short(v) for v in point.axes.values())
    return ", ".join(values) or "point"


def _latencies(requests: Any) -> dict[str, Any]:
    columns = ("arrival_ns", "first_token_ns", "last_token_ns", "output_tokens")
    arrival, first, last, tokens = (
        requests[name].to_numpy(zero_copy_only=False).astype(float) for name in columns
    )
    return {
        CURVES["ttft_ms"]: (first - arrival) / 1e6,
        CURVES["tpot_ms"]: (last - first) / np.maximum(1, tokens - 1) / 1e6,
        CURVES["latency_ms"]: (last - arrival) / 1e6,
    }


def _truth_latencies(truth: Truth) -> Mapping[str, Any]:
    return {title: getattr(truth.requests, name) for name, title in CURVES.items()}


def _series(timeseries: Any) -> dict[str, Any]:
    seconds = timeseries["t_s"].to_numpy()
    return {title: (seconds, timeseries[name].to_numpy()) for name, title in SERIES.items()}


def _truth_series(truth: Truth) -> Mapping[str, Any]:
    seconds = truth.series["t_s"]
    return {
        title: (seconds, truth.series[name])
        for name, title in SERIES.items()
        if name in truth.series
    }
