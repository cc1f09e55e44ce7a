"""Equal inputs give byte-identical files: compiled or not, in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from simulator.core.jit import JIT
from tests.profiles.bundles import ROOT
from tests.simulator.points import POINTS

# name -> what its environment sets
WAYS = {
    "compiled": {"SERVESWEEP_JIT": "1", "PYTHONHASHSEED": "1"},
    "again": {"SERVESWEEP_JIT": "1", "PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
    "uncompiled": {"SERVESWEEP_JIT": "0", "PYTHONHASHSEED": "3"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results of all points by every way, one process each."""
    if not JIT:
        pytest.skip("compares compiled code with the same code uncompiled")
    folders = {}
    for way, environment in WAYS.items():
        folders[way] = tmp_path_factory.mktemp(way)
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulator.points", str(folders[way])],
            cwd=ROOT,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        compiled = environment["SERVESWEEP_JIT"] == "1"
        assert done.stdout.strip() == ("compiled" if compiled else "not compiled")
    return folders


@pytest.mark.parametrize("way", ["again", "uncompiled"])
@pytest.mark.parametrize("point", POINTS)
def test_same_bytes(written: dict[str, Path], point: str, way: str) -> None:
    ours, theirs = written["compiled"] / point, written[way] / point
    names = sorted(path.name for path in ours.iterdir())
    assert names == sorted(path.name for path in theirs.iterdir())
    assert ("steps.parquet" in names) == POINTS[point][0]
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_keeping_steps_changes_nothing_else(written: dict[str, Path]) -> None:
    folder = written["compiled"]
    for name in ("summary.json", "requests.parquet", "timeseries.parquet"):
        plain = (folder / "async-pressure" / name).read_bytes()
        assert (folder / "async-pressure-steps" / name).read_bytes() == plain


def test_the_points_are_worth_comparing(written: dict[str, Path]) -> None:
    """Each shows what it is there for."""

    def summary(point: str) -> Any:
        return json.loads((written["compiled"] / point / "summary.json").read_text())

    for point in POINTS:
        counts = summary(point)["requests"]
        assert counts["finished"] + counts["refused"] == summary(point)["workload"]["requests"]
    for point in ("async-pressure", "priority", "priority-sync-no-isl", "tier", "offloading"):
        assert summary(point)["preemptions"] > 0
    assert summary("refused")["requests"]["refused"] > 0
    assert summary("refused")["requests"]["capped_at_max_model_len"] > 0
    assert summary("tier")["prefix_storage"]["tiers"]["cpu"]["loads"] > 0
    assert summary("offloading")["prefix_storage"]["tiers"]["cxl"]["loads"] > 0
    assert summary("tables")["outside_measured_grid"]
    assert summary("tables-modes")["end_ns"] > summary("tables")["end_ns"]
    waited = {}
    for admission in ("legacy", "exact-scan", "incremental"):
        found = summary(f"infinilm-{admission}")
        assert found["preemptions"] == 0
        assert found["kv"]["peak_reserved_decode_blocks"] > 0
        waited[admission] = found["kv"]["failed_allocations"]
    assert waited["legacy"] > waited["exact-scan"] == waited["incremental"] > 0
    assert pq.read_table(written["compiled"] / "sessions/requests.parquet").num_rows == 40
