"""What is refused before vLLM starts, and what vLLM is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.recording.record import prepare_job
from orchestrator.recording.spec import point_beside
from profiles.errors import InputError
from tests.orchestrator.recording_make import recording_of, write_point


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"engine__null_block": False},
            "engine.null_block: got False, expected true: vLLM always keeps the null block",
        ),
        (
            {"engine__max_model_len": 512, "engine__num_gpu_blocks_override": 20},
            "engine.max_model_len: got 512, expected at most 320, what the 20 KV blocks hold",
        ),
        (
            {"engine__max_model_len": 600, "engine__num_gpu_blocks_override": 60},
            "engine.max_model_len: got 600, expected at most the model's "
            "max_position_embeddings (512)",
        ),
        (
            {"engine__max_model_len": 100},
            "one that vLLM serves; prompt of",
        ),
        (
            {
                "prefix_storage": "cpu",
                "tiers": {"cpu": {"capacity_gib": 1.0, "bandwidth_gbps": 1.0}},
            },
            "prefix_storage: got 'cpu', expected none",
        ),
        (
            {"engine__engine": "infinilm", "engine__admission": "legacy"},
            "engine.engine: got 'infinilm', expected vllm, to record vLLM",
        ),
    ],
)
def test_what_vllm_or_a_recording_cannot_do(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_point(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        recording_of(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_arguments_of_vllm(tmp_path: Path) -> None:
    recording = recording_of(write_point(tmp_path), extra={"swap_space": 1})
    arguments = recording.engine_arguments
    assert arguments["num_gpu_blocks_override"] == recording.expected["num_gpu_blocks"] == 60
    assert arguments["max_model_len"] == 256
    assert arguments["scheduling_policy"] == "fcfs" and "policy" not in arguments
    assert arguments["swap_space"] == 1
    assert recording.model_json["architectures"] == ["LlamaForCausalLM"]
    assert recording.model_json["num_hidden_layers"] == 2


def test_real_kernels_are_told_no_block_count_unless_the_point_does(tmp_path: Path) -> None:
    path = write_point(tmp_path)
    point = yaml.safe_load(path.read_text())
    del point["engine"]["num_gpu_blocks_override"]
    path.write_text(yaml.safe_dump(point))
    arguments = recording_of(path, device_model=False).engine_arguments
    assert "num_gpu_blocks_override" not in arguments
    resolved = recording_of(path, device_model=True)
    blocks = resolved.prepared.capacity.num_gpu_blocks
    assert resolved.engine_arguments["num_gpu_blocks_override"] == blocks


def test_a_named_config_json_is_used_as_it_is(tmp_path: Path) -> None:
    path = write_point(tmp_path)
    point = yaml.safe_load(path.read_text())
    config = {**point["model"], "rope_theta": 5e5, "architectures": ["Mine"]}
    del config["name"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    point["model"] = {"hf_config": "config.json", "name": "m"}
    path.write_text(yaml.safe_dump(point))
    recording = recording_of(path)
    assert recording.model_json == config
    (tmp_path / "out").mkdir()
    beside = point_beside(recording, tmp_path / "out")
    assert beside["model"]["hf_config"] == "../config.json"
    assert (beside["recorded_run"], beside["arrivals"]) == (".", "recorded")


def test_the_job_says_what_the_device_model_needs(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    recording = recording_of(write_point(tmp_path, engine__async_scheduling=True))
    environment = prepare_job(recording, tmp_path / "raw")
    assert environment["SERVESWEEP_ASYNC_SCHEDULING"] == "1"
    assert environment["SERVESWEEP_NUM_GPU_BLOCKS"] == "60"
    job = json.loads((tmp_path / "raw" / "job.json").read_text())
    assert job["async_scheduling"] and job["device_model"]
    assert job["longest_warm_up"] == 256


def servesweep(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("command", ["truth record", "profiles measure"])
def test_wrong_environments_are_told_in_a_line(tmp_path: Path, command: str) -> None:
    path, out = write_point(tmp_path), tmp_path / "out"
    start = (*command.split(), path, "--device-model", "--out", out, "--python")
    code, output = servesweep(*start, tmp_path / "nowhere")
    assert (code, output.count("\n")) == (2, 1)
    assert "expected the Python of an environment that holds vLLM" in output
    code, output = servesweep(*start, path)
    assert (code, output.count("\n")) == (2, 1)
    code, output = servesweep(*start, sys.executable)
    assert (code, output.count("\n")) == (2, 1)  # the project's own environment has no vLLM
    assert not out.exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("seed=7", "--engine-arg seed: got 7, expected an argument that the point does not set"),
        ("nonsense", "--engine-arg: got 'nonsense', expected NAME=JSON"),
        ("swap_space=four", "expected NAME=JSON"),
    ],
)
def test_engine_arguments(tmp_path: Path, argument: str, message: str) -> None:
    path = write_point(tmp_path)
    options = ("--python", sys.executable, "--out", tmp_path / "out", "--engine-arg", argument)
    code, output = servesweep("truth", "record", path, *options)
    assert code == 2
    assert message in output
