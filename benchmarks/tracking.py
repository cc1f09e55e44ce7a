"""How long it takes to track a sweep, as JSON: python -m benchmarks.tracking --runs 1000."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from orchestrator.tracking import TrackedPoint, TrackedSweep, Tracker

SERIES = ("running", "waiting", "kv_cache_usage", "generation_throughput")


def make_point(i: int, seconds: int) -> TrackedPoint:
    quantiles = ("mean", "p50", "p90", "p95", "p99")
    metrics = {
        f"{kind}{what}_ms/{q}": 1.0 + i * 0.1 + len(q)
        for kind in ("", "err_pct/")
        for what in ("ttft", "tpot", "itl", "latency")
        for q in quantiles
    }
    metrics |= {f"kv/counter_{c}": float(c * i) for c in range(20)}
    return TrackedPoint(
        point_id=f"{i:064x}",
        name=f"point {i}",
        params={f"engine.axis_{p}": i * p for p in range(20)},
        metrics=metrics,
        tags={f"axis_{t}": f"value {t}" for t in range(4)},
        series={f"series/{s}": [(t, t * 0.5 + i) for t in range(seconds)] for s in SERIES},
        started_ms=1_700_000_000_000 + i,
        ended_ms=1_700_000_000_500 + i,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=0, help="of series of every run")
    parser.add_argument("--address", help="default: a fresh SQLite database")
    parser.add_argument("--again", action="store_true", help="track all of it a second time")
    options = parser.parse_args()
    points = [make_point(i, options.seconds) for i in range(options.runs)]
    sweep_id = f"benchmark-{time.time_ns()}"
    with tempfile.TemporaryDirectory(prefix="servesweep-benchmark-") as folder:
        for _ in range(1 + options.again):
            sweep = TrackedSweep("benchmark", sweep_id, truths=[make_point(-1 % 2**32, 180)])
            began = time.perf_counter()
            with Tracker(options.address, "benchmark", sweep, folder=Path(folder)) as tracker:
                began_handing = time.perf_counter()
                for point in points:
                    tracker.point(point)
                handed = time.perf_counter()
                report = tracker.finish()
            wall_s = time.perf_counter() - began
            database = Path(folder) / "mlflow.db"
            print(
                json.dumps(
                    {
                        "address": options.address or "sqlite",
                        "runs": options.runs,
                        "series_seconds": options.seconds,
                        "wall_s": round(wall_s, 3),
                        "ms_per_run": round(1e3 * wall_s / options.runs, 3),
                        "sweep_waits_ms_per_run": round(
                            1e3 * (handed - began_handing) / options.runs, 4
                        ),
                        "written": report.written,
                        "already_there": report.already_there,
                        "pending": report.pending,
                        "problem": report.problem,
                        "database_mb": database.exists() and database.stat().st_size / 1e6,
                    }
                )
            )


if __name__ == "__main__":
    main()
