"""The same on Ray: a local cluster of two CPUs, started once for this file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import executors
from orchestrator.session import Session
from orchestrator.worker import Limits
from profiles.errors import InputError
from tests.orchestrator.sweep_make import (
    BASE,
    BLOCKS,
    TRUTH,
    UTILIZATION,
    Watch,
    base,
    rows,
    run_sweep,
    write_sweep,
)

ray = pytest.importorskip("ray", reason="Ray is not installed")

SEED, ISL = "workload.generate.seed", "engine.scheduler_reserve_full_isl"
AXES = {BLOCKS: [10, 20, 40, 60, 100, 200, 300], ISL: [True, False], UTILIZATION: [0.5, 0.9]}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, **options)
    yield
    ray.shutdown()


@pytest.mark.parametrize("points_per_task", [None, 1, 5])
def test_results_are_those_of_a_serial_run(tmp_path: Path, points_per_task: int | None) -> None:
    path = write_sweep(
        tmp_path, axes=AXES, truth=TRUTH, execution={"points_per_task": points_per_task}
    )
    serial, _ = run_sweep(path, tmp_path / "serial")
    session, watch = run_sweep(path, tmp_path / "ray", serial=False)
    assert session.store.results_path.read_bytes() == serial.store.results_path.read_bytes()
    assert not watch.failures
    kept = {p.name for p in (session.store.folder / "points").iterdir()}
    assert kept == {p.name for p in (serial.store.folder / "points").iterdir()}
    again, nothing = run_sweep(path, tmp_path / "ray", serial=False)
    assert nothing.outcomes == []
    assert again.store.results_path.read_bytes() == serial.store.results_path.read_bytes()


def test_all_tables_come_back(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]}, execution={"keep_requests": "all"})
    for serial in (True, False):
        run_sweep(path, tmp_path / str(serial), serial=serial)
    files = sorted((tmp_path / "True").glob("small/points/*/*.parquet"))
    assert len(files) == 4
    for file in files:
        other = tmp_path / "False" / file.relative_to(tmp_path / "True")
        assert other.read_bytes() == file.read_bytes()


def long_workload(num_requests: int) -> dict[str, Any]:
    return {"generate": {**BASE["workload"]["generate"], "num_requests": num_requests}}


def test_a_point_over_its_time_or_memory_harms_no_other(tmp_path: Path) -> None:
    """Real limits of real points, told apart; they run again with a larger limit."""
    sections: dict[str, Any] = {
        "base": base(engine={"max_num_seqs": 4, "max_num_batched_tokens": 16}),
        "axes": {"workload": [long_workload(n) for n in (20, 300_000, 30)]},
    }
    path = write_sweep(tmp_path, **sections, execution={"memory_limit_mib": 64})
    session, watch = run_sweep(path, tmp_path / "out", serial=False)
    assert [row["status"] for row in rows(session)] == ["finished", "out_of_memory", "finished"]
    assert len(watch.failures) == 1

    path = write_sweep(tmp_path, **sections, execution={"time_limit_s": 0.2})
    session, watch = run_sweep(path, tmp_path / "out", serial=False)
    assert [row["status"] for row in rows(session)] == ["finished", "timeout", "finished"]
    assert session.plan.resumed == 2


def dying(folder: Path, how: str, point_id: str) -> Any:
    """A task that ends its process where the point is among its jobs, and counts how often."""
    real = executors.run_in_ray

    def run(jobs: Any, refs: Any, limits: Any, keep: bool) -> Any:
        if any(job.point_id == point_id for job in jobs):
            (folder / f"{time.time_ns()}.tried").touch()
            if how == "exit":
                os._exit(3)
            if how == "hang":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(jobs, refs, limits, keep)

    return run


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_worker_that_dies_is_reported_and_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = write_sweep(
        tmp_path, axes={SEED: list(range(6))}, execution={"retries": 1, "points_per_task": 2}
    )
    session, watch = Session.open(path, tmp_path / "out"), Watch()
    deadly = session.plan.points[3].point_id
    monkeypatch.setattr(executors, "run_in_ray", dying(tmp_path, how, deadly))
    session.run(watch, address=None, serial=False, track=False)
    (failure,) = watch.failures
    assert failure["point_id"] == deadly
    assert failure["status"] == "worker_died"
    assert "WorkerCrashedError" in failure["reason"]
    assert failure["reason"].endswith("(attempt 2)")
    assert len(list(tmp_path.glob("*.tried"))) == 3, "with its neighbour, alone, once again"
    assert [row["status"] for row in rows(session)].count("finished") == 5
    monkeypatch.undo()
    again, watch = run_sweep(path, tmp_path / "out", serial=False)
    assert [outcome["point_id"] for outcome in watch.outcomes] == [deadly]
    assert again.plan.counts()["finished"] == 6


def test_a_worker_that_does_not_answer_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sweep(
        tmp_path,
        axes={SEED: [1, 2, 3]},
        execution={"time_limit_s": 8, "points_per_task": 1},
    )
    session, watch = Session.open(path, tmp_path / "out"), Watch()
    hanging = session.plan.points[0].point_id
    monkeypatch.setattr(executors, "run_in_ray", dying(tmp_path, "hang", hanging))
    monkeypatch.setattr(executors, "GRACE_S", 10.0)
    session.run(watch, address=None, serial=False, track=False)
    assert [row["status"] for row in rows(session)] == ["timeout", "finished", "finished"]
    assert watch.failures[0]["reason"] == "did not answer within its time limit (attempt 1)"


def test_more_cpus_than_there_are_is_a_wrong_input(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={SEED: [1]}, execution={"cpus_per_point": 64})
    with pytest.raises(InputError, match=r"execution\.cpus_per_point: got 64.* at most 2"):
        run_sweep(path, tmp_path / "out", serial=False)


def test_workers_hold_a_bounded_number_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "KEPT_PARTS", 3)
    monkeypatch.setattr(executors, "_PARTS", {})
    refs = {f"part {i}": ray.put(i) for i in range(6)}

    def look(jobs: Any, fetch: Any, limits: Any, keep: bool) -> list[Any]:
        return [fetch(name) for name in (*refs, *refs)]

    monkeypatch.setattr(executors, "run_jobs", look)
    assert executors.run_in_ray([], refs, Limits(1), False) == [*range(6), *range(6)]
    assert list(executors._PARTS.values()) == [3, 4, 5]
