"""A sweep's folder, the source of truth for everything shown or tracked.

manifest.json      what was asked: the sweep file, its points with axes, ids and block counts
journal.jsonl      outcomes as they came (journal.py)
results.parquet    a row a point of the grid: axes, status, metrics, the point it equals
points/<id>/       requests.parquet and timeseries.parquet of the points that are kept
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.expand import SweepPoint
from simulator.result import write_whole

FIXED = ("index", "point_id", "run_id", "name", "status", "equals", "reason", "notes")


class SweepStore:
    """Reads and writes one sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal_path = folder / "journal.jsonl"
        self.results_path = folder / "results.parquet"
        self.manifest_path = folder / "manifest.json"

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(manifest, indent=1, default=str) + "\n"
        write_whole(self.manifest_path, lambda path: path.write_text(text, encoding="utf-8"))

    def write_results(self, rows: Sequence[dict[str, Any]]) -> None:
        table = results_table(rows)
        write_whole(self.results_path, partial(pq.write_table, table, compression="zstd"))

    def write_point(self, point_id: str, tables: dict[str, pa.Table]) -> None:
        folder = self.folder / "points" / point_id
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write = partial(pq.write_table, table, compression="zstd")
            write_whole(folder / f"{name}.parquet", write)


def results_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as one table: fixed columns, `axes/...`, then metrics by name; missing is null."""
    axes = sorted({axis for row in rows for axis in row["axes"]})
    metrics = sorted({name for row in rows for name in row["metrics"]})
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in FIXED}
    for axis in axes:
        values = [row["axes"].get(axis) for row in rows]
        same = len({type(v) for v in values if v is not None}) <= 1
        columns[f"axes/{axis}"] = (
            values if same else [None if v is None else str(v) for v in values]
        )
    for name in metrics:
        columns[name] = pa.array([row["metrics"].get(name) for row in rows], pa.float64())
    return pa.table(columns)


def row_of(
    point: SweepPoint, outcome: dict[str, Any] | None, equals: SweepPoint | None
) -> dict[str, Any]:
    """The point's row: its own outcome, or that of the point it equals."""
    outcome = outcome or {"status": "not_run"}
    return {
        "index": point.index,
        "point_id": point.point_id,
        "run_id": point.run_id,
        "name": point.name,
        "axes": point.axes,
        "status": outcome["status"],
        "equals": equals.point_id if equals else None,
        "reason": outcome.get("reason"),
        "notes": "\n".join(outcome.get("notes") or ()) or None,
        "metrics": outcome.get("metrics") or {},
    }
