"""MLflow tracking of a sweep: a parent run, a run for each point and for each ground truth.

What is tracked is plain data that can be made again from the sweep's Parquet files at any time, so
nothing here is precious: a sweep never waits for tracking, and what could not be written is
reported as pending and written later by tracking the same sweep again.

    tracker.py   what a sweep talks to: appends points to a spool and starts the writer
    writer.py    a process of its own, the only one that imports MLflow
    entry.py     a point as MLflow takes it: names, finite values, digest
    sqlite.py    the embedded database, written in transactions of many runs
    server.py    any tracking server, through MLflow's client
"""

from orchestrator.tracking.address import mlflow_installed, sqlite_address, tracking_address
from orchestrator.tracking.model import TrackedPoint, TrackedSweep, TrackingReport
from orchestrator.tracking.tracker import Tracker

__all__ = [
    "TrackedPoint",
    "TrackedSweep",
    "Tracker",
    "TrackingReport",
    "mlflow_installed",
    "sqlite_address",
    "tracking_address",
]
