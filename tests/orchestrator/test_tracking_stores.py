"""The two ways to write runs, in this process: both leave the same, and once only."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.backend import Refused
from tests.orchestrator.tracking_runs import client_of, everything, history, runs_of
from tests.orchestrator.tracking_stores import KINDS, both, entry, fresh_databases, opened

pytest.importorskip("mlflow", reason="MLflow is not installed")
HOSTILE = {
    "metrics": {"p99@load %": 1.0, "../up": 2.0, "bad": float("inf"), "x" * 300: 3.0, "": 4.0},
    "params": {"axes[0]": "a\0b", "µ": "\ud800", "long": "y" * 20_000, **dict.fromkeys("abc", "")},
    "tags": {"a+b": "t" * 20_000, "servesweep.role": "king", "mlflow.parentRunId": "nobody"},
    "series": {"series/a@b": [(t, float(t)) for t in range(1, 1200)]},
    "name": "\n'; drop table runs; -- 👋",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_databases(tmp_path, monkeypatch)


def test_direct_rows_equal_those_of_the_client(folder: Path) -> None:
    entries = [entry(1), entry(2, **HOSTILE), entry(3, status="failed", reason="why", series={})]
    entries.append(entry(4, metrics={}, params={f"p{i}": i for i in range(250)}, tags={}))
    for kind in KINDS:
        backend = opened(folder, kind)
        for each in entries:
            assert backend.write([each]) == [True]
        backend.finish({"best": "point-1"})
        backend.close()
    ours, theirs = (runs_of(client_of(folder / kind)) for kind in KINDS)
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
                for kind, run in zip(KINDS, (a, b), strict=True)
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
