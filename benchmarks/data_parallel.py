"""A recorded vLLM run of two data-parallel replicas that share experts, simulated without fitting.

    python -m benchmarks.data_parallel [--reference FOLDER]

LLMServingSim's recording of vLLM 0.19.0: Qwen3-30B-A3B-Instruct-2507 on two RTX PRO 6000, DP 2 x EP 2,
300 requests of ShareGPT at 10 a second. Errors in % of mean, p50, p90, p95 and p99 of TTFT, TPOT and
latency, and the mean of their absolute values: as LLMServingSim configures its own replay, then step by
step as vLLM runs by default, then with other expert loads, and what LLMServingSim published for the same
run. Then how many requests went to another replica than the one before them, of those whose replica the
recorded times tell (replica_pairs.py). The last line is JSON. Needs the recording and the package
aiconfigurator-core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases import REFERENCE
from benchmarks.replica_pairs import neighbours
from orchestrator.compare import compare
from orchestrator.truth import load_truth
from orchestrator.truth_config import TruthConfig
from orchestrator.truth_data import HEADLINE, STATISTICS
from profiles.errors import InputError
from profiles.recorded import load_recorded_run
from simulator import simulate
from simulator.config import point_from_mapping
from simulator.result import Result

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
RUN = "bench/RTXPRO6000/Qwen3-30B-A3B-Instruct-2507"
# github.com/casys-kaist/LLMServingSim at 5daddb2,
# bench/examples/RTXPRO6000/Qwen3-30B-A3B-Instruct-2507/validation/summary.txt, in the order of HEADLINE.
PUBLISHED = (
    *(-13.6, -21.8, -10.9, -10.5, -1.0),
    *(-1.7, -1.6, -0.8, -0.8, -0.5),
    *(-2.2, -2.0, -1.8, -1.8, -1.8),
)

ASYNCHRONOUS: dict[str, Any] = {
    "engine": {"async_scheduling": True, "null_block": True},
    "overhead": {"pad_to_capture_size": True},
    "expert_routing": {"policy": "uniform"},
}
MEASURED: dict[str, Any] = {"profile": {"expert_exchange": {"system": "rtx_pro_6000_server"}}}
TOLD: dict[str, Any] = {
    "cluster": {"routing": {"policy": "least_loaded", "update_interval_ms": 100}}
}
EXPERT_LOADS = ("balanced", "random", "round_robin")


class Case(NamedTuple):
    name: str
    changes: tuple[dict[str, Any], ...] = ()  # sections laid over the point's, one after the other
    from_queue: bool = True


def cases() -> Iterator[Case]:
    """Each has what the one before has; the last ones differ in the experts alone."""
    yield Case("LLMServingSim's settings", from_queue=False)
    yield Case("asynchronous, padded", (ASYNCHRONOUS,), from_queue=False)
    yield Case("TTFT from the queue", (ASYNCHRONOUS,))
    yield Case("exchange as measured", (ASYNCHRONOUS, MEASURED))
    yield Case("router told every 100 ms", (ASYNCHRONOUS, MEASURED, TOLD))
    for policy in EXPERT_LOADS:
        routing = {"expert_routing": {"policy": policy}}
        yield Case(f"  {policy} experts", (ASYNCHRONOUS, MEASURED, TOLD, routing))


def point_data(changes: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """LLMServingSim's replay with sections of `changes` laid over it."""
    data: dict[str, Any] = {
        "model": {"hf_config": f"models/{MODEL}.json", "name": MODEL},
        "card": {"name": "RTXPRO6000", "memory_gib": 96},
        "engine": {"max_num_seqs": 128, "async_scheduling": False, "null_block": False},
        "workload": {"jsonl": "workloads/sharegpt-qwen3-30b-a3b-300-sps10.jsonl"},
        "profile": {"bundles": "perf"},
        "expert_routing": {"policy": "balanced"},
        "cluster": {"llmservingsim": f"{RUN}/config.json"},
    }
    for change in changes:
        for section, fields in change.items():
            data[section] = {**data.get(section, {}), **fields}
    return data


def simulated(case: Case, reference: Path) -> Result:
    """Raises InputError."""
    return simulate(point_from_mapping(point_data(case.changes), reference, case.name))


def errors(case: Case, result: Result, reference: Path) -> list[float]:
    """The 15 errors in %, in the order of HEADLINE. Raises InputError."""
    ttft: Any = "from_queue" if case.from_queue else "from_arrival"
    truth = load_truth(TruthConfig(recorded=Path(RUN) / "vllm", ttft=ttft), reference)
    found = compare(result, truth).err_pct
    return [found[metric][statistic] for metric in HEADLINE for statistic in STATISTICS]


def changes_of_replica(result: Result, known: list[int]) -> int:
    """How many of the known requests are followed by one on another replica."""
    instance = result.requests["instance"].to_numpy()
    return int((np.diff(instance) != 0)[known].sum())


def mean_abs(values: tuple[float, ...] | list[float]) -> float:
    return sum(map(abs, values)) / len(values)


def line(name: str, values: tuple[float, ...] | list[float]) -> str:
    parts = [" ".join(f"{v:+6.1f}" for v in values[i : i + 5]) for i in (0, 5, 10)]
    return f"{name:26} {mean_abs(values):5.2f}   " + "   ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_parallel")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    arguments = parser.parse_args()
    names = "   ".join(f"{m:34}" for m in ("TTFT mean p50 p90 p95 p99", "TPOT", "latency"))
    print(f"{'error in %':26} {'|.|':>5}   {names}".rstrip())
    report: dict[str, Any] = {}
    changes = {}
    try:
        pairs = dict(neighbours(load_recorded_run(arguments.reference / RUN / "vllm")))
        for case in cases():
            result = simulated(case, arguments.reference)
            values = errors(case, result, arguments.reference)
            changes[case.name.strip()] = changes_of_replica(result, list(pairs))
            print(line(case.name, values))
            report[case.name.strip()] = round(mean_abs(values), 2)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(line("LLMServingSim, published", PUBLISHED))
    report["LLMServingSim, published"] = round(mean_abs(PUBLISHED), 2)
    print(f"requests followed by one on the other replica, of {len(pairs)} that are known:")
    print(f"  recorded {sum(pairs.values())}, " + ", ".join(f"{k} {v}" for k, v in changes.items()))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
