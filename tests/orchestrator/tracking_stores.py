"""Databases to write to, the direct way and through MLflow's client."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.backend import Backend
from orchestrator.tracking.entry import Entry, make_entry, sweep_entry
from orchestrator.tracking.server import ServerBackend
from orchestrator.tracking.sqlite import SqliteBackend
from tests.orchestrator.tracking_runs import EXPERIMENT, make_point, make_sweep

KINDS = ("sqlite", "client")
both = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def _empty() -> tuple[Path, Any]:
    """The schema takes a second, so it is made once."""
    import mlflow

    from orchestrator.tracking.database import make_database

    folder = tempfile.TemporaryDirectory()
    make_database(Path(folder.name) / "mlflow.db", mlflow)
    return Path(folder.name) / "mlflow.db", folder


def fresh_databases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`folder` with a database in a folder of each kind."""
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for kind in KINDS:
        (folder / kind).mkdir()
        shutil.copy(_empty()[0], folder / kind)
    return folder


def opened(folder: Path, kind: str, **changes: Any) -> Any:
    path = folder / kind / "mlflow.db"
    address = f"sqlite:///{path}"
    backend: Backend = SqliteBackend(address, path) if kind == "sqlite" else ServerBackend(address)
    backend.open(EXPERIMENT, sweep_entry(make_sweep(truths=[], started_ms=5, **changes)))
    return backend


def entry(i: int, **changes: Any) -> Entry:
    return make_entry(make_point(i, **changes), "sweep-1", "point")
