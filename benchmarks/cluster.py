"""How long a cluster takes: 16 instances, 100,000 generated requests, one core.

    python -m benchmarks.cluster [--instances 16] [--requests 100000] [--policy NAME] [--repeats 3]

The last line is JSON: run_s (median), prepare_s, steps, tokens_per_s.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import GENERATED
from simulator import point_from_mapping
from simulator.simulation import Prepared, prepare, run

LINEAR = {
    "base_ns": 4_794_000,
    "per_token_ns": 16_200,
    "per_kv_token_ns": 39,
    "per_request_ns": 5_000,
}


def prepared(requests: int, **changes: Any) -> Prepared:
    data = {**copy.deepcopy(GENERATED), "profile": {"linear": LINEAR}, **changes}
    data["card"]["memory_bandwidth_gbps"] = 3350.0
    data["workload"]["generate"]["num_requests"] = requests
    data["workload"]["generate"]["arrivals"]["rate"] = changes.pop("rate", 20.0)
    data.pop("rate", None)
    return prepare(point_from_mapping(data, Path(), "benchmark"))


def timed(point: Prepared, repeats: int) -> tuple[float, dict[str, Any]]:
    times, summary = [], {}
    for _ in range(repeats):
        start = time.perf_counter()
        summary = run(point).summary
        times.append(time.perf_counter() - start)
    return statistics.median(times), summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--policy", default="least_loaded")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    cluster = {
        "instances": [{"count": arguments.instances}],
        "routing": {"policy": arguments.policy},
    }
    small = prepared(1000, cluster=cluster, rate=20.0 * arguments.instances)
    run(small)  # loads the compiled core
    start = time.perf_counter()
    point = prepared(arguments.requests, cluster=cluster, rate=20.0 * arguments.instances)
    prepare_s = time.perf_counter() - start
    run_s, summary = timed(point, arguments.repeats)
    print(
        json.dumps(
            {
                "instances": arguments.instances,
                "requests": summary["requests"]["finished"],
                "policy": arguments.policy,
                "prepare_s": round(prepare_s, 2),
                "run_s": round(run_s, 2),
                "steps": summary["steps"],
                "tokens_per_s": round(summary["generated_tokens"] / run_s),
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
