"""A point as it is written: cleaned names, finite values, and a digest that tells it is complete."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.tracking.model import Scalar, TrackedPoint, TrackedSweep
from orchestrator.tracking.names import (
    MAX_PARAM,
    MAX_RUN_NAME,
    MAX_TAG,
    clean_text,
    unique_names,
)

LAYOUT = 1  # of what is logged; raised when that changes, so that runs are written again
NO_SERIES = "-"
SWEEP_ID = "servesweep.sweep_id"
POINT_ID = "servesweep.point_id"
ROLE = "servesweep.role"
COMPLETE = "servesweep.complete"
NOT_FINITE = "servesweep.not_finite"
SHORTENED = "servesweep.shortened"
REASON = "servesweep.reason"
PARENT = "mlflow.parentRunId"
RUN_NAME = "mlflow.runName"

Role = Literal["sweep", "truth", "point"]
Identity = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """One run. `digest` covers everything but the times; `series_digest` is that of the series."""

    role: Role
    key: str
    name: str
    status: Literal["FINISHED", "FAILED"]
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]
    series: dict[str, list[tuple[int, float]]]
    started_ms: int | None
    ended_ms: int | None
    digest: str
    series_digest: str

    @property
    def identity(self) -> Identity:
        """As the tags of the run tell it."""
        return self.role, self.tags.get(POINT_ID, "")

    @property
    def complete(self) -> str:
        return f"{LAYOUT}:{self.digest}:{self.series_digest}"

    def rows(self, started_ms: int) -> list[tuple[str, float, int, int]]:
        """(metric, value, time, step): a simulated second is a step and a second after the start."""
        rows = [(name, value, started_ms, 0) for name, value in self.metrics.items()]
        for name, points in self.series.items():
            rows += [(name, v, max(started_ms + 1000 * step, 0), step) for step, v in points]
        return rows


def identity_of(tags: Mapping[str, str]) -> Identity:
    return tags.get(ROLE, ""), tags.get(POINT_ID, "")


def satisfied(entry: Entry, complete: str) -> bool:
    """Whether a run with this tag holds everything of the entry."""
    return complete == entry.complete or (
        entry.series_digest == NO_SERIES and complete.startswith(entry.complete[:-1])
    )


def lacks_series_only(entry: Entry, complete: str) -> bool:
    """Whether a run with this tag is the entry without its series."""
    return complete == f"{LAYOUT}:{entry.digest}:{NO_SERIES}" != entry.complete


def sweep_entry(sweep: TrackedSweep) -> Entry:
    head = TrackedPoint(
        point_id=sweep.sweep_id,
        name=sweep.name,
        params=sweep.params,
        tags=sweep.tags,
        started_ms=sweep.started_ms,
    )
    return make_entry(head, sweep.sweep_id, "sweep")


def make_entry(point: TrackedPoint, sweep_id: str, role: Role) -> Entry:
    names = unique_names([*point.metrics, *point.series])
    metrics, left_out = _finite_metrics(point.metrics, names)
    series, left_out_of_series = _finite_series(point.series, names)
    params, shortened = _params(point.params)
    tags = {
        name: clean_text(str(point.tags[given]), MAX_TAG)
        for given, name in unique_names(point.tags).items()
    }
    tags |= {SWEEP_ID: sweep_id, ROLE: role}
    if role != "sweep":
        tags[POINT_ID] = clean_text(point.point_id, MAX_TAG)
    if point.reason is not None:
        tags[REASON] = clean_text(point.reason, MAX_TAG)
    if left_out or left_out_of_series:
        tags[NOT_FINITE] = clean_text(", ".join(left_out + left_out_of_series), MAX_TAG)
    if shortened:
        tags[SHORTENED] = clean_text(", ".join(shortened), MAX_TAG)
    name = (
        clean_text(point.name, MAX_RUN_NAME).strip() or tags.get(POINT_ID, sweep_id)[:MAX_RUN_NAME]
    )
    status: Literal["FINISHED", "FAILED"] = "FINISHED" if point.status == "finished" else "FAILED"
    return Entry(
        role=role,
        key=point.point_id,
        name=name,
        status=status,
        params=params,
        tags=tags,
        metrics=metrics,
        series=series,
        started_ms=point.started_ms,
        ended_ms=point.ended_ms,
        digest=_digest([name, status, params, tags, metrics]),
        series_digest=_digest(series) if series else NO_SERIES,
    )


def _finite_metrics(
    given: Mapping[str, float], names: Mapping[str, str]
) -> tuple[dict[str, float], list[str]]:
    """MLflow would store an infinity as 1.8e308 without a word."""
    values = {names[name]: float(given[name]) for name in sorted(given)}
    left_out = [f"{name}={v}" for name, v in values.items() if not math.isfinite(v)]
    return {name: v for name, v in values.items() if math.isfinite(v)}, left_out


def _finite_series(
    given: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Increasing seconds, each once (the last value counts)."""
    series, left_out = {}, []
    for name in sorted(given):
        points = {int(second): float(value) for second, value in given[name]}
        finite = sorted((second, v) for second, v in points.items() if math.isfinite(v))
        if len(finite) < len(points):
            left_out.append(f"{names[name]}: {len(points) - len(finite)} of {len(points)} seconds")
        if finite:
            series[names[name]] = finite
    return series, left_out


def _params(given: Mapping[str, Scalar]) -> tuple[dict[str, str], list[str]]:
    names = unique_names(given)
    params = {names[name]: clean_text(str(given[name]), MAX_PARAM) for name in sorted(given)}
    return params, [names[name] for name in sorted(given) if len(str(given[name])) > MAX_PARAM]


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
