"""The grid of a sweep as points: enumerated once, centrally, each checked before anything runs.

A point's id says what is simulated and compared (identity.py). Points whose simulations must be equal,
such as the same block count from another memory utilisation, share a `run_id`; one of them runs, all are
reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.axes import axis_values, same
from orchestrator.identity import Identifier
from orchestrator.resolve import TRUTH, Resolver, short
from orchestrator.sweep import SweepFile
from orchestrator.truth_data import Truth
from profiles.errors import InputError
from simulator.config import Point
from simulator.simulation import Prepared


@dataclass(frozen=True, eq=False, slots=True)
class SweepPoint:
    """One cell of the grid, ready to run. Everything large in it is shared with other points."""

    index: int
    point_id: str
    run_id: str
    pool_id: str  # the run but for its capacity: such points differ in the number of blocks alone
    axes: dict[str, Any]
    prepared: Prepared
    truth: Truth | None

    @property
    def name(self) -> str:
        """The axes of the point itself, in short."""
        own = {axis: v for axis, v in self.axes.items() if not axis.startswith(TRUTH)}
        return " ".join(f"{axis.rpartition('.')[2]}={short(v)}" for axis, v in own.items())

    @property
    def truth_id(self) -> str | None:
        return self.truth.content_id if self.truth else None

    @property
    def usable_blocks(self) -> int:
        return self.prepared.settings.num_usable_blocks


def expand(sweep: SweepFile, path: Path) -> list[SweepPoint]:
    """Every point of the sweep, in grid order, the last axis fastest. Raises InputError."""
    resolver, identifier = Resolver(sweep, path), Identifier()
    cells = list(grid(sweep))
    if not cells:
        raise InputError(path, "exclude", len(sweep.exclude), "to leave at least one point")
    configured = [resolver.point(index, axes) for index, axes in enumerate(cells)]
    points: dict[int, SweepPoint] = {}
    for index in _neighbours(configured):
        axes = cells[index]
        prepared = identifier.shared(resolver.prepared(index, axes, configured[index]))
        truth = resolver.truth(axes)
        ids = identifier.ids(prepared, truth)
        points[index] = SweepPoint(index, ids.point, ids.run, ids.pool, axes, prepared, truth)
    return [points[index] for index in range(len(cells))]


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
        if not any(all(same(axes[a], v) for a, v in out.items()) for out in sweep.exclude):
            yield axes


def _neighbours(points: list[Point]) -> list[int]:
    """An order in which points with the same workload follow each other, then those with the same
    tables: preparing keeps a few of each at hand, and a grid may come back to them late."""
    order: dict[Any, dict[Any, list[int]]] = {}
    for index, point in enumerate(points):
        engine = point.engine
        workload = (id(point.workload), engine.block_size)
        tables = (
            id(point.profile),
            id(point.model),
            id(point.overhead),
            point.card.name,
            engine.max_num_batched_tokens,
            engine.max_num_seqs,
            engine.dtype,
            engine.kv_cache_dtype,
        )
        order.setdefault(workload, {}).setdefault(tables, []).append(index)
    return [i for tables in order.values() for together in tables.values() for i in together]
