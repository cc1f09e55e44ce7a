"""Simulated closed loops against what vLLM did on H100, H200 and B200, without fitting anything.

    python -m benchmarks.silicon [--requests 10]

The package aiconfigurator-core brings mean TTFT and TPOT of real vLLM runs, and measured tables of the
same cards. Every row whose model is known here is simulated: so many clients as the row says, each with
`--requests` requests one after the other. Rows of Llama-3.1-70B are InferenceMAX's, whose client
(README of github.com/InferenceMAX/InferenceMAX) draws lengths from 0.8 to 1 of the nominal ones; the
others are taken as fixed, which is not known. Rows that cannot be a closed loop are left out and counted
(orchestrator/truth_silicon.py has the rule), as are rows whose shapes the tables do not hold. Prints
the signed median and the median absolute error by card, model, weights and TP degree, at last as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS
from orchestrator.truth_silicon import Measured, can_be_a_loop, measured_rows
from profiles.errors import InputError
from profiles.model import ModelConfig
from simulator import simulate
from simulator.config import point_from_mapping

RANGE = {"meta-llama/Llama-3.1-70B": 0.8}  # shortest, as a share of the nominal length


def lengths(nominal: int, model: str) -> dict[str, Any]:
    if model not in RANGE:
        return {"fixed": nominal}
    return {"uniform": [int(RANGE[model] * nominal), nominal]}


def errors(one: Measured, requests: int, **changes: dict[str, Any]) -> tuple[float, float]:
    """Signed errors of mean TTFT and TPOT, in %. `changes` are laid over sections of the point."""
    row = one.row
    data: dict[str, Any] = {
        "model": MODELS[row.model],
        "engine": {
            "tensor_parallel_size": row.tensor_parallel_size,
            "quantization": row.quantization,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
            "max_model_len": row.isl + row.osl + 16,
            "enable_prefix_caching": False,
        },
        "workload": {
            "generate": {
                "num_requests": requests * row.concurrency,
                "arrivals": {"process": "closed_loop", "concurrency": row.concurrency},
                "prompt_tokens": lengths(row.isl, row.model),
                "output_tokens": lengths(row.osl, row.model),
            }
        },
        "profile": {"aiconfigurator": {"system": row.system}},
    }
    for section, fields in changes.items():
        data[section] = {**data.get(section, {}), **fields}
    latency = simulate(point_from_mapping(data, Path(), "row")).summary["latency"]
    return (
        (latency["ttft_ms"]["mean"] / one.ttft_ms - 1) * 100,
        (latency["tpot_ms"]["mean"] / one.tpot_ms - 1) * 100,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silicon", description=__doc__)
    parser.add_argument("--requests", type=int, default=10, help="of every client")
    arguments = parser.parse_args()
    found: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    left_out: dict[tuple[str, ...], int] = defaultdict(int)
    not_held: dict[str, int] = defaultdict(int)
    for one in measured_rows():
        row = one.row
        if row.model not in MODELS:
            continue
        key = (
            row.system,
            row.model,
            row.quantization or "bfloat16",
            f"TP {row.tensor_parallel_size}",
        )
        if not can_be_a_loop(one, ModelConfig.model_validate(MODELS[row.model])):
            left_out[key] += 1
            continue
        try:
            found[key].append(errors(one, arguments.requests))
        except InputError as error:
            not_held[str(error)] += 1
    report = {}
    for key in sorted(found):
        ttft, tpot = zip(*found[key], strict=True)
        report[" ".join(key)] = {
            "rows": len(tpot),
            "left_out": left_out.pop(key, 0),
            "tpot_median_pct": round(statistics.median(tpot), 2),
            "tpot_median_abs_pct": round(statistics.median(map(abs, tpot)), 2),
            "ttft_median_abs_pct": round(statistics.median(map(abs, ttft)), 2),
        }
        print(f"{' '.join(key):56s}{report[' '.join(key)]}", flush=True)
    for key, count in sorted(left_out.items()):
        print(f"{' '.join(key):56s}{count} rows, none can be a closed loop")
    for reason, count in not_held.items():
        print(f"{count} rows: {reason}")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
