"""A sweep through the writer process into the embedded database."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.tracking import TrackedPoint, Tracker, TrackingReport
from profiles.errors import InputError
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


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def track(folder: Path, points: list[TrackedPoint], address: str | None = None, **changes):
    artifacts = changes.pop("finish_artifacts", [])
    with Tracker(address, EXPERIMENT, make_sweep(**changes), folder=folder) as tracker:
        for point in points:
            tracker.point(point)
        return tracker.finish(artifacts)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrackingReport]:
    """One sweep with all there is to it, tracked inside a surrounding MLflow run."""
    folder = tmp_path_factory.mktemp("with space & 100%")
    report_file, summary = folder / "report.html", folder / "a" / "summary.json"
    summary.parent.mkdir()
    report_file.write_text("<html>")
    summary.write_text("{}")
    before = dict(os.environ)
    os.environ |= {"MLFLOW_RUN_ID": "f" * 32, "MLFLOW_EXPERIMENT_NAME": "somebody else's"}
    try:
        points = [make_point(1), make_point(2, status="failed", reason="MemoryError: 40 GiB")]
        report = track(folder, points, artifacts=[report_file], finish_artifacts=[summary])
    finally:
        os.environ.clear()
        os.environ |= before
    return folder, report


def test_parent_children_and_truth(tracked: tuple[Path, TrackingReport]) -> None:
    folder, report = tracked
    assert (report.written, report.already_there, report.pending) == (3, 0, 0)
    assert report.complete and report.problem is None and not report.notes
    client = client_of(folder)
    (parent,), (truth,), (one, two) = (runs_of(client, r) for r in ("sweep", "truth", "point"))

    assert parent.info.run_name == "calibration" and parent.info.status == "FINISHED"
    assert parent.data.params == {"points": "3"} and parent.data.tags["card"] == "RTX4090"
    assert parent.info.run_id != "f" * 32
    assert client.get_experiment_by_name("somebody else's") is None
    for child in (truth, one, two):
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.tags["servesweep.sweep_id"] == "sweep-1"
    assert one.data.tags["servesweep.point_id"] == "point-1"
    assert one.info.status == "FINISHED" and two.info.status == "FAILED"
    assert two.data.tags["servesweep.reason"] == "MemoryError: 40 GiB"
    assert one.data.params == {
        "engine.num_gpu_blocks": "1",
        "engine.policy": "fcfs",
        "chunked": "True",
    }
    assert one.data.metrics["ttft_ms/p99"] == 11.0
    assert one.info.start_time, one.info.end_time == (1_700_000_000_000, 1_700_000_009_000)


def test_simulation_and_truth_overlay(tracked: tuple[Path, TrackingReport]) -> None:
    client = client_of(tracked[0])
    (truth,), (one, _) = runs_of(client, "truth"), runs_of(client, "point")
    assert history(client, one, "series/running") == [(1, 1.0), (2, 1.0), (3, 0.0)]
    assert history(client, truth, "series/running") == [(1, 1.0), (2, 0.0), (3, 0.0)]
    assert one.data.metrics["series/running"] == 0.0  # the last second
    assert history(client, one, "ttft_ms/p99") == [(0, 11.0)]


def test_artifacts_lie_beside_the_database(tracked: tuple[Path, TrackingReport]) -> None:
    folder, _ = tracked
    client = client_of(folder)
    (parent,) = runs_of(client, "sweep")
    names = [artifact.path for artifact in client.list_artifacts(parent.info.run_id)]
    assert names == ["report.html", "summary.json"]
    attached = list((folder / "mlruns").rglob("report.html"))
    assert len(attached) == 1 and attached[0].read_text() == "<html>"


def test_database_can_be_read_while_written(tracked: tuple[Path, TrackingReport]) -> None:
    connection = sqlite3.connect(tracked[0] / "mlflow.db")
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    connection.close()


def test_ui_hint(tracked: tuple[Path, TrackingReport]) -> None:
    folder, report = tracked
    assert f"--backend-store-uri 'sqlite:///{folder}/mlflow.db'" in report.ui
    assert "searchFilter=tags.%60servesweep.sweep_id%60" in report.ui


def test_rebuilding_changes_nothing(tracked: tuple[Path, TrackingReport]) -> None:
    folder, _ = tracked
    before = everything(folder)
    points = [make_point(1), make_point(2, status="failed", reason="MemoryError: 40 GiB")]
    points[0] = make_point(1, series={})  # what is there already stays
    report = track(folder, points)
    assert (report.written, report.already_there, report.pending) == (0, 3, 0)
    assert everything(folder) == before


def test_writer_killed_in_the_middle(tmp_path: Path) -> None:
    """Started again for the rest; and a sweep killed with it is completed by the next."""
    points = [make_point(i, series={"series/running": SECONDS}) for i in range(600)]
    with Tracker(None, EXPERIMENT, make_sweep(), folder=tmp_path) as tracker:
        for point in points:
            tracker.point(point)
        until(lambda: tracker.report().written > 0)
        tracker._writer.kill()
        report = tracker.report()
        assert 0 < report.written < 601
        report = tracker.finish()
    assert report.complete and report.already_there > 0
    runs = runs_of(client_of(tmp_path))
    assert len(runs) == len({run.data.tags.get("servesweep.point_id") for run in runs}) == 602
    assert all("servesweep.complete" in run.data.tags for run in runs)
    (rows,) = sqlite3.connect(tmp_path / "mlflow.db").execute("select count(*) from metrics")
    assert rows[0] == 600 * (2 + len(SECONDS)) + 5


SECONDS = [(second, 0.5) for second in range(200)]


def test_server_down_never_holds_the_sweep(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}"
        points = [make_point(i) for i in range(20)]
        with Tracker(address, EXPERIMENT, make_sweep(), folder=tmp_path) as tracker:
            began = time.monotonic()
            for point in points:
                tracker.point(point)
            assert time.monotonic() - began < 1.0
            until(lambda: tracker.report().problem is not None)
            said: list[str] = []
            report = tracker.finish(patience_s=0.5, tell=said.append)
    assert len(said) == 1 and "refused" in said[0] and "secret" not in said[0]
    assert report.pending == 21 and not report.complete
    assert report.problem is not None and "refused" in report.problem
    assert "secret" not in str(report)

    report = track(tmp_path, points)
    assert report.complete and report.written == 21


def test_two_trackers_on_a_fresh_database(tmp_path: Path) -> None:
    sweeps = [make_sweep(sweep_id=f"sweep-{i}") for i in range(2)]
    trackers = [Tracker(None, EXPERIMENT, sweep, folder=tmp_path) for sweep in sweeps]
    for tracker in trackers:
        tracker.point(make_point(1))
    reports = [tracker.finish() for tracker in trackers]
    assert all(report.complete for report in reports)
    client = client_of(tmp_path)
    assert [len(runs_of(client, role)) for role in ("sweep", "truth", "point")] == [2, 2, 2]


def test_close_leaves_nothing_behind(tmp_path: Path) -> None:
    tracker = Tracker(None, EXPERIMENT, make_sweep(), folder=tmp_path)
    tracker.point(make_point(1))
    tracker.close()
    tracker.close()
    assert tracker._writer.poll() is not None and not tracker._folder.exists()
    assert tracker.finish() == tracker.report()


def test_tracking_does_not_import_mlflow() -> None:
    code = "import orchestrator.tracking, sys; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "address", ["mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///:memory:", "sqlite:///a?b"]
)
def test_refused_addresses(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match=r"uri: got .*expected sqlite:///path"):
        Tracker(address, EXPERIMENT, make_sweep(), folder=tmp_path)


def test_refused_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sweep_id"):
        Tracker(None, EXPERIMENT, make_sweep(sweep_id="it's"), folder=tmp_path)
    with pytest.raises(InputError, match="experiment"):
        Tracker(None, " ", make_sweep(), folder=tmp_path)


def test_address_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.tracking import tracking_address

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert tracking_address(None, tmp_path) == "http://127.0.0.1:1"
    assert tracking_address("sqlite:////a/b.db", tmp_path) == "sqlite:////a/b.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert tracking_address(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
