"""Writing broken off at any step, busy and unknown databases, and what is final."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.backend import LayoutUnknown, Refused, Unreachable, as_ours
from orchestrator.tracking.entry import make_entry
from orchestrator.tracking.sqlite import SqliteBackend
from tests.orchestrator.tracking_runs import client_of, make_point, runs_of
from tests.orchestrator.tracking_stores import both, entry, fresh_databases, opened

pytest.importorskip("mlflow", reason="MLflow is not installed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_databases(tmp_path, monkeypatch)


@both
@pytest.mark.parametrize("again_with", ["same", "new"])
def test_broken_off_in_the_middle(folder: Path, kind: str, again_with: str) -> None:
    """After any of the first requests or statements, by the same writer or by the next one."""
    wanted = [entry(i, series={"series/a": [(t, 1.0) for t in range(900)]}) for i in range(3)]
    for stop_after in range(1, 9):
        backend = opened(folder, kind, sweep_id=f"sweep-{stop_after}")
        entries = [make_entry(make_point(i), f"sweep-{stop_after}", "point") for i in range(3)]
        break_off(backend, stop_after)
        with pytest.raises(Unreachable):
            for each in entries:
                backend.write([each])
        if again_with == "new":
            backend.close()
            backend = opened(folder, kind, sweep_id=f"sweep-{stop_after}")
        else:
            mend(backend)
        for each in entries:
            backend.write([each])
        backend.finish({})
        backend.close()
    runs = runs_of(client_of(folder / kind), "point")
    assert len(runs) == 8 * len(wanted)
    for run in runs:
        assert set(run.data.metrics) == {"ttft_ms/p99", "err_pct/mean_abs", "series/running"}
        assert len(run.data.params) == 3 and run.info.status == "FINISHED"


def break_off(backend: Any, after: int) -> None:
    calls = 0

    def failing(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            result = real(*arguments, **options)  # it was done, only the answer is lost
            calls += 1
            if calls == after:
                raise sqlite3.OperationalError("disk I/O error")
            return result

        return call

    if isinstance(backend, SqliteBackend):
        backend._mended = backend._connection
        backend._connection = Breaking(backend._connection, failing)
    else:
        for name in ("create_run", "set_terminated", "log_batch"):
            setattr(backend._client, name, failing(getattr(backend._client, name)))


class Breaking:
    def __init__(self, connection: sqlite3.Connection, failing: Any) -> None:
        self.connection = connection
        self.executemany = failing(connection.executemany)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def mend(backend: Any) -> None:
    if isinstance(backend, SqliteBackend):
        backend._connection = backend._mended  # type: ignore[attr-defined]
    else:
        for name in ("create_run", "set_terminated", "log_batch"):
            delattr(backend._client, name)


def test_one_that_cannot_be_written_takes_no_other_with_it(folder: Path) -> None:
    backend = opened(folder, "sqlite")
    with pytest.raises(Refused, match="too large"):
        backend.write([entry(1), entry(2, series={"series/a": [(2**70, 1.0)]})])
    assert backend.write([entry(1)]) == [True]
    assert len(runs_of(client_of(folder / "sqlite"), "point")) == 1
    backend.close()


def test_busy_database_is_tried_again(folder: Path) -> None:
    backend = opened(folder, "sqlite")
    backend._connection.execute("pragma busy_timeout = 10")
    other = sqlite3.connect(folder / "sqlite" / "mlflow.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(Unreachable, match="locked"):
        backend.write([entry(1)])
    other.execute("rollback")
    other.close()
    assert backend.write([entry(1)]) == [True]
    backend.close()


@pytest.mark.parametrize(
    "change",
    [
        "alter table runs add column owner text not null default 'x'",
        "alter table metrics rename column step to at_step",
        "alter table params add column kind text",
    ],
)
def test_unknown_layout(folder: Path, change: str) -> None:
    """Columns that may be left empty are no reason to turn away."""
    connection = sqlite3.connect(folder / "sqlite" / "mlflow.db")
    connection.execute(change)
    connection.close()
    if "rename" in change:
        with pytest.raises(LayoutUnknown, match="table metrics"):
            opened(folder, "sqlite")
    else:
        opened(folder, "sqlite").close()


def test_only_answers_about_the_request_are_final() -> None:
    from mlflow.exceptions import MlflowException

    assert isinstance(as_ours(MlflowException("no", 1000)), Refused)  # INVALID_PARAMETER_VALUE
    outdated = MlflowException("Detected out-of-date database schema (found version 1, ...)")
    assert isinstance(as_ours(outdated), Refused)
    assert isinstance(as_ours(ImportError("no module")), Refused)
    assert isinstance(as_ours(MlflowException("connection refused")), Unreachable)
    assert isinstance(as_ours(OSError("reset")), Unreachable)
