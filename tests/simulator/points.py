"""Results of several points, compiled or not as SERVESWEEP_JIT says.

As a program: `python -m tests.simulator.points <folder>` writes a folder of results for each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from simulator import simulate
from simulator.core.jit import JIT
from tests.profiles.bundles import write_variant
from tests.simulator.point import make_point

SESSIONS = {
    "num_requests": 40,
    "arrivals": {"rate": 4.0},
    "prompt_tokens": {"uniform": [5, 60]},
    "output_tokens": {"uniform": [1, 20]},
    "sessions": {
        "calls": {"uniform": [1, 6]},
        "tool_ms": {"uniform": [1, 300]},
        "max_prompt_tokens": 400,
    },
}
PRESSURE = {"engine__num_gpu_blocks_override": 24, "engine__max_num_seqs": 12}
INFINILM = {
    "engine__engine": "infinilm",
    "engine__num_gpu_blocks_override": 60,
    "workload__max_tokens": 60,
    "overhead__host_ms_per_step": 0.4,
}
MODES = {
    "overhead__full_graph_ms": -0.1,
    "overhead__piecewise_ms": 1.5,
    "overhead__no_graph_ms": 3.0,
    "overhead__cudagraph_capture_sizes": [1, 2, 4, 8, 16],
    "overhead__pad_to_capture_size": True,
    "overhead__host_ms_per_step": 0.4,
}

# name -> (are steps kept, what differs)
POINTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "async": (False, {}),
    "async-pressure": (False, PRESSURE),
    "async-pressure-steps": (True, PRESSURE),
    "sync": (True, {"engine__async_scheduling": False}),
    "priority": (
        True,
        {
            **PRESSURE,
            "engine__policy": "priority",
            "workload__generate__priorities": [1.0, 2.0, 1.0],
        },
    ),
    "priority-sync-no-isl": (
        False,
        {
            **PRESSURE,
            "engine__policy": "priority",
            "engine__async_scheduling": False,
            "engine__scheduler_reserve_full_isl": False,
            "engine__long_prefill_token_threshold": 40,
            "workload__generate__priorities": [1.0, 1.0],
        },
    ),
    "sessions": (False, {"workload__generate": SESSIONS}),
    "tier": (
        True,
        {
            **PRESSURE,
            "prefix_storage": "cpu",
            "tiers": {
                "cpu": {"capacity_gib": 0.01, "bandwidth_gbps": 0.5, "chunk_tokens": 32},
            },
        },
    ),
    "offloading": (
        True,
        {
            **PRESSURE,
            "prefix_storage": "cxl",
            "kv_connector": "OffloadingConnector",
            "tiers": {
                "cxl": {"capacity_gib": 0.01, "bandwidth_gbps": 0.5, "chunk_tokens": 16},
            },
        },
    ),
    "two-tiers": (
        False,
        {
            **PRESSURE,
            "prefix_storage": "cpu+cxl",
            "tiers": {
                "cpu": {"capacity_gib": 0.0002, "bandwidth_gbps": 2.0, "chunk_tokens": 32},
                "cxl": {"capacity_gib": 0.01, "bandwidth_gbps": 0.5, "chunk_tokens": 32},
            },
        },
    ),
    "infinilm-legacy": (True, {**INFINILM, "engine__admission": "legacy"}),
    "infinilm-exact-scan": (True, {**INFINILM, "engine__admission": "exact-scan"}),
    "infinilm-incremental": (False, {**INFINILM, "engine__admission": "incremental"}),
    "infinilm-turns": (
        True,
        {
            **INFINILM,
            "engine__admission": "incremental",
            "engine__max_num_seqs": 3,
            "profile": "bundle",
        },
    ),
    "tables": (True, {"profile": "bundle"}),
    "tables-modes": (False, {"profile": "bundle", **MODES}),
    "placement-ahead": (
        True,
        {
            "profile": "bundle",
            "placement": {
                "memories": {"cxl:0": {"bandwidth_gbps": 0.1, "capacity_gib": 1.0}},
                "weights": {"blocks": {"1": "cxl:0"}, "layers": {"lm_head": "cxl:0"}},
                "kv_cache": "cxl:0",
                "weight_reads": "prefetched",
            },
        },
    ),
    "placement-law": (
        False,
        {
            "placement": {
                "memories": {"cpu": {"bandwidth_gbps": 0.1, "capacity_gib": 1.0}},
                "weights": "cpu",
                "kv_cache": "cpu",
            },
        },
    ),
    "refused": (False, {"engine__max_model_len": 120}),
}


def main(folder: Path) -> None:
    bundle = write_variant(folder / "profiles", seed=5)
    for name, (steps, changes) in POINTS.items():
        tables = {"profile": {"bundle": str(bundle)}} if "profile" in changes else {}
        simulate(make_point(**{**changes, **tables}), steps=steps).write(folder / name)
    print("compiled" if JIT else "not compiled")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
