"""Latencies that vLLM's own scheduler gave in a recorded scenario, as a table of percentiles.

    python -m tests.oracle.latencies FOLDER > truth.yaml     # asynchronous

A request's tokens are there when the step that sampled them is applied.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from orchestrator.nightly.scenarios import Scenario
from orchestrator.truth_data import statistics

METRICS = ("ttft", "tpot", "latency")


def latencies(folder: Path) -> dict[str, Any]:
    """The table as its YAML file holds it."""
    scenario = Scenario(folder, "async")
    samples: dict[int, list[str]] = {}
    tokens: dict[str, list[int]] = {}
    for line in scenario.recorded:
        if line["kind"] == "schedule":
            samples[line["step"]] = line["samples"]
        else:
            for request in samples[line["step"]]:
                tokens.setdefault(request, []).append(line["t_ns"])
    workload = scenario.workload
    values: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for request, arrival in zip(workload.request_ids, workload.arrival_ns.tolist(), strict=True):
        first, last, count = tokens[request][0], tokens[request][-1], len(tokens[request])
        values["ttft"].append((first - arrival) / 1e6)
        values["tpot"].append((last - first) / max(1, count - 1) / 1e6)
        values["latency"].append((last - arrival) / 1e6)
    return {
        "definitions": {"ttft": "from_arrival", "tpot": "all_requests", "percentile": "linear"},
        "values": [
            {"metric": metric, "statistic": statistic, "value_ms": value}
            for metric in METRICS
            for statistic, value in statistics(np.array(values[metric])).items()
        ],
    }


if __name__ == "__main__":
    source = Path(sys.argv[1])
    print(f"# vLLM 0.19.0's scheduler in the recorded scenario {source.name}; see tests/oracle.")
    print(yaml.safe_dump(latencies(source), sort_keys=False), end="")
