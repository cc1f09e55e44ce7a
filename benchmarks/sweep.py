"""How long a whole sweep takes.

    python -m benchmarks.sweep [--points 1000] [--no-track] [--reference FOLDER]

A sweep of different points of the RTX 4090 replay, from the command's start to its end: Ray,
simulation, comparison with the recorded run, Parquet, MLflow child runs. The last line is JSON:
points, wall_s, startup_s (until the first outcome), results_s (until all results are computed,
compared and on disk), simulate_cpu_s (summed over points), overhead_ms_per_point (what a point costs
beside its simulation, from the first outcome on, per CPU), tracked_runs, driver_peak_mib.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cases import REFERENCE
from profiles.errors import InputError


def sweep_file(points: int, reference: Path) -> dict[str, Any]:
    """`points` memory utilisations between 2172 and 4015 blocks; beyond that other batch limits too."""
    per_limit = min(points, 1000)
    limits = [2048 - 64 * i for i in range(-(-points // per_limit))]
    bench = reference / "bench" / "RTX4090" / "Llama-3.1-8B"
    return {
        "name": "benchmark",
        "base": {
            "model": {
                "hf_config": str(reference / "models" / "meta-llama" / "Llama-3.1-8B.json"),
                "name": "meta-llama/Llama-3.1-8B",
            },
            "card": {"name": "RTX4090", "memory_gib": 24},
            "engine": {"max_num_seqs": 256, "max_model_len": 32768},
            "workload": {
                "jsonl": str(reference / "workloads" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
            },
            "profile": {"bundles": str(reference / "perf")},
        },
        "axes": {
            "engine.max_num_batched_tokens": limits,
            "engine.gpu_memory_utilization": {"linspace": [0.80, 0.95, per_limit]},
        },
        "truth": {"recorded": str(bench / "vllm")},
    }


class Watch:
    """Progress that notes when the first and the last outcome came."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = 0.0
        self.simulated_s = 0.0
        self.failed = 0

    def begin(self, plan: Any) -> None:
        pass

    def advance(self, plan: Any, outcome: dict[str, Any], point: Any) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.simulated_s += outcome["wall_s"]

    def failure(self, outcome: dict[str, Any], point: Any) -> None:
        self.failed += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--no-track", action="store_true")
    parser.add_argument("--serial", action="store_true", help="without Ray")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    arguments = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "sweep.yaml"
        path.write_text(yaml.safe_dump(sweep_file(arguments.points, arguments.reference)))
        from orchestrator.session import Session

        session = Session.open(path, Path(scratch) / "out")
        opened = time.perf_counter()
        watch = Watch()
        report, _ = session.run(
            watch, address=None, serial=arguments.serial, track=not arguments.no_track
        )
        wall = time.perf_counter() - start
        print(session.verdict())
    assert watch.first is not None
    cpus = 1 if arguments.serial else os.cpu_count() or 1
    counts = session.plan.counts()
    spent = (watch.last - watch.first) * cpus
    print(f"points read and checked in {opened - start:.2f} s")
    print(
        json.dumps(
            {
                "points": counts["points"],
                "runs": counts["finished"],
                "failed": counts["failed"],
                "wall_s": round(wall, 2),
                "startup_s": round(watch.first - start, 2),
                "results_s": round(watch.last - start, 2),
                "simulate_cpu_s": round(watch.simulated_s, 2),
                "overhead_ms_per_point": round(
                    (spent - watch.simulated_s) / max(1, counts["finished"]) * 1e3, 3
                ),
                "tracked_runs": (report.written + report.already_there) if report else 0,
                "driver_peak_mib": round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1
                ),
            }
        )
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"{error} (--reference says where LLMServingSim's data is)")
