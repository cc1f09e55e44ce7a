"""The device model's law is the simulator's, in a process that has nothing but numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recording.inside.files import save_latency
from orchestrator.recording.stage import ENVIRONMENT, stage
from simulator import simulate
from simulator.simulation import prepare
from simulator.step_tables import new_outside
from tests.profiles.bundles import write_variant
from tests.simulator.point import make_point

ASK = """
import json, sys
sys.modules.update(dict.fromkeys(("numba", "platformdirs", "pydantic", "pyarrow")))  # None: refused
from orchestrator.recording.inside.files import load_latency
from orchestrator.recording.inside.law import device_ns
latency, outside = load_latency("latency.npz")
batches = json.load(open("batches.json"))
print(json.dumps([device_ns(latency, outside, batch) for batch in batches]))
"""


@pytest.mark.parametrize("profile", ["linear", "tables"])
def test_every_step_of_a_run_takes_what_the_simulator_says(tmp_path: Path, profile: str) -> None:
    changes: dict[str, Any] = {"engine__async_scheduling": False}
    if profile == "tables":
        folder = write_variant(tmp_path / "bundle")
        changes["profile"] = {"bundle": str(folder)}
    point = make_point(**changes)
    result = simulate(point, steps=True)
    assert result.steps is not None
    rows = result.steps.to_pylist()
    batches = [
        list(zip(row["scheduled_tokens"], row["computed_tokens"], strict=True)) for row in rows
    ]
    latency = prepare(point).latency
    stage(tmp_path)
    save_latency(tmp_path / "latency.npz", latency, new_outside(latency))
    (tmp_path / "batches.json").write_text(json.dumps(batches))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert asked.returncode == 0, asked.stderr.decode()
    assert json.loads(asked.stdout) == [row["end_ns"] - row["start_ns"] for row in rows]
    assert len(rows) > 100
