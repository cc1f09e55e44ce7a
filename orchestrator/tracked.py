"""A sweep's rows as runs to track. Made of what the store holds, so that tracking can be redone."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.expand import SweepPoint
from orchestrator.store_truth import truth_label
from orchestrator.tracking import TrackedPoint
from orchestrator.truth_data import Truth

SERIES = ("running", "waiting", "kv_cache_usage", "prompt_throughput", "generation_throughput")


def tracked_row(
    point: SweepPoint,
    row: dict[str, Any],
    versions: Mapping[str, str],
    timeseries: pa.Table | None = None,
) -> TrackedPoint:
    """A point of the grid; `versions` as tags; `timeseries` where it was kept."""
    prepared = point.prepared
    engine = prepared.point.engine
    params: dict[str, Any] = {axis: _scalar(value) for axis, value in point.axes.items()}
    params |= {
        "model": prepared.point.model.name,
        "card.name": prepared.point.card.name,
        "num_gpu_blocks": prepared.capacity.num_gpu_blocks,
        "max_model_len": prepared.max_model_len,
        "async_scheduling": prepared.overhead.async_scheduling,
    }
    for name, value in engine.model_dump(mode="json").items():
        if value is not None:
            params.setdefault(f"engine.{name}", _scalar(value))
    tags = {
        **versions,
        "servesweep.run_id": point.run_id,
        "servesweep.workload": prepared.workload.content_id[:16],
        "servesweep.profile": prepared.profile_id[:16],
    }
    if row["equals"]:
        tags["servesweep.equals"] = row["equals"]
    if row["notes"]:
        tags["servesweep.notes"] = row["notes"]
    finished = row["status"] == "finished"
    return TrackedPoint(
        point_id=point.point_id,
        name=point.name or "point",
        params=params,
        metrics=row["metrics"],
        tags=tags,
        series=series_of(timeseries) if timeseries is not None else {},
        status="finished" if finished else "failed",
        reason=None if finished else f"{row['status']}: {row['reason']}",
    )


def tracked_truth(truth: Truth) -> TrackedPoint:
    """The ground truth as a run of its own, under the same metric names."""
    metrics = {
        f"{metric}/{statistic}": value
        for metric, values in truth.metrics.items()
        for statistic, value in values.items()
    }
    metrics |= {f"throughput/{name}": value for name, value in truth.throughput.items()}
    if truth.makespan_ms is not None:
        metrics["makespan_ms"] = truth.makespan_ms
    if truth.num_gpu_blocks is not None:
        metrics["kv/blocks"] = float(truth.num_gpu_blocks)
    series: dict[str, Sequence[tuple[int, float]]] = {}
    if truth.series:
        seconds = np.asarray(truth.series["t_s"]).round().astype(int).tolist()
        for name, values in truth.series.items():
            if name != "t_s":
                series[f"series/{name}"] = list(zip(seconds, map(float, values), strict=True))
    return TrackedPoint(
        point_id=f"truth-{truth.content_id[:16]}",
        name=f"truth {truth_label(truth)}",
        metrics=metrics,
        series=series,
        tags={"servesweep.source": truth.kind},
    )


def series_of(timeseries: pa.Table) -> dict[str, Sequence[tuple[int, float]]]:
    seconds = timeseries["t_s"].to_pylist()
    return {
        f"series/{name}": list(zip(seconds, map(float, timeseries[name].to_pylist()), strict=True))
        for name in SERIES
    }


@cache
def git_commit() -> str | None:
    """The commit of the checkout that runs, if it is one; with "-dirty" if files differ from it."""
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(
            ["git", "describe", "--match=", "--always", "--dirty", "--abbrev=40"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _scalar(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)
