"""With a real vLLM: SERVESWEEP_VLLM_PYTHON names the Python of an environment that holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.recording.check import check_steps, end_to_end, load_recorded
from profiles.llmservingsim import load_bundle
from tests.orchestrator.recording_make import PYTHON, needs_vllm, write_point

pytestmark = needs_vllm

LAW = {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_kv_token_ns": 200}


def servesweep(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def record(path: Path, out: Path, *options: str) -> Result:
    assert PYTHON is not None
    return servesweep("truth", "record", path, "--python", PYTHON, "--out", out, *options)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"engine__async_scheduling": True},
        {"engine__enable_prefix_caching": False, "engine__scheduler_reserve_full_isl": False},
        {"engine__policy": "priority", "workload__generate__priorities": [0.5, 0.5]},
        {
            "workload__generate__shared_prefix": None,
            "workload__generate__sessions": {"calls": {"fixed": 3}, "tool_ms": {"fixed": 30}},
            "workload__generate__prompt_tokens": {"uniform": [5, 40]},
        },
    ],
    ids=["sync", "async", "no-prefix", "priority", "sessions"],
)
def test_every_step_with_the_device_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {"workload__generate__num_requests": 40, "profile": {"linear": LAW}, **changes}
    path = write_point(tmp_path, **changes)
    result = record(path, tmp_path / "out", "--device-model")
    assert result.exit_code == 0, result.output
    recorded = load_recorded(tmp_path / "out")
    found = check_steps(recorded)
    assert found.steps > 40
    # Later versions free blocks in another order, which shows only where prefixes are cached.
    if recorded.run.vllm_version.startswith("0.19.") or not recorded.run.enable_prefix_caching:
        assert found.first_difference is None
        assert found.identical == found.steps
    # A batch is never faster than its law, and a free device starts it at once.
    for step in recorded.steps:
        assert step.device_ns is not None
        tokens = step.num_tokens
        kv = sum(n + computed for _, n, computed in step.sched)
        device = step.device_ns[1] - step.device_ns[0]
        law = LAW["base_ns"] + LAW["per_token_ns"] * tokens + LAW["per_kv_token_ns"] * kv
        assert device == (law if tokens else 0)
        assert step.t_ns + step.schedule_ns + step.execute_ns >= step.device_ns[1]
    comparison, _ = end_to_end(recorded, {})
    assert comparison.requests is not None and comparison.requests.matched == 40


def test_measuring_the_device_model_gives_its_law(tmp_path: Path) -> None:
    path = write_point(tmp_path, profile={"linear": LAW})
    assert PYTHON is not None
    options = ("--device-model", "--repeats", "3")
    out = tmp_path / "steps"
    result = servesweep("profiles", "measure", path, "--python", PYTHON, "--out", out, *options)
    assert result.exit_code == 0, result.output
    grid = load_bundle(out).attention
    tokens = grid.prefill_chunk + grid.n_decode
    kv = tokens + grid.kv_prefill + grid.n_decode * grid.kv_decode
    law = LAW["base_ns"] + LAW["per_token_ns"] * tokens + LAW["per_kv_token_ns"] * kv
    assert (grid.ns >= law).all()  # a sleep is never too short
    assert len(grid.ns) > 20


def test_what_vllm_says_is_told(tmp_path: Path) -> None:
    path = write_point(tmp_path)
    result = record(path, tmp_path / "out", "--device-model", "--engine-arg", "no_such=1")
    assert result.exit_code == 1
    assert result.output.startswith("servesweep: vLLM failed: ")
    assert "no_such" in result.output
    assert not (tmp_path / "out").exists()


def test_a_recording_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    result = record(write_point(tmp_path), tmp_path / "out", "--device-model", "--timeout", "2")
    assert result.exit_code == 1
    assert "vLLM was not done after 2 s" in result.output


def test_the_offloading_connector_runs_on_the_device_model(tmp_path: Path) -> None:
    extra = {"cpu_bytes_to_use": 10**8, "servesweep_bandwidth_gbps": 0.05}
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    transfer["kv_connector_extra_config"] = extra  # type: ignore[assignment]
    path = write_point(tmp_path, profile={"linear": LAW})
    options = ("--engine-arg", f"kv_transfer_config={json.dumps(transfer)}")
    options += ("--engine-arg", "disable_hybrid_kv_cache_manager=true")
    result = record(path, tmp_path / "out", "--device-model", *options)
    if "No module named 'vllm.v1.kv_offload" in result.output:
        pytest.skip("the transfers are written for vLLM 0.19's interface")
    assert result.exit_code == 0, result.output
    point = yaml.safe_load((tmp_path / "out" / "point.yaml").read_text())
    assert point["recorded_run"] == "."
