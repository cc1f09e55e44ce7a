"""What the report page of one sweep is given, as plain data.

Points are columns: values of axes as codes into the distinct ones, metrics as 64-bit floats. Latencies
and series of points whose tables were kept, the best first, as many as fit `DETAIL_BYTES`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dashboards.embed import packed
from dashboards.sweep_data import SweepData, distinct, short_names, truth_metrics
from dashboards.wording import TITLES, blocks_title, verdict
from orchestrator.compare import RATES, SERIES
from orchestrator.ranking import LATENCY
from orchestrator.store_truth import truth_label
from orchestrator.truth import DEFINITIONS
from orchestrator.truth_data import HEADLINE, Truth, TruthRequests
from orchestrator.truth_matching import match_requests, simulated_requests

DETAIL_BYTES = 6_000_000  # of base64; the plotting library takes 4.8 MB of a file of 15 MB at most
MAX_CURVE = 1000  # steps of a distribution
MAX_REQUESTS = 1500  # shown one by one
MAX_SECONDS = 2000  # of a series
COLUMNS = (
    *("ttft_ms/mean", "ttft_ms/p99", "tpot_ms/mean", "tpot_ms/p99", "latency_ms/mean"),
    *("latency_ms/p99", "throughput/output_tokens_per_s", "kv/preemptions"),
)


def report_data(data: SweepData) -> dict[str, Any]:
    """Everything on the page."""
    notes = distinct([note for note in data.texts["notes"] if note])
    short = short_names(list(data.axes))
    details, left_out = _details(data)
    return {
        "kind": "sweep",
        "name": data.name,
        "verdict": verdict(data),
        "servesweep": data.manifest.servesweep,
        "commit": data.manifest.commit,
        "model": data.model,
        "counts": data.counts(),
        "measure": data.measure,
        "nearest": data.measure != LATENCY,
        "blocks_title": blocks_title(data),
        "titles": {name: TITLES[name] for name in TITLES if name in data.metrics},
        "columns": [n for n in (data.measure, *COLUMNS) if n in data.metrics],
        "axes": [_axis(name, short[name], values) for name, values in data.axes.items()],
        "leading": data.leading_axes,
        "points": {
            "count": len(data),
            "id": data.texts["point_id"],
            "name": [data.point_name(row) for row in range(len(data))],
            "status": data.texts["status"],
            "reason": {str(r): data.texts["reason"][r] for r in _given(data.texts["reason"])},
            "equals": packed([data.row_of.get(str(e), -1) for e in data.texts["equals"]], "i4"),
            "blocks": packed([-1 if b is None else b for b in data.blocks], "i4"),
            "notes": [None if n is None else notes.index(n) for n in data.texts["notes"]],
        },
        "notes": notes,
        "metrics": {
            name: packed(data.scores if name == data.measure else values, "f8")
            for name, values in sorted(data.metrics.items())
        },
        "ranked": data.ranked,
        "failed": data.failed,
        "truths": {key: _truth(truth) for key, truth in data.truths.items()},
        "truth_of": _truth_of(data),
        "details": details,
        "details_left_out": left_out,
        "definitions": DEFINITIONS if data.truths else "",
    }


def _axis(name: str, short: str, values: list[Any]) -> dict[str, Any]:
    found = distinct(values)
    place = {value: i for i, value in enumerate(found)}
    return {
        "name": name,
        "short": short,
        "numeric": all(_is_number(value) for value in found),
        "values": [value if _plain(value) else str(value) for value in found],
        "codes": packed([place[value] for value in values], "i4"),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _given(values: list[str | None]) -> list[int]:
    return [row for row, value in enumerate(values) if value is not None]


def _truth_of(data: SweepData) -> list[str | None] | str | None:
    """One key for all, where it is the same."""
    keys = [key if key in data.truths else None for key in data.truth_of]
    return keys[0] if len(set(keys)) == 1 else keys


def _truth(truth: Truth) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "label": truth_label(truth),
        "kind": truth.kind,
        "metrics": truth_metrics(truth),
        "cdf": {},
        "series": _packed_series(truth.series) if truth.series else None,
        "requests": None,
    }
    if truth.requests is not None:
        requests = truth.requests
        shown["cdf"] = {name: _curve(getattr(requests, name)) for name in HEADLINE}
        rows = sample(len(requests))
        shown["requests"] = {
            "of": len(requests),
            "id": [_request_id(requests, int(r)) for r in rows],
            "prompt": packed(requests.num_prompt_tokens[rows], "i4"),
            "output": packed(requests.num_output_tokens[rows], "i4"),
            **{name: packed(getattr(requests, name)[rows], "f4") for name in HEADLINE},
        }
    return shown


def _request_id(requests: TruthRequests, row: int) -> str:
    given = None if requests.ids is None else requests.ids[row].as_py()
    return str(row) if given is None else given


def sample(count: int) -> NDArray[np.int64]:
    """Rows shown one by one: all, or evenly spread ones."""
    if count <= MAX_REQUESTS:
        return np.arange(count)
    return np.linspace(0, count - 1, MAX_REQUESTS).astype(np.int64)


def _details(data: SweepData) -> tuple[dict[str, Any], int]:
    """Of kept points, best first; and how many did not fit."""
    order = [row for group in data.ranked for row in group]
    order += sorted(set(range(len(data))) - set(order))
    details: dict[str, Any] = {}
    spent, left_out = 0, 0
    for row in order:
        if data.texts["equals"][row] is not None:
            continue
        tables = data.tables(row)
        if tables is None:
            continue
        if spent > DETAIL_BYTES:
            left_out += 1
            continue
        key = data.truth_of[row]
        detail = _detail(*tables, data.truths.get(key) if key else None)
        spent += _size(detail)
        details[str(row)] = detail
    return details, left_out


def _detail(requests: pa.Table, timeseries: pa.Table, truth: Truth | None) -> dict[str, Any]:
    simulated = simulated_requests(requests, truth.start if truth else "arrival_ns")
    done = simulated.finished
    shown: dict[str, Any] = {
        "cdf": {name: _curve(getattr(simulated, name)[done]) for name in HEADLINE},
        "series": _packed_series(
            {name: timeseries[name].to_numpy() for name in ("t_s", *SERIES, *RATES)}
        ),
        "requests": None,
    }
    if truth is not None and truth.requests is not None:
        matching = match_requests(simulated, truth.requests)
        ours = np.flatnonzero(matching.both)
        theirs = matching.partner[ours]
        rows = sample(len(truth.requests))
        shown["requests"] = {}
        for name in HEADLINE:
            values = np.full(len(truth.requests), np.nan)
            values[theirs] = getattr(simulated, name)[ours]
            shown["requests"][name] = packed(values[rows], "f4")
    return shown


def _curve(values: NDArray[np.float64]) -> dict[str, Any]:
    """Sorted values: all of them, or evenly spread quantiles."""
    finite = np.sort(values[np.isfinite(values)])
    if len(finite) > MAX_CURVE:
        finite = np.quantile(finite, np.linspace(0, 1, MAX_CURVE))
    return packed(finite, "f4")


def _packed_series(series: Any) -> dict[str, Any]:
    every = -(-len(series["t_s"]) // MAX_SECONDS) or 1
    return {
        "every": every,
        **{name: packed(np.asarray(values)[::every], "f4") for name, values in series.items()},
    }


def _size(detail: Any) -> int:
    if isinstance(detail, dict):
        return sum(map(_size, detail.values()))
    return len(detail) if isinstance(detail, str) else 8
