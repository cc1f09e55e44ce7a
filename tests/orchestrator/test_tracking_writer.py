"""The writer's patience, with a place for runs that does as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking import writer as module
from orchestrator.tracking.backend import LayoutUnknown, Refused, Unreachable
from orchestrator.tracking.entry import Entry
from orchestrator.tracking.spool import Spool
from orchestrator.tracking.writer import Counts, Writer
from tests.orchestrator.tracking_runs import make_point, make_sweep

pytest.importorskip("mlflow", reason="MLflow is not installed")


class Place:
    """Raises what the plan says for a point, one after the other, then takes it."""

    experiment_id = "1"
    batch = 10

    def __init__(self, plan: Mapping[str, list[Exception]], alive: bool = True) -> None:
        self.plan = {key: list(errors) for key, errors in plan.items()}
        self._alive = alive
        self.written: list[str] = []
        self.attached: list[str] = []

    def _do(self, key: str) -> None:
        if self.plan.get(key):
            raise self.plan[key].pop(0)

    def open(self, experiment: str, sweep: Entry) -> None:
        self._do("open")

    def write(self, entries: Sequence[Entry]) -> list[bool]:
        for entry in entries:
            self._do(entry.key)
        self.written += [entry.key for entry in entries]
        return [True for _ in entries]

    def attach(self, file: Path, folder: str | None) -> None:
        self._do(file.name)
        self.attached.append(file.name)

    def finish(self, tags: Mapping[str, str]) -> None:
        self._do("finish")

    def alive(self) -> bool:
        return self._alive

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 0.002)


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: Place, stop_after_s: float | None = None
) -> Counts:
    (folder / "there.png").touch()
    artifacts = [folder / "there.png", folder / "missing.png"]
    spool = Spool(folder)
    spool.append(
        "open", address="http://127.0.0.1:1", experiment="x", sweep=make_sweep(artifacts=artifacts)
    )
    for i in range(3):
        spool.append("point", point=make_point(i))
    spool.append("finish", artifacts=[], tags={})
    spool.close()
    monkeypatch.setattr("orchestrator.tracking.server.ServerBackend", lambda address: place)
    stop = threading.Event()
    if stop_after_s is not None:
        threading.Timer(stop_after_s, stop.set).start()
    writer = Writer(folder, stop)
    writer.run()
    told: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert Counts(**told) == writer.counts
    return writer.counts


def test_trouble_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble: list[Exception] = [Unreachable("503"), Unreachable("503")]
    place = Place(dict.fromkeys(("open", "truth-1", "point-1", "there.png", "finish"), trouble))
    counts = run(tmp_path, monkeypatch, place)
    assert place.written == ["truth-1", "point-0", "point-1", "point-2"]
    assert counts.written == 4 and counts.ended and counts.problem is None
    assert place.attached == ["there.png"]
    assert counts.notes == ["artifact missing.png: no such file"]


@pytest.mark.parametrize("error", [Refused("no"), Unreachable("no")])
def test_one_refused_does_not_hold_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Also one that the place, though there, fails on again and again."""
    place = Place({"point-1": [error] * 9, "there.png": [error] * 9})
    counts = run(tmp_path, monkeypatch, place)
    assert place.written == ["truth-1", "point-0", "point-2"]
    assert counts.written == 3 and counts.failed == {"point-1": "no"} and counts.ended
    assert counts.notes[0] == "artifact there.png: no"


def test_nothing_is_given_up_while_there_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [Unreachable("no route")] * 100_000
    counts = run(tmp_path, monkeypatch, Place({"point-1": errors}, alive=False), 0.3)
    assert counts.written == 1 and not counts.failed and not counts.ended
    assert counts.problem == "no route" and not counts.hopeless


def test_refused_altogether(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = run(tmp_path, monkeypatch, Place({"open": [Refused("deleted")]}))
    assert counts.hopeless and counts.problem == "deleted" and counts.written == 0


def test_unknown_columns_are_left_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise LayoutUnknown("table runs: ['owner']")

    place = Place({})
    monkeypatch.setattr("orchestrator.tracking.sqlite.SqliteBackend.open", unknown)
    monkeypatch.setattr("orchestrator.tracking.writer.database_path", lambda _: tmp_path / "a.db")
    counts = run(tmp_path, monkeypatch, place)
    assert len(place.written) == 4
    assert counts.notes[0] == "written through MLflow's client: table runs: ['owner']"
