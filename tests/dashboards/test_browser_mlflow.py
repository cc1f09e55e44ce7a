"""`servesweep dashboard`, and MLflow's own pages in a real browser."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
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

START_S = 600.0  # of a busy machine
BEST = 5


class Words:
    """What a process says, read by a thread: lines that come together are not waited for twice."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: Queue[str | None] = Queue()
        self._thread = Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, text: str) -> str:
        """What comes, until `text` does or the process ends."""
        said, deadline = "", time.monotonic() + START_S
        while text not in said:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            if line is None:
                break
            said += line
        return said

    def close(self) -> None:
        self._thread.join(START_S)


@dataclass
class Dashboard:
    process: subprocess.Popen[str]
    words: Words
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
    words = Words(process.stdout)
    try:
        yield Dashboard(process, words, words.until("Ctrl-C ends it"))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(START_S)
        words.close()
        process.stdout.close()


def says(page: Any, text: str) -> None:
    """Wait until the page does, in markup or in a picture."""
    page.wait_for_function("(text) => document.body.textContent.includes(text)", arg=text)


def draws(page: Any, lines: str) -> None:
    """Wait until the number of `lines` in a chart is as it says."""
    page.wait_for_function(
        "[...document.querySelectorAll('.js-plotly-plot')]"
        f".map((p) => p.querySelectorAll('.scatterlayer .trace').length).some((lines) => {lines})"
    )


def test_truth_and_five_points_lie_over_each_other(dashboard: Dashboard) -> None:
    with opened(dashboard.address("truth and best points"), dashboard.base, strict=False) as page:
        page.get_by_text("series/running", exact=True).first.wait_for()
        page.get_by_text(f"{BEST + 1} matching runs").wait_for()
        page.get_by_text("truth card/model").first.wait_for()
        draws(page, f"lines >= {BEST + 1}")


def test_the_page_of_a_series_shows_them_too(dashboard: Dashboard) -> None:
    with opened(dashboard.address("running over time"), dashboard.base, strict=False) as page:
        draws(page, f"lines > 0 && lines % {BEST + 1} === 0")  # MLflow may draw a line twice
        says(page, "truth card/model")


def test_all_points_are_there_without_the_sweep_itself(dashboard: Dashboard) -> None:
    with opened(dashboard.address("all points"), dashboard.base, strict=False) as page:
        page.get_by_text("8 matching runs").wait_for()  # seven different points and the truth
        page.get_by_text("along the axes").first.wait_for()


def test_the_compare_page_and_the_report_open(dashboard: Dashboard) -> None:
    with opened(dashboard.address("compare"), dashboard.base, strict=False) as page:
        page.get_by_text(f"Comparing {BEST + 1} Runs").first.wait_for()
        page.get_by_text("truth card/model").first.wait_for()
    with opened(dashboard.address("report"), dashboard.base, strict=False) as page:
        frame = page.frame_locator("iframe").first
        frame.locator("#verdict", has_text="the nearest to the truth").wait_for()
        frame.locator("thead button[data-sort='blocks']").click()
        frame.locator("th[aria-sort='ascending'] button[data-sort='blocks']").wait_for()
        assert frame.locator("#table tr.row").count() == 14


def test_ctrl_c_ends_it_and_everything_it_started(dashboard: Dashboard) -> None:
    """The last one: what it started is gone afterwards."""
    port = int(dashboard.base.rsplit(":", 1)[1])
    dashboard.process.send_signal(signal.SIGINT)
    assert dashboard.words.until("stopped").strip() == "stopped"
    assert dashboard.process.wait(START_S) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert Path(f"/proc/{dashboard.process.pid}").exists() is False
