"""The committed recordings of the real vLLM: every step, and latencies end to end.

How they were made, and what else they showed, is in tests/recorded/README.md.
"""

from __future__ import annotations

import gzip
import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.recording.check import (
    Recorded,
    check_steps,
    end_to_end,
    host_time,
    load_recorded,
)
from orchestrator.truth_recorded import recorded_truth
from profiles.errors import InputError
from tests.orchestrator.recording_make import RECORDED

# Recording: steps and preemptions in it.
DEVICE_MODEL = {
    "h100": (6209, 35),
    "h100-async": (6430, 55),
    "h100-chunks": (7150, 30),
    "h100-chunks-no-prefix": (6031, 27),
    "l40s": (2489, 43),
    "l40s-async": (2632, 37),
    "l40s-no-prefix": (2788, 29),
    "l40s-whole": (2809, 37),
}
# Real kernels of vLLM 0.32 on a CPU, prefix caching off.
KERNELS = {
    "cpu-1": (2067, 23),
    "cpu-2": (2048, 26),
    "cpu-3": (2103, 28),
    "cpu-4": (2053, 26),
    "cpu-5": (2106, 28),
}
# Judged recording: where the host time comes from that the simulator is given. An asynchronous engine
# hides it behind the device.
HOST_FROM = {
    "h100-async": None,
    "l40s-async": None,
    "l40s": "l40s-whole",
    "l40s-whole": "l40s",
    "l40s-no-prefix": "h100-chunks-no-prefix",
}


@cache
def recorded(name: str) -> Recorded:
    return load_recorded(RECORDED / name)


def errors(name: str, host_from: str | None) -> dict[str, dict[str, float]]:
    """Signed errors in % with the host time of another recording."""
    overhead = {}
    if host_from is not None:
        overhead = host_time(recorded(host_from)).overhead()
    comparison, _ = end_to_end(recorded(name), overhead)
    return comparison.err_pct


@pytest.mark.parametrize("name", [*DEVICE_MODEL, *KERNELS])
def test_every_step_is_the_recorded_one(name: str) -> None:
    found = check_steps(recorded(name))
    assert found.first_difference is None
    assert found.identical == found.steps
    assert (found.steps, found.preemptions) == (DEVICE_MODEL | KERNELS)[name]


@pytest.mark.parametrize("name", HOST_FROM)
def test_latencies_end_to_end(name: str) -> None:
    found = errors(name, HOST_FROM[name])
    for metric in ("ttft_ms", "tpot_ms"):
        assert abs(found[metric]["mean"]) < 1.5
        assert abs(found[metric]["p99"]) < 4


@pytest.mark.parametrize("name", sorted({*DEVICE_MODEL} - {"h100-async", "l40s-async"}))
def test_a_synchronous_engine_adds_its_host_time_to_every_step(name: str) -> None:
    """With the recording's own host time what is left is the simulator's own error."""
    with_host, without = errors(name, name), errors(name, None)
    assert abs(with_host["ttft_ms"]["mean"]) < 0.5
    assert abs(with_host["tpot_ms"]["mean"]) < 0.3
    assert without["tpot_ms"]["mean"] < -1


@pytest.mark.parametrize("name", KERNELS)
def test_real_kernels_are_simulated_within_their_own_spread(name: str) -> None:
    """With the measured profile and the host time of the run before."""
    runs = list(KERNELS)
    error = errors(name, runs[runs.index(name) - 1])
    for metric in ("ttft_ms", "tpot_ms", "latency_ms"):
        seen = {run: recorded_truth(RECORDED / run).metrics[metric]["mean"] for run in runs}
        simulated = seen[name] * (1 + error[metric]["mean"] / 100)
        assert min(seen.values()) <= simulated <= max(seen.values())


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


def test_a_recording_without_steps_is_a_truth_only(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RECORDED / "l40s", folder)
    (folder / "steps.jsonl.gz").unlink()
    with pytest.raises(InputError, match=r"steps.jsonl.gz: got nothing, .* is a truth for sweeps"):
        load_recorded(folder)
