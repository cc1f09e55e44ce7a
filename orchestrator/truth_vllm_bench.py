"""Truth from the JSON that `vllm bench serve --save-result` writes (vLLM 0.19).

With `--save-detailed` every statistic is computed from the requests, and checked against the means
the file states. The file has no latency of a request: it is ttft + sum(itls), since both are taken
from the same clock readings. Without details only what the file states can be compared; vLLM states
end-to-end latency and percentiles other than p99 only when asked to
(`--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99`).

TPOT is vLLM's: (latency - ttft) / (output tokens - 1) of requests with at least two output tokens.
A request that failed has an error, a ttft of 0 and no output; it is in no statistic.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from orchestrator.truth_bench_requests import ClientTimes, client_times
from orchestrator.truth_data import HEADLINE, Truth, content_id, statistics
from profiles.errors import MISSING, InputError, parse_model
from profiles.foreign import Foreign, json_object, read_file

Count = Annotated[int, Field(strict=True, ge=0, le=1 << 53)]
Rate = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]

# Our metric and statistic -> vLLM's.
METRICS = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "latency_ms": "e2el"}
STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
ALWAYS = ("mean", "median")  # what vLLM states of every metric it states at all

AGREEMENT = 0.01  # a stated mean and the one computed from the requests
MISSING_INTERVALS = 0.05


class _Bench(Foreign):
    num_prompts: Count
    completed: Count
    duration: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
    total_input_tokens: Count
    total_output_tokens: Count
    request_throughput: Rate
    output_throughput: Rate
    model_id: str | None = None
    max_concurrency: Count | None = None


def vllm_bench_truth(path: Path) -> Truth:
    """Raises InputError."""
    content = read_file(path)
    data = json_object(content, path)
    bench = parse_model(_Bench, data, path)
    if bench.completed == 0:
        raise InputError(path, "completed", 0, "at least one request that did not fail")
    stated = _stated(data, path)
    times = client_times(data, path, bench.completed, bench.total_output_tokens)
    notes = ["times were taken at the client: network and tokenization are in them"]
    if bench.max_concurrency is not None:
        notes.append(
            f"at most {bench.max_concurrency} requests were under way at once: arrivals followed "
            "answers, and the wait for a free place is in no time"
        )
    sent = len(times.requests) if times else bench.num_prompts
    failed = sent - bench.completed
    if failed > 0:
        notes.append(f"{failed} of {sent} requests failed and are in no statistic")
    makespan_s = bench.duration
    if times is None:
        metrics = stated
        notes.append("no requests in the file (--save-detailed): only what it states is compared")
    else:
        metrics = _computed(times, notes)
        _check_means(stated, metrics, path)
        makespan_s = times.makespan_s or bench.duration
    if times is None or times.makespan_s is None:
        notes.append(
            "makespan is the benchmark's whole duration, before the first request included"
        )
    throughput = {
        "requests_per_s": bench.completed / makespan_s,
        "output_tokens_per_s": bench.total_output_tokens / makespan_s,
        "total_tokens_per_s": (bench.total_output_tokens + bench.total_input_tokens) / makespan_s,
    }
    if not any(metric in metrics for metric in HEADLINE):
        raise InputError(path, "mean_ttft_ms", MISSING, "a metric of vllm bench serve")
    return Truth(
        source=str(path),
        kind="vllm_bench",
        content_id=content_id("vllm_bench", content),
        num_requests=bench.completed,
        metrics=metrics,
        requests=times.requests if times else None,
        makespan_ms=makespan_s * 1e3,
        throughput=throughput,
        settings={"model": bench.model_id} if bench.model_id else {},
        single_tokens_in_tpot=False,
        notes=tuple(notes),
    )


def _stated(data: dict[str, Any], path: Path) -> dict[str, dict[str, float]]:
    """The statistics the file states. vLLM writes 0 for a metric that nothing was measured of."""
    metrics: dict[str, dict[str, float]] = {}
    for metric, theirs in METRICS.items():
        given = [name for name in data if name.endswith(f"_{theirs}_ms")]
        found: dict[str, float] = {}
        for ours, name in STATISTICS.items() if given else ():
            field = f"{name}_{theirs}_ms"
            if field in data:
                found[ours] = _time(data[field], field, path)
            elif name in ALWAYS:
                raise InputError(path, field, MISSING, f"a value, as there is {given[0]}")
        if found and found["mean"] > 0:
            metrics[metric] = found
    return metrics


def _time(value: Any, field: str, path: Path) -> float:
    number = type(value) is int or type(value) is float
    if not number or not math.isfinite(value) or value < 0:
        raise InputError(path, field, value, "a finite time of at least 0")
    return float(value)


def _computed(times: ClientTimes, notes: list[str]) -> dict[str, dict[str, float]]:
    """The statistics of the requests that did not fail."""
    requests = times.requests
    done = ~requests.failed
    several = done & (requests.num_output_tokens > 1)
    metrics = {
        "ttft_ms": statistics(requests.ttft_ms[done]),
        "latency_ms": statistics(requests.latency_ms[done]),
    }
    single = int(done.sum() - several.sum())
    if several.any():
        metrics["tpot_ms"] = statistics(requests.tpot_ms[several])
    if single:
        notes.append(f"{single} requests of one output token are not in TPOT, as vLLM has it")
    expected = int((requests.num_output_tokens[several] - 1).sum())
    found = len(times.intervals_ms)
    if found != expected:
        notes.append(f"{found} intervals between chunks for {expected} between tokens")
    if found and abs(found - expected) <= MISSING_INTERVALS * expected:
        metrics["itl_ms"] = statistics(times.intervals_ms)
    elif found:
        notes.append("ITL is left out: chunks are not tokens here")
    return metrics


def _check_means(
    stated: dict[str, dict[str, float]], computed: dict[str, dict[str, float]], path: Path
) -> None:
    """The stated means are those of the requests, or something was misread."""
    for metric, found in computed.items():
        said = stated.get(metric, {}).get("mean")
        if said is not None and not np.isclose(said, found["mean"], rtol=AGREEMENT):
            field = f"mean_{METRICS[metric]}_ms"
            raise InputError(path, field, said, f"{found['mean']:g}, as its requests have")
