"""Known settings are found again in recordings of the real vLLM whose device was modelled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.core.jit import JIT
from tests.orchestrator.calibration_make import run_study, write_study
from tests.profiles.bundles import ROOT

RECORDED = ROOT / "tests/recorded"

pytestmark = [
    pytest.mark.skipif(not RECORDED.is_dir(), reason="needs recordings in tests/recorded"),
    pytest.mark.skipif(
        importlib.util.find_spec("aiconfigurator_core") is None,
        reason="needs aiconfigurator-core, whose tables the device slept by",
    ),
    pytest.mark.skipif(not JIT, reason="takes minutes uncompiled"),
]

BLOCKS = {
    "fields": ["engine.num_gpu_blocks_override"],
    "range": [500, 700],
    "resolution": 1,
    "points": 11,
}
DECODE = {
    "fields": ["overhead.full_graph_ms"],
    "range": [-0.2, 0.2],
    "resolution": 0.005,
    "points": 9,
}
HOST = {
    "host_step": {"fields": ["overhead.host_ms_per_step"], "range": [0.0, 2.0]},
    "host_request": {"fields": ["overhead.host_ms_per_request"], "range": [0.0, 0.2]},
}


@pytest.mark.parametrize(
    ("name", "host", "train", "error"),
    [
        ("h100-async", {}, {"every": 2}, 1.5),
        ("h100", HOST, {"window_s": [0.0, 19.0]}, 3.0),
    ],
)
def test_blocks_and_mode_times(
    tmp_path: Path, name: str, host: dict[str, Any], train: dict[str, Any], error: float
) -> None:
    """600 blocks, and a device that slept as long as the tables say: 0 ms beside them. A synchronous
    engine's host time is taken from the steps of the requests that are fitted, so these are a window
    in time: every second request shares its steps with the others."""
    folder = RECORDED / name
    if not (folder / "point.yaml").is_file():
        pytest.skip(f"needs tests/recorded/{name}")
    base = yaml.safe_load((folder / "point.yaml").read_text())
    assert base["engine"].pop("num_gpu_blocks_override") == 600
    base["recorded_run"] = str(folder)
    path = write_study(
        tmp_path,
        base=base,
        parameters=host | {"blocks": BLOCKS, "decode_ms": DECODE},
        runs={"one": {"truth": {"recorded": str(folder)}, "train": train}},
    )
    done, _, told = run_study(path, tmp_path / "out")
    blocks, decode = done.card.parameters["blocks"], done.card.parameters["decode_ms"]
    assert blocks.low is not None and blocks.high is not None
    assert blocks.low <= 600 <= blocks.high
    assert blocks.value == pytest.approx(600, rel=0.01)
    assert decode.low is not None and decode.high is not None
    assert decode.low <= 0 <= decode.high
    assert abs(decode.value) <= 0.01
    held_out = next(one for one in done.judged if one.side == "test")
    assert held_out.after["requests"] < error
    assert any("by regression on the recorded steps" in line for line in told) == bool(host)
