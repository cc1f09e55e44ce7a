"""`servesweep dashboard`, and MLflow's own pages in a real browser."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.tracking import mlflow_installed
from tests.dashboards.browser import needs_browser, opened
from tests.dashboards.make import sweep_fields
from tests.orchestrator.sweep_make import BLOCKS, write_sweep

pytestmark = [
    *needs_browser,
    pytest.mark.skipif(not mlflow_installed(), reason="MLflow is not installed"),
]

START_S = 240.0
BEST = 5


@dataclass
class Dashboard:
    process: subprocess.Popen[str]
    said: str

    def address(self, name: str) -> str:
        found = re.search(rf"^  {name}: (\S+)$", self.said, re.MULTILINE)
        assert found is not None, self.said
        return found[1]

    @property
    def base(self) -> str:
        found = re.search(r"^MLflow: (\S+)$", self.said, re.MULTILINE)
        assert found is not None, self.said
        return found[1]


def read_until(stream: IO[str], text: str) -> str:
    """What a process says, until it says `text`, ends, or takes too long."""
    said, deadline = "", time.monotonic() + START_S
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while text not in said and time.monotonic() < deadline:
            if selector.select(1.0):
                line = stream.readline()
                if not line:
                    break
                said += line
    return said


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("tracked")
    fields = sweep_fields(folder)
    axes = {**fields["axes"], BLOCKS: [10, 12, 14, 16, 18, 20, 24]}
    path = write_sweep(folder, **fields | {"axes": axes, "tracking": {"enabled": True}})
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    done = CliRunner().invoke(main, ["run", str(path), "--serial", "--out", str(folder / "out")])
    assert done.exit_code == 0, done.output
    command = [sys.executable, "-m", "orchestrator.cli", "dashboard", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--out", str(folder / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        yield Dashboard(process, read_until(process.stdout, "Ctrl-C ends it"))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def lines_of(page: Any) -> int:
    """Lines of the first chart that MLflow drew."""
    place = page.locator(".js-plotly-plot").first
    place.locator(".scatterlayer .trace").first.wait_for(state="attached")
    return int(place.locator(".scatterlayer .trace").count())


def test_truth_and_five_points_lie_over_each_other(dashboard: Dashboard) -> None:
    with opened(dashboard.address("truth and best points"), dashboard.base, strict=False) as page:
        page.get_by_text("series/running", exact=True).first.wait_for()
        page.get_by_text(f"{BEST + 1} matching runs").wait_for()
        page.get_by_text("truth card/model").first.wait_for()
        page.wait_for_function(
            f"[...document.querySelectorAll('.js-plotly-plot')].some("
            f"(p) => p.querySelectorAll('.scatterlayer .trace').length >= {BEST + 1})"
        )


def test_the_page_of_a_series_shows_them_too(dashboard: Dashboard) -> None:
    with opened(dashboard.address("running over time"), dashboard.base, strict=False) as page:
        assert lines_of(page) % (BEST + 1) == 0, "MLflow may draw a line twice"
        names = page.locator("body").inner_text()
        assert "truth card/model" in names


def test_all_points_are_there_without_the_sweep_itself(dashboard: Dashboard) -> None:
    with opened(dashboard.address("all points"), dashboard.base, strict=False) as page:
        page.get_by_text("8 matching runs").wait_for()  # seven different points and the truth
        page.get_by_text("along the axes").first.wait_for()


def test_the_compare_page_and_the_report_open(dashboard: Dashboard) -> None:
    with opened(dashboard.address("compare"), dashboard.base, strict=False) as page:
        page.get_by_text(f"Comparing {BEST + 1} Runs").first.wait_for()
        assert page.get_by_text("truth card/model").first.is_visible()
    with opened(dashboard.address("report"), dashboard.base, strict=False) as page:
        frame = page.frame_locator("iframe").first
        frame.locator("#verdict").wait_for()
        assert "the nearest to the truth" in frame.locator("#verdict").inner_text()
        frame.locator("thead button[data-sort='blocks']").click()
        assert frame.locator("#table tr.row").count() == 14


def test_ctrl_c_ends_it_and_everything_it_started(dashboard: Dashboard) -> None:
    """The last one: what it started is gone afterwards."""
    port = int(dashboard.base.rsplit(":", 1)[1])
    dashboard.process.send_signal(signal.SIGINT)
    assert dashboard.process.stdout is not None
    assert read_until(dashboard.process.stdout, "stopped").strip() == "stopped"
    assert dashboard.process.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert Path(f"/proc/{dashboard.process.pid}").exists() is False
