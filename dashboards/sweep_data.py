"""A sweep's folder as its dashboards read it: points in grid order, metrics by name, truths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.ranking import LATENCY, MEAN_ABS, PARTIAL, ranked_groups, score
from orchestrator.store import AXIS, RESULTS, TEXTS, SweepStore
from orchestrator.store_truth import read_truth
from orchestrator.stored import Manifest, StoredPoint
from orchestrator.truth_data import Truth
from profiles.errors import MISSING, InputError

FINISHED, NOT_RUN = "finished", "not_run"
# What a metric of a truth is called; an error is measured against zero.
OF_TRUTH = {"kv/blocks": "num_gpu_blocks", "makespan_ms": "makespan_ms"}


@dataclass(frozen=True, eq=False)
class SweepData:
    """`n` points. Texts and axes hold n values each, None where there is none; metrics float64[n],
    NaN where a point has none. `truth_of` is the key of each point's truth, as in `truths`.
    """

    folder: Path
    name: str
    manifest: Manifest
    texts: Mapping[str, list[str | None]]
    axes: Mapping[str, list[Any]]
    metrics: Mapping[str, NDArray[np.float64]]
    blocks: list[int | None]
    truth_of: list[str | None]
    truths: Mapping[str, Truth]

    def __len__(self) -> int:
        return len(self.texts["point_id"])

    def point_name(self, row: int) -> str:
        return self.texts["name"][row] or "point"

    @property
    def model(self) -> str | None:
        """What the base of the sweep calls its model."""
        model = self.manifest.sweep.base.get("model")
        name = model.get("name") if isinstance(model, dict) else model
        return name if isinstance(name, str) else None

    @property
    def measured(self) -> set[str]:
        """Keys of the truths of its points."""
        return {key for key in self.truth_of if key is not None and key in self.truths}

    @cached_property
    def measure(self) -> str:
        """The metric that ranks the points, smallest first."""
        for name in (MEAN_ABS, PARTIAL):
            if name in self.metrics and np.isfinite(self.metrics[name]).any():
                return name
        return LATENCY

    @cached_property
    def leading_axes(self) -> list[str]:
        """Axes with several values, without those that move together with one before them."""
        leading: list[str] = []
        for axis, values in self.axes.items():
            count = len(distinct(values))
            if count > 1 and not any(
                count == len(set(zip(values, self.axes[other], strict=True)))
                and count == len(distinct(self.axes[other]))
                for other in leading
            ):
                leading.append(axis)
        return leading

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """float64[n]: the measure; an error over some metrics where there is none over all."""
        found = [score(self.metrics_of(row), self.measure) for row in range(len(self))]
        return np.array([np.nan if value is None else value for value in found], np.float64)

    @cached_property
    def ranked(self) -> list[list[int]]:
        """Rows that ran and have a score, best first; those with one result together."""
        own = [
            (row, row, self.metrics_of(row))
            for row in range(len(self))
            if self.texts["equals"][row] is None
        ]
        return ranked_groups(own, self.measure)

    @cached_property
    def failed(self) -> list[int]:
        """Rows that ran and failed."""
        statuses = self.texts["status"]
        return [
            row
            for row in range(len(self))
            if statuses[row] not in (FINISHED, NOT_RUN) and self.texts["equals"][row] is None
        ]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Point id -> its first row."""
        rows: dict[str, int] = {}
        for row, point_id in enumerate(self.texts["point_id"]):
            rows.setdefault(str(point_id), row)
        return rows

    def metrics_of(self, row: int) -> dict[str, float]:
        """The finite metrics of a point."""
        return {
            name: float(values[row])
            for name, values in self.metrics.items()
            if math.isfinite(values[row])
        }

    def counts(self) -> dict[str, int]:
        """Points, runs finished, points equal to one of them, failed, not run."""
        equal = [e is not None for e in self.texts["equals"]]
        statuses = self.texts["status"]
        finished = sum(s == FINISHED and not e for s, e in zip(statuses, equal, strict=True))
        not_run = sum(s == NOT_RUN and not e for s, e in zip(statuses, equal, strict=True))
        return {
            "points": len(self),
            "finished": finished,
            "equal": sum(equal),
            "failed": len(self.failed),
            "not_run": not_run,
        }

    def tables(self, row: int) -> tuple[pa.Table, pa.Table] | None:
        """Requests and timeseries of a point, or of the one it equals; None if not kept."""
        point_id = self.texts["equals"][row] or self.texts["point_id"][row]
        found = SweepStore(self.folder).read_point(str(point_id))
        return (found["requests"], found["timeseries"]) if found else None


def truth_metrics(truth: Truth) -> dict[str, float]:
    """What was measured, under the names that points' metrics have."""
    metrics = {
        f"{m}/{s}": value for m, values in truth.metrics.items() for s, value in values.items()
    }
    metrics |= {f"throughput/{name}": value for name, value in truth.throughput.items()}
    for name, field in OF_TRUTH.items():
        value = getattr(truth, field)
        if value is not None:
            metrics[name] = float(value)
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def read_sweep(folder: Path) -> SweepData:
    """A sweep's folder. Raises InputError if there are no results in it."""
    store = SweepStore(folder)
    if not store.results_path.is_file():
        expected = "the results of a sweep; `servesweep run SWEEP.yaml` makes them"
        raise InputError(folder, store.results_path.name, MISSING, expected)
    table, manifest = store.read_results(), store.read_manifest()
    points = _points(table, manifest, store)
    truth_of = [point.truth for point in points]
    columns = [n for n in table.column_names if n not in RESULTS and not n.startswith(AXIS)]
    return SweepData(
        folder=folder,
        name=manifest.sweep.name,
        manifest=manifest,
        texts={name: table[name].to_pylist() for name in TEXTS},
        axes=_axes(table, manifest),
        metrics={
            name: table[name].cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
            for name in columns
        },
        blocks=[point.num_gpu_blocks for point in points],
        truth_of=truth_of,
        truths={key: read_truth(folder, key) for key in dict.fromkeys(truth_of) if key is not None},
    )


def _points(table: pa.Table, manifest: Manifest, store: SweepStore) -> list[StoredPoint]:
    """What the manifest says of every row. Raises InputError if it is that of another sweep."""
    by_id = {point.point_id: point for point in manifest.points}
    by_place = {(point.index, point.point_id): point for point in manifest.points}
    places = list(zip(table["index"].to_pylist(), table["point_id"].to_pylist(), strict=True))
    unknown = [point_id for _, point_id in places if point_id not in by_id]
    if unknown:
        found = f"not {unknown[0]}, which is one of {len(unknown)} in {store.results_path.name}"
        expected = "the points of the results; `servesweep run` writes both"
        raise InputError(store.manifest_path, "points", found, expected)
    return [by_place.get(place) or by_id[place[1]] for place in places]


def _axes(table: pa.Table, manifest: Manifest) -> dict[str, list[Any]]:
    """In the order of the sweep file, which the manifest's points tell."""
    names = [name.removeprefix(AXIS) for name in table.column_names if name.startswith(AXIS)]
    first = manifest.points[0].axes if manifest.points else {}
    order = [name for name in first if name in names]
    order += [name for name in names if name not in order]
    return {name: table[f"{AXIS}{name}"].to_pylist() for name in order}


def distinct(values: list[Any]) -> list[Any]:
    """Each once: numbers in their order, anything else as it comes; None last."""
    some = list(dict.fromkeys(value for value in values if value is not None))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in some)
    return (sorted(some) if numbers else some) + ([None] if None in values else [])


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """As many of the last parts of each dotted name as tell it apart."""
    names = {}
    for axis in axes:
        parts = axis.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        unique = (e for e in ends if sum(f".{other}".endswith(f".{e}") for other in axes) == 1)
        names[axis] = next(unique, axis)
    return names


def find_sweep(given: Path, sweeps: Path) -> Path:
    """The folder of a sweep, given as such or as its file; `sweeps` holds folders by name.

    Raises InputError.
    """
    if given.is_dir():
        return given
    from orchestrator.sweep import load_sweep

    return sweeps / load_sweep(given).name
