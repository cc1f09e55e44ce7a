"""Pictures of a sweep: written, whatever the points lack."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from orchestrator import plots
from orchestrator.pictures import draw
from tests.orchestrator.sweep_make import TRUTH, run_sweep, write_sweep

LATENCY = {"TTFT (ms)": [1.0, 20.0, 900.0, math.nan], "TPOT (ms)": [5.0, 6.0]}
LOAD = {"running": ([1, 2, 3], [0, 4, 2]), "waiting": ([1, 2, 3], [0, 1, 0])}


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("truth", [LATENCY, None])
def test_latency_cdfs(tmp_path: Path, truth: plots.Curves | None) -> None:
    points = {"a": LATENCY, "empty": {"TTFT (ms)": []}, "other": {"TPOT (ms)": [np.inf, 3.0]}}
    path = plots.latency_cdfs(tmp_path / "new" / "cdf.png", truth, points, "title")
    assert path == tmp_path / "new" / "cdf.png" and is_png(path)


def test_over_time(tmp_path: Path) -> None:
    points = {"a": LOAD, "b": {"running": ([1], [2])}}
    assert is_png(plots.over_time(tmp_path / "load.png", LOAD, points))


def test_same_picture_is_the_same_bytes(tmp_path: Path) -> None:
    first, second = (plots.over_time(tmp_path / name, LOAD, {"a": LOAD}) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("errors", [[1.0, 2.0, 3.0], [-1.0, 2.0, np.nan], [np.nan] * 3, [0.0] * 3])
def test_error_heatmap(tmp_path: Path, errors: list[float]) -> None:
    path = tmp_path / "heat.png"
    plots.error_heatmap(path, [16, 32, 16], [0.5, 0.9, 0.5], errors, "seqs", "y")
    plots.error_heatmap(path, [16, 32, 16], ["a", "b", "a"], errors, "seqs", "y", several="mean")
    assert is_png(path)


def test_large_heatmap(tmp_path: Path) -> None:
    x, y = (grid.ravel().tolist() for grid in np.meshgrid(range(50), range(40)))
    errors = np.hypot(np.array(x) - 20, np.array(y) - 10)
    assert is_png(plots.error_heatmap(tmp_path / "heat.png", x, y, errors, "x", "y"))


def test_nothing_or_too_much_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.over_time(tmp_path / "a.png", None, {})
    many = {str(i): LOAD for i in range(plots.MOST_LINES + 1)}
    with pytest.raises(ValueError, match="at most 24"):
        plots.over_time(tmp_path / "a.png", LOAD, many)


def test_matplotlib_is_imported_when_drawing() -> None:
    code = "import orchestrator.plots, sys; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


HOSTILE = ("_hidden $x_$", "$\\frac", "ü 🦄 \n\x07", "", "x" * 3000)


@pytest.mark.filterwarnings("error")
def test_any_name_is_drawn_without_a_word(tmp_path: Path) -> None:
    points = dict.fromkeys(HOSTILE, LATENCY)
    assert is_png(plots.latency_cdfs(tmp_path / "cdf.png", LATENCY, points))
    assert is_png(plots.over_time(tmp_path / "load.png", LOAD, dict.fromkeys(HOSTILE, LOAD)))
    errors = [float(i) for i in range(len(HOSTILE))]
    path = plots.error_heatmap(tmp_path / "heat.png", HOSTILE, HOSTILE, errors, *HOSTILE[:2])
    assert is_png(path)


@pytest.mark.parametrize("truth", [TRUTH, None])
def test_axes_of_sections_are_drawn(tmp_path: Path, truth: object) -> None:
    rates = [{"process": "poisson", "rate": rate} for rate in (1000.0, 2000.0)]
    lengths = [{"uniform": [20, 60]}, {"fixed": 30}]
    axes = {"workload.generate.arrivals": rates, "workload.generate.prompt_tokens": lengths}
    fields = {"axes": axes} | ({"truth": truth} if truth else {})
    session, _ = run_sweep(write_sweep(tmp_path, **fields), tmp_path / "out")
    written = {path.name for path in draw(session.plan, session.store.folder) if is_png(path)}
    assert ("error.png" if truth else "mean_latency.png") in written


def test_axes_of_lists_are_drawn(tmp_path: Path) -> None:
    instances = [[{"count": 1}], [{"count": 2}]]
    axes = {"cluster.instances": instances, "engine.max_num_seqs": [4, 8]}
    session, _ = run_sweep(write_sweep(tmp_path, axes=axes), tmp_path / "out")
    written = draw(session.plan, session.store.folder)
    assert "mean_latency.png" in {path.name for path in written if is_png(path)}
