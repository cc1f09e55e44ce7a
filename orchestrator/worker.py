"""What runs where the points run: jobs in, plain rows out. A failure is data, never an exception.

The limits really hold. Time is looked at while a point runs; memory is a limit of the process, so that
an allocation beyond it fails in the point that asked for it. Neither counts what the first point of a
process alone would pay for: loading or compiling the core.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.outcome import finished, proven
from orchestrator.shared import Job
from orchestrator.warm import warm_up
from profiles.errors import InputError
from simulator.progress import SimulationError
from simulator.simulation import run

MIB = 1 << 20
REASON = 2000  # characters


@dataclass(frozen=True)
class Limits:
    time_s: float
    memory_mib: int | None = None


class OutOfTime(Exception):
    """The point took longer than it may."""


def run_jobs(
    jobs: list[Job], fetch: Callable[[str], Any], limits: Limits, keep_requests: bool
) -> list[dict[str, Any]]:
    """Outcomes in the order of the jobs: point_id, status, wall_s, and metrics or a reason.

    A job's own outcome is followed by those of its siblings that it proves equal; they need not run.
    """
    outcomes: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.point_id not in outcomes:
            for outcome in run_job(job, fetch, limits, keep_requests):
                outcomes[outcome["point_id"]] = outcome
    return list(outcomes.values())


def run_job(
    job: Job, fetch: Callable[[str], Any], limits: Limits, keep_requests: bool
) -> list[dict[str, Any]]:
    outcome: dict[str, Any] = {}
    others: list[dict[str, Any]] = []
    start = time.perf_counter()

    def look() -> None:
        if time.perf_counter() - start > limits.time_s:
            raise OutOfTime(f"took longer than {limits.time_s:g} s")

    try:
        prepared, truth = job.prepared(fetch), job.truth_of(fetch)
        warm_up(prepared)
        start = time.perf_counter()
        with memory_limit(limits.memory_mib):
            result = run(prepared, look=look)
            outcome = finished(job.point_id, result, truth)
            others = list(proven(job, result, truth))
        if keep_requests:
            outcome |= {"requests": result.requests, "timeseries": result.timeseries}
    except OutOfTime as error:
        outcome = {"status": "timeout", "reason": str(error)}
    except MemoryError as error:
        limit = limits.memory_mib
        what = "the machine has" if limit is None else f"{limit} MiB"
        reason = f"needs more than {what}: {str(error) or 'allocation failed'}"
        outcome = {"status": "out_of_memory", "reason": reason}
    except SimulationError as error:
        outcome = {"status": "no_progress", "reason": str(error)}
    except InputError as error:
        outcome = {"status": "wrong_input", "reason": str(error)}
    except Exception as error:
        outcome = {"status": "error", "reason": f"{type(error).__name__}: {error}"[:REASON]}
    outcome |= {"point_id": job.point_id, "wall_s": time.perf_counter() - start}
    return [outcome, *others] if outcome["status"] == "finished" else [outcome]


class memory_limit:  # noqa: N801  (reads as a statement)
    """Limit what the process may allocate beyond what it has; None: no limit."""

    def __init__(self, mib: int | None) -> None:
        self._mib = mib

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        if self._mib is None:
            return
        allowed = address_space() + self._mib * MIB
        soft, hard = self._before
        others = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min([allowed, *others]), hard))

    def __exit__(self, *_: object) -> None:
        if self._mib is not None:
            resource.setrlimit(resource.RLIMIT_AS, self._before)


def address_space() -> int:
    """Bytes of address space in use (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()
