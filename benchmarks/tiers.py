"""What a storage tier is worth: conversations against the size of the tier.

    python -m benchmarks.tiers [--reference FOLDER] [--connector NAME] [--requests 1500]

Conversations that come back after others have taken the device's blocks, on one card (measured tables if
they are there, else a linear law), with a CPU tier of growing size. A row a size: hit rate of first
admissions, of these the tier's share, mean and p99 TTFT, GiB loaded and written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import GENERATED, REFERENCE, ROOT
from profiles.errors import InputError
from simulator import point_from_mapping, simulate

# Of a model with 128 KiB a token: 8 GiB are 65,536 tokens, as many as the 4000 blocks of the device.
SIZES_GIB = (0, 4, 8, 16, 32, 64, 96, 1024)
CONNECTORS = ("LMCacheConnectorV1", "OffloadingConnector")


def point(reference: Path, connector: str, requests: int, size_gib: float) -> dict[str, Any]:
    """The point's data; size 0 is without a tier."""
    bundle = reference / "perf" / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16"
    law = {"linear": {"base_ns": 5_000_000, "per_token_ns": 60_000, "per_kv_token_ns": 80}}
    tier = {"capacity_gib": float(size_gib), "bandwidth_gbps": 25.0, "latency_us": 10.0}
    return {
        "model": GENERATED["model"],
        "card": GENERATED["card"],
        "engine": {**GENERATED["engine"], "num_gpu_blocks_override": 4000},
        "workload": {
            "generate": {
                "num_requests": requests,
                "seed": 1,
                "arrivals": {"process": "poisson", "rate": 3.0},
                "multi_turn": {"share": 0.8, "distance": 60, "max_prompt_tokens": 12000},
            }
        },
        "profile": {"bundle": str(bundle)} if bundle.is_dir() else law,
        "kv_connector": connector,
        **({"prefix_storage": "cpu", "tiers": {"cpu": tier}} if size_gib else {}),
    }


def row(data: dict[str, Any]) -> dict[str, float]:
    summary = simulate(point_from_mapping(data, ROOT, "conversations")).summary
    tier = summary["prefix_storage"]["tiers"].get("cpu", {})
    looked_up = summary["prefix_cache"]["looked_up_tokens"]
    ttft = summary["latency"]["ttft_ms"]
    return {
        "hit_rate": summary["prefix_cache"]["hit_rate"],
        "of_tier": tier.get("hit_tokens", 0) / looked_up,
        "ttft_mean_ms": ttft["mean"],
        "ttft_p99_ms": ttft["p99"],
        "loaded_gib": tier.get("loaded_bytes", 0) / 2**30,
        "written_gib": tier.get("written_bytes", 0) / 2**30,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers", description=__doc__)
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--connector", choices=CONNECTORS, action="append")
    parser.add_argument("--requests", type=int, default=1500)
    arguments = parser.parse_args()
    for connector in arguments.connector or CONNECTORS:
        print(f"{connector}\n  GiB  hit rate  of tier  TTFT mean, p99 ms  loaded, written GiB")
        for size in SIZES_GIB:
            try:
                made = row(point(arguments.reference, connector, arguments.requests, size))
            except InputError as error:
                print(error, file=sys.stderr)
                return 2
            print(
                f"{size:5d} {made['hit_rate']:9.3f} {made['of_tier']:8.3f} "
                f"{made['ttft_mean_ms']:10.1f} {made['ttft_p99_ms']:8.1f} "
                f"{made['loaded_gib']:9.1f} {made['written_gib']:8.1f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
