"""One job in a worker: limits that hold, and what went wrong told apart."""

from __future__ import annotations

import pickle
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import outcome as outcomes
from orchestrator import worker
from orchestrator.expand import SweepPoint
from orchestrator.outcome import metrics_of
from orchestrator.shared import Job, Shared, usable
from orchestrator.worker import Limits, memory_limit, run_jobs
from profiles.errors import InputError
from simulator.progress import SimulationError
from simulator.simulation import run
from tests.orchestrator.sweep_make import (
    BASE,
    BLOCKS,
    TRUTH,
    base,
    points_of,
    write_sweep,
)

ONE_HOUR = Limits(3600)
MANY = 300_000


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> SweepPoint:
    """A point that takes seconds and some hundred MiB."""
    generate = {**BASE["workload"]["generate"], "num_requests": MANY}
    folder = tmp_path_factory.mktemp("long")
    workload = {"generate": generate}
    slow = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
    path = write_sweep(folder, base=base(workload=workload, engine=slow))
    return points_of(path)[0]


@pytest.fixture
def short(tmp_path: Path) -> SweepPoint:
    return points_of(write_sweep(tmp_path, axes={BLOCKS: [100]}, truth=TRUTH))[0]


def run_points(
    points: list[SweepPoint], limits: Limits = ONE_HOUR, *, keep: bool = False
) -> list[dict[str, Any]]:
    shared = Shared(points)
    jobs = [shared.job(point) for point in points]
    return run_jobs(jobs, shared.parts.__getitem__, limits, keep)


def test_a_finished_point(short: SweepPoint) -> None:
    (found,) = run_points([short])
    result = run(short.prepared)
    assert found["point_id"] == short.point_id
    assert found["status"] == "finished"
    assert found["metrics"].items() >= metrics_of(result).items()
    assert not any(name.startswith("storage/") for name in found["metrics"])
    assert "err_pct/mean_abs" in found["metrics"]
    assert found["wall_s"] > 0
    assert not {"requests", "timeseries"} & found.keys()
    (kept,) = run_points([short], keep=True)
    assert kept["requests"].equals(result.requests)
    assert kept["timeseries"].equals(result.timeseries)


def test_a_tier_has_metrics_of_its_own(tmp_path: Path) -> None:
    tiers = {"cpu": {"capacity_gib": 0.001, "bandwidth_gbps": 1.0, "chunk_tokens": 16}}
    sections = {"prefix_storage": "cpu", "tiers": tiers, "kv_connector": "OffloadingConnector"}
    path = write_sweep(tmp_path, base=base(**sections), axes={"engine.policy": ["fcfs"]})
    (point,) = points_of(path)
    result = run(point.prepared)
    storage, found = result.summary["prefix_storage"], metrics_of(result)
    assert found["storage/waiting_ms"] == storage["waiting_ns"] / 1e6
    assert found["storage/cpu/written_bytes"] == storage["tiers"]["cpu"]["written_bytes"] > 0
    names = {name for name in found if name.startswith("storage/cpu/")}
    assert {"storage/cpu/hit_tokens", "storage/cpu/load_ms", "storage/cpu/evicted_chunks"} < names


def test_a_job_is_small_and_comes_back_whole(short: SweepPoint) -> None:
    """What goes to a worker: large parts by key, all in a form that compiled code takes."""
    shared = Shared([short])
    job: Job = pickle.loads(pickle.dumps(shared.job(short)))
    assert len(pickle.dumps(job)) < 8000
    parts = {key: usable(pickle.loads(pickle.dumps(part))) for key, part in shared.parts.items()}
    (there,) = run_jobs([job], parts.__getitem__, ONE_HOUR, False)
    (here,) = run_points([short])
    assert there["metrics"] == here["metrics"]


def test_a_point_that_takes_too_long(long: SweepPoint, short: SweepPoint) -> None:
    late, fine = run_points([long, short], Limits(0.2))
    assert late == {
        "status": "timeout",
        "reason": "took longer than 0.2 s",
        "point_id": long.point_id,
        "wall_s": late["wall_s"],
    }
    assert late["wall_s"] < 10
    assert fine["status"] == "finished"


def test_a_point_that_needs_too_much_memory(long: SweepPoint, short: SweepPoint) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    greedy, fine = run_points([long, short], Limits(3600, 64))
    assert greedy["status"] == "out_of_memory"
    assert greedy["reason"].startswith("needs more than 64 MiB: ")
    assert fine["status"] == "finished", "and the process goes on"
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_loading_the_core_counts_for_no_point(
    short: SweepPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has to compile first would otherwise run out of any small limit."""
    order: list[str] = []
    monkeypatch.setattr(worker, "warm_up", lambda _: order.append("warm up"))
    real = time.perf_counter

    def clock() -> float:
        order.append("clock")
        return real()

    monkeypatch.setattr(time, "perf_counter", clock)
    run_points([short])
    # Until then only preparing counts; the point's own time starts anew.
    assert order[:3] == ["clock", "warm up", "clock"]


def raises(error: Exception) -> Any:
    def run(*_: Any, **__: Any) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError(), "out_of_memory", "needs more than the machine has: allocation failed"),
        (InputError("a.yaml", "field", 1, "2"), "wrong_input", "a.yaml: field: got 1, expected 2"),
        (ZeroDivisionError("by zero"), "error", "ZeroDivisionError: by zero"),
        (ValueError("x" * 10_000), "error", "ValueError: " + "x" * 1988),
    ],
)
def test_what_went_wrong_is_told_apart(
    short: SweepPoint,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: str,
    reason: str,
) -> None:
    monkeypatch.setattr(worker, "run", raises(error))
    (found,) = run_points([short])
    assert (found["status"], found["reason"]) == (status, reason)
    assert found["point_id"] == short.point_id


def test_no_progress_is_a_status_of_its_own(
    short: SweepPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "run", raises(SimulationError("nobody moves")))
    (found,) = run_points([short])
    assert (found["status"], found["reason"]) == ("no_progress", "nobody moves")


def test_a_failing_comparison_is_data_and_hides_the_metrics(
    short: SweepPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "compare", raises(KeyError("ttft")))
    (found,) = run_points([short])
    assert (found["status"], found["reason"]) == ("error", "KeyError: 'ttft'")
    assert "metrics" not in found


def test_ctrl_c_is_no_outcome(short: SweepPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_points([short], Limits(60, 64))
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_proven_points_of_the_same_task_need_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = points_of(write_sweep(tmp_path, axes={BLOCKS: [300, 200, 400]}))
    shared = Shared(points)
    jobs = [shared.job(points[2], points[:2]), shared.job(points[0]), shared.job(points[1])]
    ran: list[Any] = []

    def counted(prepared: Any, **more: Any) -> Any:
        ran.append(prepared)
        return run(prepared, **more)

    monkeypatch.setattr(worker, "run", counted)
    found = run_jobs(jobs, shared.parts.__getitem__, ONE_HOUR, False)
    assert len(ran) == 1
    assert [o["point_id"] for o in found] == [points[i].point_id for i in (2, 0, 1)]
    assert [o["metrics"]["kv/blocks"] for o in found] == [400, 300, 200]
    assert [o.get("proven_by") for o in found] == [None, points[2].point_id, points[2].point_id]


@pytest.fixture
def hard_limit() -> Iterator[None]:
    """A soft limit that was there before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (worker.address_space() + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("hard_limit")
def test_a_limit_that_was_there_is_not_widened() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with memory_limit(1 << 20):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == before[0]
    with memory_limit(64):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] < before[0]
        with pytest.raises(MemoryError):
            np.zeros(256 << 20, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
