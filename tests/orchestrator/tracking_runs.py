"""Points to track, and a reading of what MLflow then holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from orchestrator.tracking import TrackedPoint, TrackedSweep

EXPERIMENT = "sweeps"


def make_point(i: int, **changes: Any) -> TrackedPoint:
    fields: dict[str, Any] = {
        "point_id": f"point-{i}",
        "name": f"blocks={i}",
        "params": {"engine.num_gpu_blocks": i, "engine.policy": "fcfs", "chunked": True},
        "metrics": {"ttft_ms/p99": 10.0 + i, "err_pct/mean_abs": 0.5 * i},
        "tags": {"axis": "blocks"},
        "series": {"series/running": [(1, 1.0), (2, float(i)), (3, 0.0)]},
        "started_ms": 1_700_000_000_000,
        "ended_ms": 1_700_000_009_000,
    }
    return TrackedPoint(**(fields | changes))


def make_sweep(**changes: Any) -> TrackedSweep:
    fields: dict[str, Any] = {
        "name": "calibration",
        "sweep_id": "sweep-1",
        "tags": {"card": "RTX4090"},
        "params": {"points": 3},
        "truths": [make_point(0, point_id="truth-1", name="ground truth")],
    }
    return TrackedSweep(**(fields | changes))


def client_of(folder: Path) -> Any:
    from mlflow import MlflowClient

    address = f"sqlite:///{folder / 'mlflow.db'}"
    return MlflowClient(address, address)


def runs_of(client: Any, role: str | None = None, experiment: str = EXPERIMENT) -> list[Any]:
    """Active runs by name."""
    found = client.get_experiment_by_name(experiment)
    search = f"tags.`servesweep.role` = '{role}'" if role else ""
    runs = client.search_runs([found.experiment_id], search, max_results=5000)
    return sorted(runs, key=lambda run: run.info.run_name)


def history(client: Any, run: Any, metric: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, metric)]


def everything(folder: Path) -> dict[str, list[Any]]:
    """All rows of runs, for "nothing changed" and "no doubles"."""
    connection = sqlite3.connect(folder / "mlflow.db")
    tables = ("tags", "params", "metrics", "latest_metrics", "runs")
    rows = {t: sorted(connection.execute(f"select * from {t}"), key=repr) for t in tables}
    connection.close()
    rows["runs"] = [row[:7] + row[9:] for row in rows["runs"]]  # the parent ends again
    return rows
