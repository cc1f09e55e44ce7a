"""The grid of a sweep as points: enumerated once, centrally, each checked before anything runs.

A point's id says what is simulated and compared: a hash over the resolved configuration, the
contents of workload, profile and truth, and the version of the simulator. Points whose simulations
must be equal (the same block count from another memory utilisation) share a `run_id`; one of them
runs, all are reported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.sweep import CARD, SweepFile, axis_values
from orchestrator.truth import load_truth
from orchestrator.truth_config import TruthConfig
from orchestrator.truth_data import Truth
from profiles.errors import InputError, parse_model
from simulator.config import PATH_FIELDS, point_from_mapping, with_absolute_paths
from simulator.core.jit import core_stamp
from simulator.simulation import Prepared, prepare
from simulator.summary import servesweep_version


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One cell of the grid, ready to run."""

    index: int
    point_id: str
    run_id: str
    pool_id: str  # the run but for its capacity: such points differ in the number of blocks alone
    axes: dict[str, Any]
    prepared: Prepared
    truth: Truth | None

    @property
    def name(self) -> str:
        """The axes, in short."""
        return " ".join(f"{axis.rpartition('.')[2]}={_short(v)}" for axis, v in self.axes.items())


def expand(sweep: SweepFile, path: Path) -> list[SweepPoint]:
    """Every point of the sweep, in grid order, the last axis fastest. Raises InputError."""
    base_folder = path.parent
    base = with_absolute_paths(sweep.base, base_folder)
    truths: dict[str, Truth | None] = {}
    points = []
    for index, axes in enumerate(grid(sweep)):
        data, truth_data = deepcopy(base), sweep.truth
        if CARD in axes:
            overrides = with_absolute_paths(sweep.cards[axes[CARD]], base_folder)
            if "truth" in overrides:
                truth_data = parse_model(
                    TruthConfig, overrides.pop("truth"), f"{path}: cards.{axes[CARD]}.truth"
                )
            merge(data, overrides)
        for axis, value in axes.items():
            if axis != CARD:
                assign(data, axis, value, path)
        place = f"{path}, point {index} ({_shown(axes)})"
        prepared = prepare(point_from_mapping(data, base_folder, place), place)
        key = truth_data.model_dump_json() if truth_data else ""
        if key not in truths:
            truths[key] = load_truth(truth_data, base_folder) if truth_data else None
        points.append(_sweep_point(index, axes, prepared, truths[key]))
    if not points:
        raise InputError(path, "exclude", len(sweep.exclude), "to leave at least one point")
    return points


def grid(sweep: SweepFile) -> Iterator[dict[str, Any]]:
    """The axes' values of each point."""
    groups: list[list[dict[str, Any]]] = [
        [{axis: value} for value in axis_values(given)] for axis, given in sweep.axes.items()
    ]
    for together in sweep.zipped:
        columns = [axis_values(given) for given in together.values()]
        groups.append([dict(zip(together, row, strict=True)) for row in zip(*columns, strict=True)])
    for cells in itertools.product(*groups):
        axes = {axis: value for cell in cells for axis, value in cell.items()}
        if not any(all(axes[a] == v for a, v in excluded.items()) for excluded in sweep.exclude):
            yield axes


def merge(data: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Lay `overrides` over `data`, section by section."""
    for field, value in overrides.items():
        if isinstance(value, dict) and isinstance(data.get(field), dict):
            data[field] = {**data[field], **value} if field != "card" else value
        else:
            data[field] = value


def assign(data: dict[str, Any], axis: str, value: Any, path: Path) -> None:
    """Set the field `axis` (dotted) of a point's mapping."""
    *sections, field = axis.split(".")
    for section in sections:
        inner = data.get(section, {})
        if not isinstance(inner, dict):
            raise InputError(path, f"axes.{axis}", section, f"a section; base gives {inner!r}")
        data[section] = dict(inner)
        data = data[section]
    data[field] = value
    if sections and field in PATH_FIELDS.get(sections[-1], ()) and isinstance(value, str):
        data[field] = str((path.parent / value).resolve())


def _sweep_point(
    index: int, axes: dict[str, Any], prepared: Prepared, truth: Truth | None
) -> SweepPoint:
    point = prepared.point
    capacity = {"gpu_memory_utilization", "num_gpu_blocks_override"}
    pool = {
        "model": point.model.model_dump(mode="json"),
        "engine": point.engine.model_dump(mode="json", exclude=capacity)
        | {"max_model_len": prepared.max_model_len},
        "overhead": repr(prepared.overhead),
        "arrivals": hashlib.sha256(prepared.arrival_ns.tobytes()).hexdigest(),
        "workload": prepared.workload.content_id,
        "profile": prepared.profile_id,
        "tier": repr(prepared.tier),
        "unfitted_skew": point.profile.unfitted_skew,
        "pad": point.overhead.pad_to_capture_size,
        "servesweep": f"{servesweep_version()} {core_stamp()}",
    }
    run = pool | {"num_gpu_blocks": prepared.capacity.num_gpu_blocks}
    whole = run | {
        "card": point.card.model_dump(mode="json"),
        "capacity": point.engine.model_dump(mode="json", include=capacity),
        "truth": truth.content_id if truth else None,
    }
    return SweepPoint(index, _id(whole), _id(run), _id(pool), axes, prepared, truth)


def _id(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shown(axes: dict[str, Any]) -> str:
    return ", ".join(f"{axis} {_short(value)}" for axis, value in axes.items()) or "no axes"
