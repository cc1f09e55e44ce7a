"""Where jobs run: Ray, or this process.

Both take tasks (lists of jobs) and give back finished ones. A task whose worker died comes back with the
cause instead of outcomes.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestrator.shared import Job, usable
from orchestrator.worker import Limits, run_jobs
from profiles.errors import InputError

GRACE_S = 120.0  # beyond a task's own limits, before its worker is ended
TASKS_PER_SLOT = 3  # one runs, the others are on their way
ANSWERS_WITHIN_S = 10.0  # a cluster's port
KEPT_PARTS = 64  # that a worker process holds of what points share


@dataclass
class Task:
    """Some jobs that run one after the other in one worker."""

    jobs: list[Job]
    attempt: int = 0
    keep_requests: bool = False
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Finished:
    """A task and its outcomes, or why there are none: worker_died or timeout."""

    task: Task
    outcomes: list[dict[str, Any]] | None
    cause: str = ""
    status: str = "worker_died"


class Executor(Protocol):
    window: int  # tasks it should have: those that run, and some on their way

    def submit(self, task: Task) -> None: ...
    def wait(self, timeout_s: float) -> list[Finished]: ...
    def in_flight(self) -> int: ...
    def close(self) -> None: ...


class SerialExecutor:
    """Runs tasks in this process, one when asked for a result."""

    window = 1

    def __init__(self, parts: dict[str, Any], limits: Limits) -> None:
        self._parts, self._limits = parts, limits
        self._waiting: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def wait(self, timeout_s: float) -> list[Finished]:
        if not self._waiting:
            return []
        task = self._waiting.popleft()
        outcomes = run_jobs(task.jobs, self._parts.__getitem__, self._limits, task.keep_requests)
        return [Finished(task, outcomes)]

    def in_flight(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        self._waiting.clear()


class RayExecutor:
    """Runs tasks on a Ray cluster: a local one, or the one at `address`."""

    def __init__(
        self, parts: dict[str, Any], limits: Limits, address: str | None, cpus_per_point: float
    ) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray: Any = ray
        self._limits = limits
        self._tasks: dict[Any, Task] = {}
        self._cancelled: set[Any] = set()
        self._owns = not ray.is_initialized()
        if self._owns:
            start_ray(ray, address)
        cpus = self._ray.cluster_resources().get("CPU", 0)
        if cpus < cpus_per_point:
            self.close()
            expected = f"at most {cpus:g}, the CPUs of the cluster"
            raise InputError("sweep", "execution.cpus_per_point", cpus_per_point, expected)
        self._slots = int(cpus / cpus_per_point)
        self.window = TASKS_PER_SLOT * self._slots
        self._refs = {key: ray.put(part) for key, part in parts.items()}
        # Retries are the runner's: it knows which of a task's points to try again.
        self._remote = ray.remote(num_cpus=cpus_per_point, max_retries=0)(run_in_ray)

    def submit(self, task: Task) -> None:
        keys = {key for job in task.jobs for key in (*job.large.values(), job.truth) if key}
        refs = {key: self._refs[key] for key in keys}
        task.started = time.monotonic()
        ref = self._remote.remote(task.jobs, refs, self._limits, task.keep_requests)
        self._tasks[ref] = task

    def wait(self, timeout_s: float) -> list[Finished]:
        if not self._tasks:
            return []
        done, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout_s)
        if done:  # take along what else is there
            done, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        self._end_overdue()
        return [self._result(ref) for ref in done]

    def _result(self, ref: Any) -> Finished:
        task = self._tasks.pop(ref)
        try:
            return Finished(task, self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            if ref in self._cancelled:
                self._cancelled.discard(ref)
                return Finished(task, None, "did not answer within its time limit", "timeout")
            first_line = str(error).strip().splitlines()[0]
            status = "out_of_memory" if "OutOfMemory" in type(error).__name__ else "worker_died"
            return Finished(task, None, f"{type(error).__name__}: {first_line}", status)

    def _end_overdue(self) -> None:
        """End the workers of tasks that do not even notice their time limit."""
        now = time.monotonic()
        ahead = max(1, len(self._tasks) // self._slots)
        for ref, task in self._tasks.items():
            allowed = (self._limits.time_s * len(task.jobs) + GRACE_S) * ahead
            if now - task.started > allowed and ref not in self._cancelled:
                self._cancelled.add(ref)
                self._ray.cancel(ref, force=True)

    def in_flight(self) -> int:
        return len(self._tasks)

    def close(self) -> None:
        for ref in self._tasks:
            self._ray.cancel(ref, force=True)
        self._tasks.clear()
        if self._owns:
            self._ray.shutdown()


def start_ray(ray: Any, address: str | None) -> None:
    """A cluster by address (or RAY_ADDRESS), otherwise a local one on loopback."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR}
    if address == "local":
        options |= {"include_dashboard": False, "log_to_driver": False}
    else:
        import orchestrator
        import profiles
        import simulator

        # As paths: inside of a submitted job Ray copies what it is given, which modules are not for.
        rooms = (orchestrator, profiles, simulator)
        options["runtime_env"] = {"py_modules": [str(Path(room.__path__[0])) for room in rooms]}
    expected = "a Ray cluster that answers and takes this token"
    _must_answer(address, expected)
    stopped_by = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError("Ray", "address", address, f"{expected}: {reason}") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stopped_by)  # Ray's own would end the process at once


def _must_answer(address: str, expected: str) -> None:
    """Ray itself tries for minutes to reach a host and port where nobody is."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise InputError("Ray", "address", address, f"{expected}: {error}") from None


_PARTS: dict[Any, Any] = {}


def run_in_ray(
    jobs: list[Job], refs: dict[str, Any], limits: Limits, keep_requests: bool
) -> list[dict[str, Any]]:
    """The Ray task: each worker process takes a shared part out of the object store once."""
    import ray

    def fetch(key: str) -> Any:
        ref = refs[key]
        part = _PARTS.pop(ref) if ref in _PARTS else usable(ray.get(ref))
        _PARTS[ref] = part  # at the end: used last
        while len(_PARTS) > KEPT_PARTS:
            del _PARTS[next(iter(_PARTS))]
        return part

    return run_jobs(jobs, fetch, limits, keep_requests)
