"""Recorded runs: what is read, and that nothing missing is ever taken for 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError
from profiles.recorded import load_recorded_run
from tests.profiles.bundles import REFERENCE, needs_reference

META: dict[str, Any] = {
    "model": "test/model",
    "vllm_version": "0.19.0",
    "engine_kwargs": {
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "max_model_len": None,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
    },
    "dataset_path": "workload.jsonl",
    "num_requests": 2,
}
RESOLVED: dict[str, Any] = {
    "kv_cache": {
        "num_gpu_blocks": 2588,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": True,
    },
    "resolved_config": {
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4], "cudagraph_mode": [2, 1]},
        "scheduler_config": {"async_scheduling": True},
    },
}


def request(number: int, **changes: Any) -> dict[str, Any]:
    data = {
        "request_id": f"r{number}",
        "input_toks": 100,
        "output_toks": 20,
        "arrival_time": 1787267980.0 + number,
        "queued_ts": 500.25 + number / 1000,
        "scheduled_ts": 500.5,
        "first_token_ts": 501.0,
        "last_token_ts": 502.0,
        **changes,
    }
    return {key: value for key, value in data.items() if value != "left out"}


def write_run(folder: Path, meta: dict[str, Any], requests: list[dict[str, Any]]) -> Path:
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in requests))
    header = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n"
    (folder / "timeseries.csv").write_text(header + "1.0,3392.0,2.0,5,2,13.22\n")
    return folder


def test_reads_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {**META, **RESOLVED}, [request(3), request(0)])
    run = load_recorded_run(folder)
    assert len(run) == 2
    assert run.request_ids == ("r3", "r0")
    assert run.begin_ns().tolist() == [3_000_000, 0]
    assert run.num_gpu_blocks == 2588
    assert run.resolved is not None
    assert run.resolved.cudagraph_mode == "FULL_AND_PIECEWISE"
    assert run.resolved.cudagraph_capture_sizes == (1, 2, 4)
    assert run.resolved.async_scheduling
    assert run.max_model_len is None
    assert run.series["kv_cache_pct"].tolist() == [13.22]


def test_older_recordings_lack_what_the_engine_resolved(tmp_path: Path) -> None:
    run = load_recorded_run(write_run(tmp_path, META, [request(0), request(1)]))
    assert run.resolved is None
    assert run.num_gpu_blocks is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queued_ts": "left out"}, "requests.jsonl, line 2: queued_ts: got nothing"),
    ({"output_toks": "left out"}, "requests.jsonl, line 2: output_toks: got nothing"),
    ({"last_token_ts": None}, "line 2: last_token_ts: got None"),
    ({"first_token_ts": float("nan")}, "line 2: first_token_ts: got nan"),
    ({"arrival_time": "12.5"}, "line 2: arrival_time: got '12.5'"),
    ({"output_toks": 0}, "line 2: output_toks: got 0"),
    ({"last_token_ts": 500.9}, "line 2: last_token_ts: got 500.9, .*first_token_ts"),
    ({"request_id": "r0"}, "line 2: request_id: got 'r0', expected an id of its own"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_requests(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_run(tmp_path, META, [request(0), request(1, **changes)])
    with pytest.raises(InputError, match=message):
        load_recorded_run(folder)


def _without(*path: str) -> Callable[[dict[str, Any]], None]:
    def apply(meta: dict[str, Any]) -> None:
        for part in path[:-1]:
            meta = meta[part]
        del meta[path[-1]]

    return apply


@pytest.mark.parametrize(
    "path",
    [
        ("num_requests",),
        ("engine_kwargs", "max_num_seqs"),
        ("engine_kwargs", "max_model_len"),
        ("kv_cache", "num_gpu_blocks"),
        ("resolved_config", "scheduler_config", "async_scheduling"),
        ("resolved_config", "compilation_config", "cudagraph_mode"),
    ],
)
def test_missing_fields_of_the_description(tmp_path: Path, path: tuple[str, ...]) -> None:
    meta = json.loads(json.dumps({**META, **RESOLVED}))
    _without(*path)(meta)
    folder = write_run(tmp_path, meta, [request(0), request(1)])
    with pytest.raises(InputError, match=rf"meta.json: {'.'.join(path)}: got nothing"):
        load_recorded_run(folder)


def test_wrong_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path, META, [request(0)])
    with pytest.raises(InputError, match=r"requests: got 1, expected the 2 of meta.json"):
        load_recorded_run(folder)
    lines = [json.dumps(request(0)), json.dumps(request(1))[:60]]
    (folder / "requests.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"requests.jsonl, line 2: .*valid JSON"):
        load_recorded_run(folder)
    write_run(tmp_path, META, [request(0), request(1)])
    (folder / "timeseries.csv").unlink()
    with pytest.raises(InputError, match=r"timeseries.csv: file: got nothing"):
        load_recorded_run(folder)


def test_unknown_cudagraph_mode(tmp_path: Path) -> None:
    meta = json.loads(json.dumps({**META, **RESOLVED}))
    meta["resolved_config"]["compilation_config"]["cudagraph_mode"] = [7]
    folder = write_run(tmp_path, meta, [request(0), request(1)])
    with pytest.raises(InputError, match=r"cudagraph_mode: got \(7,\), expected one of \[0\]"):
        load_recorded_run(folder)


@needs_reference
def test_recorded_runs() -> None:
    first = load_recorded_run(REFERENCE / "bench/RTX4090/Llama-3.1-8B/vllm")
    assert (len(first), first.num_gpu_blocks, first.max_num_seqs) == (300, 2588, 256)
    assert first.resolved is not None
    assert len(first.resolved.cudagraph_capture_sizes) == 51
    assert first.begin_ns()[:3].tolist() == [0, 386902482, 561108648]
    second = load_recorded_run(REFERENCE / "bench/RTXPRO6000/Llama-3.1-8B/vllm")
    assert second.resolved is None
    assert second.num_gpu_blocks is None
    third = load_recorded_run(REFERENCE / "bench/RTXPRO6000/Qwen3-30B-A3B-Instruct-2507/vllm")
    assert third.data_parallel_size == 2
    assert third.enable_expert_parallel
