"""What the page of a comparison is given, as plain data."""

from __future__ import annotations

import math
from typing import Any

from dashboards.comparison import Comparison, SweepComparison, measured
from dashboards.embed import packed
from dashboards.sweep_data import SweepData
from dashboards.wording import title, verdict


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """What the page is given."""
    return {
        "kind": "comparison",
        "name": _name(comparison),
        "a": str(comparison.a),
        "b": str(comparison.b),
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
        "titles": _titles(comparison),
        "sweeps": [_sweep(sweep) for sweep in comparison.sweeps],
    }


def _name(comparison: Comparison) -> str:
    """Of the sweep, or of both folders."""
    names = dict.fromkeys(sweep.name for sweep in comparison.sweeps)
    if len(names) == 1:
        return f"{next(iter(names))}, A and B"
    return f"{comparison.a.name} and {comparison.b.name}"


def _titles(comparison: Comparison) -> dict[str, str]:
    names = {n for s in comparison.sweeps for data in (s.a, s.b) for n in data.metrics}
    return {name: title(name) for name in sorted(names) if title(name) != name}


def _sweep(sweep: SweepComparison) -> dict[str, Any]:
    names = sorted({*sweep.a.metrics, *sweep.b.metrics})
    rows = [pair.a for pair in sweep.pairs], [pair.b for pair in sweep.pairs]
    metrics = {
        name: [
            _values(data, name, some) for data, some in zip((sweep.a, sweep.b), rows, strict=True)
        ]
        for name in names
    }
    return {
        "name": sweep.name,
        "sentence": sweep.sentence(),
        "measures": list(sweep.measures),
        "metric": sweep.metric,
        "axes": list(sweep.axes),
        "sides": [_side(data) for data in (sweep.a, sweep.b)],
        "points": [
            {
                "name": sweep.a.point_name(pair.a),
                "other": sweep.b.point_name(pair.b),
                "axes": [_axis_value(sweep.a.axes[axis][pair.a]) for axis in sweep.axes],
                "state": pair.state,
                "same_id": pair.same_id,
                "of": [pair.of_a, pair.of_b],
                "reasons": [sweep.a.texts["reason"][pair.a], sweep.b.texts["reason"][pair.b]],
            }
            for pair in sweep.pairs
        ],
        "metrics": metrics,
        "only_a": [_only(sweep.a, row) for row in sweep.only_a],
        "only_b": [_only(sweep.b, row) for row in sweep.only_b],
    }


def _values(data: SweepData, name: str, rows: list[int]) -> dict[str, str]:
    values = data.metrics.get(name)
    return packed([math.nan] * len(rows) if values is None else values[rows], "f8")


def _side(data: SweepData) -> dict[str, Any]:
    best = [group[0] for group in data.ranked[:3]]
    return {
        "verdict": verdict(data),
        "servesweep": data.manifest.servesweep,
        "commit": data.manifest.commit,
        "best": [{"name": data.point_name(r), "metrics": data.metrics_of(r)} for r in best],
    }


def _only(data: SweepData, row: int) -> dict[str, Any]:
    value = measured(data, row)
    return {
        "name": data.point_name(row),
        "status": data.texts["status"][row],
        "measure": value if math.isfinite(value) else None,
    }


def _axis_value(value: Any) -> Any:
    plain = value is None or isinstance(value, str | bool | int)
    return value if plain or (isinstance(value, float) and math.isfinite(value)) else str(value)
