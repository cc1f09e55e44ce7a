"""The two ways to write runs, in this process: both leave the same, and neither leaves doubles."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.backend import Backend, LayoutUnknown, Refused, Unreachable, as_ours
from orchestrator.tracking.entry import Entry, make_entry, sweep_entry
from orchestrator.tracking.server import ServerBackend
from orchestrator.tracking.sqlite import SqliteBackend
from tests.orchestrator.tracking_runs import (
    EXPERIMENT,
    client_of,
    everything,
    history,
    make_point,
    make_sweep,
    runs_of,
)

pytest.importorskip("mlflow", reason="MLflow is not installed")
HOSTILE = {
    "metrics": {"p99@load %": 1.0, "../up": 2.0, "bad": float("inf"), "x" * 300: 3.0, "": 4.0},
    "params": {"axes[0]": "a\0b", "µ": "\ud800", "long": "y" * 20_000, **dict.fromkeys("abc", "")},
    "tags": {"a+b": "t" * 20_000, "servesweep.role": "king", "mlflow.parentRunId": "nobody"},
    "series": {"series/a@b": [(t, float(t)) for t in range(1, 1200)]},
    "name": "\n'; drop table runs; -- 👋",
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import mlflow

    from orchestrator.tracking.database import make_database

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    make_database(path, mlflow)
    return path


@pytest.fixture
def folder(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("sqlite", "client"):
        (tmp_path / name).mkdir()
        shutil.copy(empty, tmp_path / name)
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield tmp_path


def opened(folder: Path, kind: str, **changes: Any) -> Any:
    path = folder / kind / "mlflow.db"
    address = f"sqlite:///{path}"
    backend: Backend = SqliteBackend(address, path) if kind == "sqlite" else ServerBackend(address)
    backend.open(EXPERIMENT, sweep_entry(make_sweep(truth=None, started_ms=5, **changes)))
    return backend


def entry(i: int, **changes: Any) -> Entry:
    return make_entry(make_point(i, **changes), "sweep-1", "point")


both = pytest.mark.parametrize("kind", ["sqlite", "client"])


def test_direct_rows_equal_those_of_the_client(folder: Path) -> None:
    entries = [entry(1), entry(2, **HOSTILE), entry(3, status="failed", reason="why", series={})]
    entries.append(entry(4, metrics={}, params={f"p{i}": i for i in range(250)}, tags={}))
    kinds = ("sqlite", "client")
    for kind in kinds:
        backend = opened(folder, kind)
        for each in entries:
            assert backend.write([each]) == [True]
        backend.finish({"best": "point-1"})
        backend.close()
    ours, theirs = (runs_of(client_of(folder / kind)) for kind in kinds)
    assert len(ours) == len(theirs) == 5
    same_ids = {b.info.run_id: a.info.run_id for a, b in zip(ours, theirs, strict=True)}
    for a, b in zip(ours, theirs, strict=True):
        tags = {name: same_ids.get(value, value) for name, value in b.data.tags.items()}
        assert (a.data.params, a.data.metrics, a.data.tags) == (b.data.params, b.data.metrics, tags)
        for field in ("run_name", "status", "start_time", "lifecycle_stage", "user_id"):
            assert getattr(a.info, field) == getattr(b.info, field)
        if a.data.tags["servesweep.role"] == "point":
            assert a.info.end_time == b.info.end_time
        for metric in a.data.metrics:
            histories = [
                sorted(
                    map(repr, client_of(folder / kind).get_metric_history(run.info.run_id, metric))
                )
                for kind, run in zip(kinds, (a, b), strict=True)
            ]
            assert [h.replace(b.info.run_id, a.info.run_id) for h in histories[1]] == histories[0]


@both
def test_written_twice(folder: Path, kind: str) -> None:
    entries = [entry(1), entry(2, **HOSTILE)]
    before: dict[str, list[Any]] = {}
    for again in (False, True, True):
        backend = opened(folder, kind)
        assert [backend.write([each]) for each in entries] == [[not again], [not again]]
        backend.finish({})
        backend.close()
        now = everything(folder / kind)
        assert now == (before if again else now)
        before = now


@both
def test_other_content_replaces(folder: Path, kind: str) -> None:
    backend = opened(folder, kind)
    backend.write([entry(1)])
    changed = entry(1, params={"other": 2}, metrics={"ttft_ms/p99": 7.0}, series={})
    assert backend.write([changed]) == [True]
    (run,) = runs_of(client_of(folder / kind), "point")
    assert run.data.params == {"other": "2"} and run.data.metrics == {"ttft_ms/p99": 7.0}
    assert len(history(client_of(folder / kind), run, "ttft_ms/p99")) == 1
    backend.close()


@both
def test_series_of_the_best_come_later(folder: Path, kind: str) -> None:
    backend = opened(folder, kind)
    backend.write([entry(1, series={})])
    assert backend.write([entry(1)]) == [True]
    assert backend.write([entry(1, series={})]) == [False]
    client = client_of(folder / kind)
    (run,) = runs_of(client, "point")
    assert history(client, run, "series/running") == [(1, 1.0), (2, 1.0), (3, 0.0)]
    assert len(history(client, run, "ttft_ms/p99")) == 1
    backend.close()


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


@both
def test_resumed_with_another_parameter(folder: Path, kind: str) -> None:
    opened(folder, kind).close()
    opened(folder, kind, params={"points": 4, "new": 1}).close()
    (parent,) = runs_of(client_of(folder / kind), "sweep")
    changed = parent.data.tags.get("servesweep.param_changed.points")
    assert parent.data.params == {"points": "4" if kind == "sqlite" else "3", "new": "1"}
    assert changed == (None if kind == "sqlite" else "4") and parent.info.status == "RUNNING"


@both
def test_written_one_way_and_tracked_again_the_other(folder: Path, kind: str) -> None:
    other = "client" if kind == "sqlite" else "sqlite"
    backend = opened(folder, kind)
    backend.write([entry(1)])
    backend.finish({})
    backend.close()
    shutil.copy(folder / kind / "mlflow.db", folder / other / "mlflow.db")
    backend = opened(folder, other)
    assert backend.write([entry(1)]) == [False]
    backend.close()
    assert len(runs_of(client_of(folder / other))) == 2


@both
def test_what_a_person_deleted_comes_back(folder: Path, kind: str) -> None:
    backend = opened(folder, kind)
    backend.write([entry(1)])
    backend.close()
    client = client_of(folder / kind)
    for run in runs_of(client):
        client.delete_run(run.info.run_id)
    backend = opened(folder, kind)
    assert backend.write([entry(1)]) == [True]
    backend.close()
    assert len(runs_of(client)) == 2


def test_what_a_person_wrote_stays(folder: Path) -> None:
    backend = opened(folder, "sqlite")
    backend.write([entry(1)])
    client = client_of(folder / "sqlite")
    (run,) = runs_of(client, "point")
    client.set_tag(run.info.run_id, "mlflow.note.content", "look at this one")
    backend.write([entry(1, metrics={})])
    (run,) = runs_of(client, "point")
    assert run.data.tags["mlflow.note.content"] == "look at this one"
    backend.close()


@both
def test_deleted_experiment_is_refused(folder: Path, kind: str) -> None:
    backend = opened(folder, kind)
    client_of(folder / kind).delete_experiment(backend.experiment_id)
    backend.close()
    with pytest.raises(Refused, match="was deleted"):
        opened(folder, kind)


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


def test_outdated_schema_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(folder / "sqlite" / "mlflow.db")
    connection.execute("update alembic_version set version_num = '451aebb31d03'")
    connection.commit()
    connection.close()
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(Refused, match="mlflow db upgrade"):
        opened(folder, "sqlite")


def test_only_answers_about_the_request_are_final() -> None:
    from mlflow.exceptions import MlflowException

    assert isinstance(as_ours(MlflowException("no", 1000)), Refused)  # INVALID_PARAMETER_VALUE
    assert isinstance(as_ours(MlflowException("connection refused")), Unreachable)
    assert isinstance(as_ours(OSError("reset")), Unreachable)
