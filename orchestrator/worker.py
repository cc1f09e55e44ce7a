"""What runs where the points run: jobs in, plain rows out. A failure is data, never an exception.

The limits really hold. Time is looked at while a point runs; memory is a limit of the process, so that
an allocation beyond it fails in the point that asked for it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.compare import compare
from orchestrator.shared import Job
from simulator.progress import SimulationError
from simulator.result import Result
from simulator.simulation import run

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    time_s: float
    memory_mib: int | None = None


class OutOfTime(Exception):
    """The point took longer than it may."""


def run_jobs(
    jobs: list[Job], fetch: Callable[[str], Any], limits: Limits, keep_requests: bool
) -> list[dict[str, Any]]:
    """An outcome a job, in order: point_id, status, wall_s, and metrics or a reason.

    `enough_blocks`, where it is there: every pool that can hand out as many gives the same result.
    """
    return [run_job(job, fetch, limits, keep_requests) for job in jobs]


def run_job(
    job: Job, fetch: Callable[[str], Any], limits: Limits, keep_requests: bool
) -> dict[str, Any]:
    start = time.perf_counter()
    outcome: dict[str, Any] = {"point_id": job.point_id}

    def look() -> None:
        if time.perf_counter() - start > limits.time_s:
            raise OutOfTime(f"took longer than {limits.time_s:g} s")

    try:
        with memory_limit(limits.memory_mib):
            result = run(job.prepared(fetch), look=look)
            outcome |= {"status": "finished", "metrics": metrics_of(result)}
            kv = result.summary["kv"]
            if kv["capacity_inert"]:
                outcome["enough_blocks"] = kv["distinct_blocks_used"]
            truth = job.truth_of(fetch)
            if truth is not None:
                comparison = compare(result, truth)
                outcome["metrics"] |= comparison.flat()
                outcome["notes"] = [*result.summary["notes"], *comparison.notes]
            else:
                outcome["notes"] = result.summary["notes"]
            if keep_requests:
                outcome["requests"] = result.requests
                outcome["timeseries"] = result.timeseries
    except OutOfTime as error:
        outcome |= {"status": "timeout", "reason": str(error)}
    except MemoryError as error:
        outcome |= {
            "status": "out_of_memory",
            "reason": f"more than {limits.memory_mib} MiB: {error or 'allocation failed'}",
        }
    except SimulationError as error:
        outcome |= {"status": "no_progress", "reason": str(error)}
    except Exception as error:
        outcome |= {"status": "error", "reason": f"{type(error).__name__}: {error}"}
    outcome["wall_s"] = time.perf_counter() - start
    return outcome


class memory_limit:  # noqa: N801  (reads as a statement)
    """Limit what the process may allocate beyond what it has; None: no limit."""

    def __init__(self, mib: int | None) -> None:
        self._mib = mib

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        if self._mib is not None:
            allowed = address_space() + self._mib * MIB
            resource.setrlimit(resource.RLIMIT_AS, (allowed, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)


def address_space() -> int:
    """Bytes of address space in use (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


def metrics_of(result: Result) -> dict[str, float]:
    """A result as flat numbers, under the names they are tracked with."""
    summary = result.summary
    kv, cache, requests = summary["kv"], summary["prefix_cache"], summary["requests"]
    flat: dict[str, float] = {
        f"{metric}/{statistic}": value
        for metric, values in summary["latency"].items()
        for statistic, value in values.items()
    }
    flat |= {f"throughput/{name}": value for name, value in summary.get("throughput", {}).items()}
    if summary["makespan_ms"] is not None:
        flat["makespan_ms"] = summary["makespan_ms"]
    flat |= {
        "steps": summary["steps"],
        "generated_tokens": summary["generated_tokens"],
        "requests/finished": requests["finished"],
        "requests/refused": requests["refused"],
        "requests/capped": requests["capped_at_max_model_len"],
        "kv/blocks": kv["num_gpu_blocks"],
        "kv/peak_blocks_in_use": kv["peak_blocks_in_use"],
        "kv/preemptions": summary["preemptions"],
        "kv/evicted_blocks": kv["evicted_blocks"],
        "prefix_cache/hit_rate": cache["hit_rate"],
        "prefix_cache/hit_tokens": cache["hit_tokens"],
        "outside_grid/lookups": sum(
            axis.get("above", 0) + axis.get("below", 0)
            for axis in summary["outside_measured_grid"].values()
        ),
    }
    return {name: float(value) for name, value in flat.items()}
