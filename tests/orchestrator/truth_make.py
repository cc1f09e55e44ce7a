"""Small measurements and a simulated result of the same four requests, for tests of truth.

Measured: TTFT 100, 200, 300, 400 ms; TPOT 100, 100, 0 (one token), 300 ms; latency 500, 1200, 300,
1000 ms; from the first start to the last token 2 s. Simulated: TTFT 10 % more, TPOT 10 % less.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulator.metrics import latency_metrics
from simulator.result import Result

PROMPTS = (100, 200, 50, 300)
OUTPUTS = (5, 11, 1, 3)
STARTS_MS = (0.0, 200.0, 500.0, 1000.0)
TTFTS_MS = (100.0, 200.0, 300.0, 400.0)
TPOTS_MS = (100.0, 100.0, 0.0, 300.0)

LEFT_OUT = "left out"
HEADER = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct"

META: dict[str, Any] = {
    "model": "test/small-model",
    "vllm_version": "0.19.0",
    "engine_kwargs": {
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "max_model_len": 4096,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
    },
    "dataset_path": "workload.jsonl",
    "num_requests": 4,
    "kv_cache": {
        "num_gpu_blocks": 1000,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": True,
    },
}


def recorded_requests() -> list[dict[str, Any]]:
    rows = []
    for r in range(4):
        queued = 500 + STARTS_MS[r] / 1e3
        first = queued + TTFTS_MS[r] / 1e3
        rows.append(
            {
                "request_id": f"bench-{r}",
                "input_toks": PROMPTS[r],
                "output_toks": OUTPUTS[r],
                "arrival_time": 1787267980.0 + r,
                "queued_ts": queued,
                "scheduled_ts": queued,
                "first_token_ts": first,
                "last_token_ts": first + TPOTS_MS[r] * (OUTPUTS[r] - 1) / 1e3,
            }
        )
    return rows


def write_recorded(
    folder: Path,
    *,
    change: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    series: Sequence[str] = ("1.0,300.0,6.0,2,1,10.0", "2.0,350.0,14.0,1,0,20.0"),
) -> Path:
    """A recorded run; `change` goes into its third request, LEFT_OUT removes a field."""
    rows = recorded_requests()
    rows[2] = {k: v for k, v in {**rows[2], **(change or {})}.items() if v != LEFT_OUT}
    (folder / "meta.json").write_text(json.dumps({**META, **(meta or {})}))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "timeseries.csv").write_text("".join(f"{line}\n" for line in (HEADER, *series)))
    return folder


def bench_data() -> dict[str, Any]:
    """What `vllm bench serve --save-result --save-detailed` writes; the last request failed."""
    itls = [[TPOTS_MS[r] / 1e3] * (OUTPUTS[r] - 1) for r in range(4)]
    latencies = [TTFTS_MS[r] + TPOTS_MS[r] * (OUTPUTS[r] - 1) for r in range(4)]
    tpots = [tpot for tpot, output in zip(TPOTS_MS, OUTPUTS, strict=True) if output > 1]
    intervals = [value * 1e3 for itl in itls for value in itl]
    data: dict[str, Any] = {
        "date": "20260101-000000",
        "model_id": "test/small-model",
        "num_prompts": 5,
        "request_rate": "inf",
        "max_concurrency": None,
        "duration": 2.5,
        "completed": 4,
        "failed": 1,
        "total_input_tokens": 650,
        "total_output_tokens": 20,
        "request_throughput": 1.6,
        "request_goodput": None,
        "output_throughput": 8.0,
        "total_token_throughput": 268.0,
        "input_lens": [*PROMPTS, 70],
        "output_lens": [*OUTPUTS, 0],
        "ttfts": [*(ttft / 1e3 for ttft in TTFTS_MS), 0.0],
        "itls": [*itls, []],
        "start_times": [*(1000 + start / 1e3 for start in STARTS_MS), 1001.5],
        "generated_texts": ["a", "b", "c", "d", ""],
        "errors": ["", "", "", "", "Internal Server Error"],
    }
    for name, values in (
        ("ttft", TTFTS_MS),
        ("tpot", tpots),
        ("itl", intervals),
        ("e2el", latencies),
    ):
        data[f"mean_{name}_ms"] = float(np.mean(values))
        data[f"median_{name}_ms"] = float(np.median(values))
        data[f"std_{name}_ms"] = float(np.std(values))
        data[f"p99_{name}_ms"] = float(np.percentile(values, 99))
    return data


DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")


def write_bench(path: Path, changes: dict[str, Any] | None = None) -> Path:
    data = {k: v for k, v in {**bench_data(), **(changes or {})}.items() if v != LEFT_OUT}
    path.write_text(json.dumps(data))
    return path


def make_result(
    *,
    ids: Sequence[str] = ("0", "1", "2", "3"),
    ttft: float = 1.1,
    tpot: float = 0.9,
    queue_ms: float = 0.0,
    outputs: Sequence[int] = OUTPUTS,
    refused: int | None = None,
    blocks: int = 1000,
    engine: dict[str, Any] | None = None,
) -> Result:
    """The four requests simulated, TTFT and TPOT as multiples of the measured ones. `queue_ms`:
    between a request's arrival and when the engine queued it. `refused`: one that never ran."""
    arrival = np.array(STARTS_MS)
    first = arrival + np.array(TTFTS_MS) * ttft
    last = first + np.array(TPOTS_MS) * tpot * (np.array(outputs) - 1)
    ran = np.array([r != refused for r in range(4)])
    output = np.where(ran, outputs, 0)

    def ns(values: Any) -> pa.Array:
        return pa.array(np.round(values * 1e6).astype(np.int64), mask=~ran)

    requests = pa.table(
        {
            "request_id": pa.array(ids, pa.string()),
            "arrival_ns": pa.array((arrival * 1e6).astype(np.int64)),
            "queued_ns": ns(arrival + queue_ms),
            "first_token_ns": ns(first),
            "last_token_ns": ns(last),
            "prompt_tokens": np.array(PROMPTS, np.int32),
            "requested_output_tokens": np.array(OUTPUTS, np.int32),
            "output_tokens": output.astype(np.int32),
            "finished": ran,
        }
    )
    intervals = np.round(np.repeat(np.array(TPOTS_MS) * tpot * 1e6, np.maximum(0, output - 1)))
    makespan_ms = float(last[ran].max())
    capped = int((ran & (output < np.array(OUTPUTS))).sum())
    summary = {
        "model": "small-model",
        "engine": {
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "max_model_len": 4096,
            "dtype": "auto",
            "gpu_memory_utilization": 0.92,
            "num_gpu_blocks_override": None,
            "null_block": True,
            **(engine or {}),
        },
        "workload": {"requests": 4},
        "requests": {
            "finished": int(ran.sum()),
            "capped_at_max_model_len": capped,
            "refused": int((~ran).sum()),
            "refusals": {ids[r]: "too long for the pool" for r in range(4) if not ran[r]},
        },
        "makespan_ms": makespan_ms,
        "throughput": {
            "requests_per_s": ran.sum() / makespan_ms * 1e3,
            "output_tokens_per_s": output.sum() / makespan_ms * 1e3,
            "total_tokens_per_s": (output.sum() + np.array(PROMPTS)[ran].sum()) / makespan_ms * 1e3,
        },
        "latency": latency_metrics(
            requests, intervals.astype(np.int64), np.ones(len(intervals), np.int64)
        ),
        "kv": {"num_gpu_blocks": blocks},
    }
    timeseries = pa.table(
        {
            "t_s": np.array([1, 2, 3]),
            "running": np.array([3, 1, 1]),
            "waiting": np.array([0, 1, 0]),
            "kv_cache_usage": np.array([0.15, 0.20, 0.01]),
        }
    )
    return Result(summary=summary, requests=requests, timeseries=timeseries)
