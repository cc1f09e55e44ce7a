"""Views for MLflow's pages, and what the dashboard refuses before it starts anything."""

from __future__ import annotations

import base64
import json
import socket
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from dashboards.mlflow_views import (
    MAX_TAG,
    Run,
    SweepRuns,
    View,
    compare_page,
    series_page,
    views,
)
from orchestrator.cli import main

AXES = ["engine.block_size", "engine.max_num_seqs"]


def point(i: int) -> Run:
    metrics = {"err_pct/mean_abs": 1.0 + i, "ttft_ms/mean": 5.0, "kv/blocks": 100.0 + i}
    metrics |= {"series/running": 0.0} if i != 1 else {}
    return Run(f"p{i}", f"point {i}", 7, {}, {AXES[0]: str(i), AXES[1]: "8"}, metrics)


def runs(points: int = 8, name: str = "kv", **params: str) -> SweepRuns:
    sweep = Run("s", name, 1234, {"servesweep.sweep_id": "abc"}, {"axes": ", ".join(AXES)} | params)
    truth = Run("t", "truth card", 7, metrics={"ttft_ms/mean": 4.0, "series/running": 0.0})
    return SweepRuns("3", sweep, [truth], [point(i) for i in range(points)])


def state_of(view: View) -> dict[str, Any]:
    saved = json.loads(view.value)
    assert saved["name"] == view.name and saved["createdAt"] == 1234
    packed = base64.b64decode(saved["state"].removeprefix("deflate;"))
    state: dict[str, Any] = json.loads(zlib.decompress(packed))
    return state


def test_the_truth_and_the_five_best_lie_over_each_other() -> None:
    view = views(runs())[0]
    assert view.tag == "mlflow.sharedViewState.servesweep-abc-best"
    assert view.page.endswith("compareRunsMode=CHART&viewStateShareKey=servesweep-abc-best")
    state = state_of(view)
    ids = "'t', 'p0', 'p2', 'p3', 'p4', 'p5'"
    assert state["searchFilter"] == f"attributes.run_id IN ({ids})"
    lines = [chart for chart in state["compareRunCharts"] if chart["type"] == "LINE"]
    assert [chart["metricKey"] for chart in lines] == ["series/running"]
    assert lines[0]["xAxisKey"] == "step" and lines[0]["runsCountToCompare"] == 6
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == sections


def test_all_points_along_the_axes_that_vary() -> None:
    state = state_of(views(runs())[1])
    assert state["orderByKey"] == "metrics.`err_pct/mean_abs`" and state["orderByAsc"]
    assert state["selectedColumns"][0] == "params.`engine.block_size`"
    assert "params.`engine.max_num_seqs`" not in state["selectedColumns"]
    parallel = next(c for c in state["compareRunCharts"] if c["type"] == "PARALLEL")
    assert parallel["selectedParams"] == ["engine.block_size"]


def test_views_fit_into_a_tag() -> None:
    axes = ", ".join(f"engine.{i:03d}.{'x' * 60}" for i in range(300))
    big = runs(60, name="n" * 300, axes=axes)
    params = dict.fromkeys(axes.split(", "), "1")
    many = [Run(p.run_id, p.name, 7, {}, params | {axes.split(", ")[int(p.run_id[1:])]: "2"}, p.metrics)
            for p in big.points]  # fmt: skip
    for view in views(SweepRuns("3", big.sweep, big.truths, many)):
        assert len(view.value) <= MAX_TAG
        assert state_of_any(view)["searchFilter"]


def state_of_any(view: View) -> dict[str, Any]:
    packed = base64.b64decode(json.loads(view.value)["state"].removeprefix("deflate;"))
    state: dict[str, Any] = json.loads(zlib.decompress(packed))
    return state


def test_addresses_name_the_runs() -> None:
    query = parse_qs(urlsplit(compare_page(runs()).replace("/#", "")).query)
    assert json.loads(query["runs"][0]) == ["t", "p0", "p2", "p3", "p4", "p5"]
    page = series_page(runs(), "running")
    assert page is not None
    query = parse_qs(urlsplit(page.replace("/#", "")).query)
    assert json.loads(query["runs"][0]) == ["t", "p0", "p2", "p3", "p4", "p5"]
    assert series_page(runs(), "waiting") is None


def test_a_store_that_is_not_there_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = CliRunner().invoke(main, ["dashboard", "--out", str(tmp_path)])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "mlflow.db: got nothing, expected the database of sweeps" in done.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://user:secret@host/db")
    done = CliRunner().invoke(main, ["dashboard", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "secret" not in done.stderr


def test_a_port_in_use_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["dashboard", "--out", str(tmp_path), "--port", port])
    assert done.exit_code == 2
    assert (
        f"--port: got '127.0.0.1:{port}', expected an address and port that are free" in done.stderr
    )


def test_a_server_that_does_not_answer_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    done = CliRunner().invoke(main, ["dashboard", "--out", str(tmp_path)])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "expected a tracking server that answers" in done.stderr
