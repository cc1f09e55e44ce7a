"""A sweep's folder, the source of truth for everything shown or tracked.

manifest.json      what was asked: the sweep file, its points with axes, ids and block counts
journal.jsonl      outcomes as they came (journal.py)
results.parquet    a row a point of the grid: axes, status, metrics, the point it equals
points/<id>/       requests.parquet and timeseries.parquet of the points that are kept
truth/<id>/        what was measured, likewise (store_truth.py)
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.compare import RATES, SERIES
from orchestrator.expand import SweepPoint
from orchestrator.stored import (
    FLAGS,
    NAMES,
    NUMBERS,
    TEXT,
    VALUES,
    WHOLE,
    Manifest,
    check_columns,
    read_json,
    read_table,
)
from orchestrator.truth_notes import standing_notes
from profiles.errors import InputError
from profiles.whole import write_whole

LOCK = ".lock"
# Of a point that is kept; the columns that those who show it need.
TABLES = {
    "requests": {
        "request_id": NAMES,
        **dict.fromkeys(("arrival_ns", "queued_ns", "first_token_ns", "last_token_ns"), NUMBERS),
        **dict.fromkeys(("prompt_tokens", "requested_output_tokens", "output_tokens"), WHOLE),
        "finished": FLAGS,
    },
    "timeseries": dict.fromkeys(("t_s", *SERIES, *RATES), NUMBERS),
}
TEXTS = ("point_id", "run_id", "name", "status", "equals", "reason", "notes")
AXIS = "axes/"
RESULTS = {"index": WHOLE} | {
    name: NAMES if name in ("point_id", "status") else TEXT for name in TEXTS
}

_log = logging.getLogger("servesweep")


class SweepStore:
    """Reads and writes one sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal_path = folder / "journal.jsonl"
        self.results_path = folder / "results.parquet"
        self.manifest_path = folder / "manifest.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder. Raises InputError if one is in it."""
        new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock():
                yield
        except BaseException:
            if new and {path.name for path in self.folder.iterdir()} <= {LOCK}:
                (self.folder / LOCK).unlink(missing_ok=True)  # nothing came of it
                self.folder.rmdir()
            raise

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / LOCK).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                expected = "a folder no other run works in; wait for it, or choose another --out"
                raise InputError(self.folder, "in use by", file.read(), expected) from None
            except OSError as error:
                _log.warning("%s cannot be locked (%s): run one sweep in it", self.folder, error)
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(manifest, indent=1, default=str) + "\n"
        write_whole(self.manifest_path, lambda path: path.write_text(text, encoding="utf-8"))

    def read_manifest(self) -> Manifest:
        """What `write_manifest` wrote. Raises InputError."""
        return read_json(self.manifest_path, Manifest)

    def read_results(self) -> pa.Table:
        """What `write_results` wrote, in grid order. Raises InputError."""
        path = self.results_path
        table = read_table(path, RESULTS)
        rest = [name for name in table.column_names if name not in RESULTS]
        kinds = {name: VALUES if name.startswith(AXIS) else NUMBERS for name in rest}
        check_columns(path, table, kinds)
        axes = [name for name in rest if name.startswith(AXIS)]
        for name in axes:
            numbers = pa.types.is_floating(table.schema.field(name).type)
            if numbers and pc.any(pc.is_nan(table[name])).as_py():
                raise InputError(path, f"column {name}", math.nan, "a value of an axis")
        return table.sort_by("index")

    def write_results(self, rows: Sequence[dict[str, Any]]) -> None:
        table = results_table(rows)
        write_whole(self.results_path, partial(pq.write_table, table, compression="zstd"))

    def point_paths(self, point_id: str) -> dict[str, Path]:
        folder = self.folder / "points" / point_id
        return {name: folder / f"{name}.parquet" for name in TABLES}

    def read_point(self, point_id: str) -> dict[str, pa.Table] | None:
        """The tables of a point, None if not kept. Raises InputError."""
        paths = self.point_paths(point_id)
        if not all(path.is_file() for path in paths.values()):
            return None
        return {name: read_table(paths[name], columns) for name, columns in TABLES.items()}

    def write_point(self, point_id: str, tables: dict[str, pa.Table]) -> None:
        paths = self.point_paths(point_id)
        for name, table in tables.items():
            paths[name].parent.mkdir(parents=True, exist_ok=True)
            write = partial(pq.write_table, table, compression="zstd")
            write_whole(paths[name], write)


def results_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as one table: fixed columns, `axes/...`, then metrics by name; missing is null."""
    axes = sorted({axis for row in rows for axis in row["axes"]})
    metrics = sorted({name for row in rows for name in row["metrics"]})
    columns: dict[str, Any] = {"index": pa.array([row["index"] for row in rows], pa.int64())}
    columns |= {name: pa.array([row.get(name) for row in rows], pa.string()) for name in TEXTS}
    for axis in axes:
        columns[f"{AXIS}{axis}"] = _axis_column([row["axes"].get(axis) for row in rows])
    for name in metrics:
        columns[name] = pa.array([row["metrics"].get(name) for row in rows], pa.float64())
    return pa.table(columns)


def _axis_column(values: list[Any]) -> pa.Array:
    """Numbers as numbers; what is no single type, or has parts, as text."""
    given = [value for value in values if value is not None]
    types = {type(value) for value in given}
    if types <= {bool}:
        return pa.array(values, pa.bool_())
    if types <= {int, float} and all(abs(value) < 1 << 63 for value in given):
        return pa.array(values, pa.int64() if types == {int} else pa.float64())
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values]
    return pa.array(texts, pa.string())


def row_of(
    point: SweepPoint, outcome: dict[str, Any] | None, equals: SweepPoint | None
) -> dict[str, Any]:
    """The point's row: its own outcome, or that of the point it equals."""
    outcome = outcome or {"status": "not_run"}
    notes: list[str] = list(outcome.get("notes") or ())
    if outcome["status"] == "finished":
        notes = standing_notes(point.prepared, point.truth) + notes
    return {
        "index": point.index,
        "point_id": point.point_id,
        "run_id": point.run_id,
        "name": point.name,
        "axes": point.axes,
        "status": outcome["status"],
        "equals": equals.point_id if equals else None,
        "reason": outcome.get("reason"),
        "notes": "\n".join(notes) or None,
        "metrics": outcome.get("metrics") or {},
    }
