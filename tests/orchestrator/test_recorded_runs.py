"""The committed recordings of the real vLLM: every step, and latencies end to end.

How they were made, and what else they showed, is in tests/recorded/README.md.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.recording.check import check_steps, host_time, load_recorded
from profiles.errors import InputError
from tests.orchestrator.recording_make import RECORDED

# Recording: preemptions in it, and the recording of the same card whose host time is given to the
# simulator (an asynchronous engine hides it).
DEVICE_MODEL: dict[str, tuple[int, str | None]] = {
    "h100": (38, "h100-chunks-no-prefix"),
    "h100-async": (55, None),
    "h100-chunks-no-prefix": (28, "h100"),
    "l40s": (40, "l40s-no-prefix"),
    "l40s-async": (0, None),
    "l40s-no-prefix": (0, "l40s"),
}


@pytest.mark.parametrize("name", DEVICE_MODEL)
def test_every_step_is_the_recorded_one(name: str) -> None:
    found = check_steps(load_recorded(RECORDED / name))
    assert found.first_difference is None
    assert found.identical == found.steps > 2000
    assert found.preemptions == DEVICE_MODEL[name][0]


def test_a_step_that_was_changed_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(RECORDED / "h100", folder)
    path = folder / "steps.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    lines[1000]["free"] -= 1
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    found = check_steps(load_recorded(folder))
    assert found.identical == found.steps - 1
    assert found.first_difference is not None
    assert found.first_difference.startswith("step 1000, free:\n  simulated ")
    result = CliRunner().invoke(main, ["truth", "check", str(folder)])
    assert result.exit_code == 1
    assert f"{found.identical} of {found.steps} identical" in result.output


def test_a_recording_of_another_workload_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(RECORDED / "h100", folder)
    point = folder / "point.yaml"
    point.write_text(point.read_text().replace("seed: 11", "seed: 12"))
    result = CliRunner().invoke(main, ["truth", "check", str(folder)])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "requests.jsonl, line 1: input_toks: got " in result.output


def test_steps_that_miss_a_request_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    shutil.copytree(RECORDED / "h100", folder)
    path = folder / "steps.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    del next(line for line in lines if "added" in line)["added"]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(InputError, match="added: got '99 requests', expected each of 100"):
        load_recorded(folder)


def test_host_times_need_a_synchronous_recording() -> None:
    with pytest.raises(InputError, match="a synchronous recording, for host times"):
        host_time(load_recorded(RECORDED / "h100-async"))
