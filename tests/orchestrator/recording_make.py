"""Small points and engine logs for the tests of recording."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.recording.inside.log import ADDED, DEVICE, SCHEDULED, UPDATED
from orchestrator.recording.spec import Recording, load_recording
from tests.simulator.point import point_data

PYTHON = os.environ.get("SERVESWEEP_VLLM_PYTHON")
needs_vllm = pytest.mark.skipif(
    PYTHON is None,
    reason="needs vLLM: SERVESWEEP_VLLM_PYTHON names the Python of an environment that holds it",
)
RECORDED = Path(__file__).parents[1] / "recorded"
START = 1_000_000

# Two requests, three steps: 0 is chunked, 1 comes while step 0 runs and is preempted in step 2.
LOG = [
    *(ADDED, 0, START + 5),
    *(SCHEDULED, 0, START + 10, START + 12, 1, 0, 9, 1, 0, 0, 64, 0),
    *(DEVICE, START + 13, START + 113),
    *(UPDATED, 0, START + 115, START + 118, 1, 0, 9, 0),
    *(ADDED, 1, START + 119),
    *(SCHEDULED, 1, START + 120, START + 123, 2, 0, 4, 2, 0, 0, 6, 64, 1, 30, 16),
    *(DEVICE, START + 124, START + 224),
    *(UPDATED, 1, START + 225, START + 230, 2, 0, 4, 0),
    *(SCHEDULED, 2, START + 231, START + 233, 1, 1, 8, 1, 1, 0, 1, 70, 1),
    *(DEVICE, START + 234, START + 334),
    *(UPDATED, 2, START + 335, START + 336, 0, 1, 10, 1, 0),
]


def write_point(folder: Path, **changes: Any) -> Path:
    """A synchronous point file in `folder` that vLLM can run."""
    changes = {
        "engine__async_scheduling": False,
        "engine__max_model_len": 256,
        "workload__generate__num_requests": 12,
        **changes,
    }
    path = folder / "point.yaml"
    path.write_text(yaml.safe_dump(point_data(**changes)))
    return path


def recording_of(path: Path, **options: Any) -> Recording:
    options = {"device_model": True, "enforce_eager": False, "extra": {}, **options}
    return load_recording(path, **options)
