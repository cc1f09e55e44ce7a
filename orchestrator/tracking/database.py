"""The embedded database file: who may make it, how it is opened, what it must look like."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.tracking.address import SQLITE
from orchestrator.tracking.backend import LayoutUnknown

BUSY_S = 30.0
CACHE_KIB = 65536  # series of a thousand runs: a third faster than with 2 MiB
COLUMNS = {
    "runs": {
        *("run_uuid", "name", "source_type", "source_name", "entry_point_name", "user_id"),
        *("status", "start_time", "end_time", "deleted_time", "source_version"),
        *("lifecycle_stage", "artifact_uri", "experiment_id"),
    },
    "tags": {"key", "value", "run_uuid"},
    "params": {"key", "value", "run_uuid"},
    "metrics": {"key", "value", "timestamp", "step", "is_nan", "run_uuid"},
    "latest_metrics": {"key", "value", "timestamp", "step", "is_nan", "run_uuid"},
}


@contextlib.contextmanager
def database_lock(path: Path) -> Iterator[None]:
    """One process at a time makes the schema: of several at once all fail in the migration."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_database(path: Path, mlflow: Any) -> None:
    """MLflow's migrations can't be resumed when killed, so the file appears when they are done."""
    if path.exists():
        return
    new = path.with_name(path.name + ".new")
    for leftover in (new, new.with_name(new.name + "-journal")):
        leftover.unlink(missing_ok=True)
    address = f"{SQLITE}{new}"
    mlflow.MlflowClient(address, address).get_experiment_by_name("Default")
    with contextlib.suppress(FileExistsError):  # MLflow's own server may have been faster
        path.hardlink_to(new)
    new.unlink()


def connect(path: Path) -> sqlite3.Connection:
    """Readers (the pages) and writers don't block each other; nothing is lost but by power."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    with contextlib.suppress(sqlite3.OperationalError):  # network folders can't, and work without
        connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute(f"pragma cache_size = -{CACHE_KIB}")
    connection.execute("pragma foreign_keys = on")
    return connection


def check_layout(connection: sqlite3.Connection) -> None:
    """Every column written is there, and none that must be filled is unknown."""
    for table, known in COLUMNS.items():
        info = connection.execute(f"pragma table_info({table})").fetchall()
        columns = {row[1] for row in info}
        needed = {row[1] for row in info if row[3] and row[4] is None}
        if not known <= columns or not needed <= known:
            raise LayoutUnknown(f"table {table}: {sorted(columns ^ known)}")
