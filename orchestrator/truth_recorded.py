"""Truth from a recorded vLLM run in the layout of LLMServingSim's bench.

`arrival_time` is on the client's wall clock and everything else on the engine's monotonic clock, so
TTFT and latency start at `sent_ts` where it was recorded (`servesweep truth record` does), else at
`queued_ts`. An engine takes in what came during a step when it has ended, so `queued_ts` hides
that wait; counted from the queue on both sides, a result leaves it out too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.truth_data import Truth, TruthRequests, content_id, statistics
from profiles.bundle import Floats
from profiles.foreign import read_file
from profiles.recorded import RecordedRun, load_recorded_run

FILES = ("meta.json", "requests.jsonl", "timeseries.csv")
COLUMNS = {
    "running": "running",
    "waiting": "waiting",
    "prompt_throughput": "prompt_throughput",
    "generation_throughput": "gen_throughput",
}
SETTINGS = (
    "model",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "dtype",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "data_parallel_size",
    "block_size",
    "enable_prefix_caching",
    "gpu_memory_utilization",
)


def recorded_truth(folder: Path, *, from_queue: bool = False) -> Truth:
    """`from_queue`: TTFT and latency count from `queued_ts`, and a result's too. Raises InputError."""
    run = load_recorded_run(folder)
    requests = _requests(run, run.queued_s if from_queue else run.begin_s)
    series, notes = _series(run)
    makespan_s = float(run.last_token_s.max() - run.begin_s.min())
    throughput = {}
    if makespan_s > 0:
        generated = int(run.num_output_tokens.sum())
        throughput = {
            "requests_per_s": len(run) / makespan_s,
            "output_tokens_per_s": generated / makespan_s,
            "total_tokens_per_s": (generated + int(run.num_prompt_tokens.sum())) / makespan_s,
        }
    if run.num_gpu_blocks is None:
        notes.append("the number of KV blocks was not recorded")
    return Truth(
        source=str(folder),
        kind="recorded",
        content_id=content_id(
            "recorded from queue" if from_queue else "recorded",
            *(read_file(folder / name) for name in FILES),
        ),
        start="queued_ns" if from_queue else "arrival_ns",
        num_requests=len(run),
        metrics={
            name: statistics(getattr(requests, name))
            for name in ("ttft_ms", "tpot_ms", "latency_ms")
        },
        requests=requests,
        series=series,
        makespan_ms=makespan_s * 1e3,
        throughput=throughput,
        num_gpu_blocks=run.num_gpu_blocks,
        settings=_settings(run),
        notes=tuple(notes),
    )


def _requests(run: RecordedRun, start_s: Floats) -> TruthRequests:
    steps_between = np.maximum(1, run.num_output_tokens - 1)
    return TruthRequests(
        ids=pa.array(run.request_ids, pa.string()),
        num_prompt_tokens=run.num_prompt_tokens,
        num_output_tokens=run.num_output_tokens,
        ttft_ms=(run.first_token_s - start_s) * 1e3,
        tpot_ms=(run.last_token_s - run.first_token_s) / steps_between * 1e3,
        latency_ms=(run.last_token_s - start_s) * 1e3,
        start_s=run.begin_s - run.begin_s.min(),
    )


def _series(run: RecordedRun) -> tuple[dict[str, Floats], list[str]]:
    """The rows at whole seconds; rates only where a row covers one second."""
    t, notes = run.series["t"], []
    whole = t == np.round(t)
    series: dict[str, Floats] = {"t_s": t[whole]}
    series |= {ours: run.series[theirs][whole] for ours, theirs in COLUMNS.items()}
    if len(t) > 1 and np.diff(t).min() != 1:
        for name in ("prompt_throughput", "generation_throughput"):
            del series[name]
        notes.append("the recorded series is not by the second: its throughput is not compared")
    usage = run.series["kv_cache_pct"]
    if usage.any():
        series["kv_cache_usage"] = usage[whole] / 100
    else:
        notes.append("kv_cache_pct is 0 throughout: KV cache usage counts as not recorded")
    return series, notes


def _settings(run: RecordedRun) -> dict[str, Any]:
    settings = {name: getattr(run, name) for name in SETTINGS}
    settings["async_scheduling"] = run.resolved.async_scheduling if run.resolved else None
    settings["null_block"] = True  # vLLM always keeps one block for itself
    return {name: value for name, value in settings.items() if value is not None}
