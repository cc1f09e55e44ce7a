"""From what the engine leaves behind to a recorded folder."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.recording.check import check_steps, host_time, load_recorded
from orchestrator.recording.folder import assemble, series_csv
from orchestrator.recording.spec import Recording
from orchestrator.recording.stage import RecordingError
from orchestrator.truth_recorded import recorded_truth
from profiles.recorded import load_recorded_run
from tests.orchestrator.recording_make import LOG, START, recording_of, write_point

SECOND = 1_000_000_000


def two_requests(tmp_path: Path) -> Recording:
    """Prompts of 70 and 46 tokens, a token each."""
    lines = [
        {"input_toks": 70, "output_toks": 1, "arrival_time_ns": 0, "request_id": "a"},
        {"input_toks": 46, "output_toks": 1, "arrival_time_ns": 9, "request_id": "b"},
    ]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = write_point(tmp_path)
    data = yaml.safe_load(path.read_text())
    data["workload"] = {"jsonl": "w.jsonl"}
    path.write_text(yaml.safe_dump(data))
    return recording_of(path)


def raw_folder(tmp_path: Path, recording: Recording, **changes: Any) -> Path:
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    times = {"arrival_time": 1.7e9, "scheduled_ts": 2.1, "first_token_ts": 3.0}
    rows = [
        {"request": r, "sent_ns": int((2 + r / 4) * SECOND), "ended_ns": 0, "output_tokens": 1}
        | {"cached_tokens": 16 * r, **times, "scheduled_ts": 2.5, "last_token_ts": 3.5}
        | {"queued_ts": 2.3}
        for r in range(2)
    ]
    engine = {
        **recording.expected,
        "gpu_memory_utilization": 0.9,
        "kv_cache_dtype": "auto",
        "dtype": "bfloat16",
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
    }
    content = {
        "start_ns": START,
        "requests": rows,
        "iterations": [[START + SECOND // 2, 1, 1, 0.25, 70, 1], [START + SECOND, 2, 0, 0.5, 4, 2],
                       [START + 3 * SECOND, 0, 0, 0.0, 0, 1]],
        "resolved": {
            "engine": engine,
            "compilation_config": {
                "mode": 0, "cudagraph_mode": 0, "cudagraph_capture_sizes": []
            },
        },
        "versions": {"vllm": "0.19.0"},
        "hardware": {"processor": "P", "cores": 2, "device": None},
        "load_average": [0.1, 0.2],
        **changes,
    }  # fmt: skip
    (raw / "raw.json").write_text(json.dumps(content))
    (raw / "part-1.log").write_bytes(array("q", LOG).tobytes())
    return raw


def test_a_recorded_folder(tmp_path: Path) -> None:
    recording = two_requests(tmp_path)
    out = tmp_path / "out"
    assemble(recording, raw_folder(tmp_path, recording), out, "servesweep truth record ...")
    run = load_recorded_run(out)
    assert run.request_ids == ("a", "b")
    assert run.num_gpu_blocks == 60 and run.max_model_len == 256
    assert run.resolved is not None and not run.resolved.async_scheduling
    assert run.begin_ns().tolist() == [0, SECOND // 4]
    assert recorded_truth(out).metrics["ttft_ms"]["mean"] == pytest.approx(875.0)
    recorded = load_recorded(out)
    assert [len(step.sched) for step in recorded.steps] == [1, 2, 1]
    assert recorded.point.recorded_run == out
    assert recorded.point.engine.num_gpu_blocks_override == 60
    meta = json.loads((out / "meta.json").read_text())
    assert meta["recording"]["device_model"]["card"] == "TestCard"
    # LOG's steps are nobody's: the first chunk is larger than the point's budget would allow.
    assert check_steps(recorded).first_difference is not None


def test_host_time_is_a_line_through_the_steps(tmp_path: Path) -> None:
    recording = two_requests(tmp_path)
    assemble(recording, raw_folder(tmp_path, recording), tmp_path / "out", "")
    host = host_time(load_recorded(tmp_path / "out"))
    # 10 ns with one request, 11 ns with two
    assert host.per_step_ms == pytest.approx(9e-6)
    assert host.per_request_ms == pytest.approx(1e-6)


def test_seconds_without_an_iteration_keep_the_state_of_the_last() -> None:
    iterations: list[list[Any]] = [
        [START + 500_000_000, 1, 1, 0.25, 70, 1],
        [START + 1_000_000_000, 2, 0, 0.5, 4, 2],
        [START + 2_500_000_000, 0, 0, 0.0, 0, 1],
    ]
    assert series_csv(iterations, START).splitlines() == [
        "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct",
        "1,74,3,2,0,50.0",
        "2,0,0,2,0,50.0",
        "3,0,1,0,0,0.0",
    ]


def test_a_request_without_all_its_tokens_is_no_recording(tmp_path: Path) -> None:
    recording = two_requests(tmp_path)
    raw = raw_folder(tmp_path, recording)
    content = json.loads((raw / "raw.json").read_text())
    content["requests"][1]["output_tokens"] = 0
    (raw / "raw.json").write_text(json.dumps(content))
    with pytest.raises(RecordingError, match="request b ended after 0 tokens, 1 were asked for"):
        assemble(recording, raw, tmp_path / "out", "")
    content["requests"].pop()
    (raw / "raw.json").write_text(json.dumps(content))
    with pytest.raises(RecordingError, match="1 of 2 requests ended"):
        assemble(recording, raw, tmp_path / "out", "")
    assert not (tmp_path / "out").exists()


def test_a_log_that_is_cut_is_no_recording(tmp_path: Path) -> None:
    recording = two_requests(tmp_path)
    raw = raw_folder(tmp_path, recording)
    (raw / "part-1.log").write_bytes(array("q", LOG[:-9]).tobytes())
    with pytest.raises(RecordingError, match="the log of the steps is not whole"):
        assemble(recording, raw, tmp_path / "out", "")
