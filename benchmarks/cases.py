"""The points that benchmarks simulate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiles.errors import InputError
from simulator import Point, point_from_mapping

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT.parent / "shared" / "reference" / "llmservingsim"

# The settings the recorded runs were made with: max_num_seqs differs, the rest is common.
MAX_NUM_SEQS = {"RTX4090": 256, "RTXPRO6000": 128}
WORKLOADS = {"Llama-3.1-8B": "sharegpt-llama-3.1-8b-300-sps10.jsonl"}

GENERATED: dict[str, Any] = {
    "model": {
        "name": "Llama-3.1-8B",
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 131072,
    },
    "card": {"name": "80 GiB card", "memory_gib": 80},
    "engine": {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 16384},
    "workload": {
        "generate": {
            "num_requests": 100_000,
            "seed": 1,
            "arrivals": {"process": "poisson", "rate": 20.0},
            "shared_prefix": {"groups": 50, "tokens": 320, "share": 0.8},
        }
    },
}


def replay_point(case: str, reference: Path, **engine: Any) -> Point:
    """The recorded run `case`, <card>/<model>, with every block handed out, synchronous.

    These are the settings LLMServingSim's own replay uses. Raises InputError.
    """
    folder = reference / "bench" / case
    config = folder / "config.json"
    if not config.is_file():
        known = sorted(p.parent.name + "/" + p.name for p in (reference / "bench").glob("*/*"))
        raise InputError(config, "--case", case, f"one of {', '.join(known) or 'none there'}")
    instance = json.loads(config.read_text())["nodes"][0]["instances"][0]
    card, model = case.split("/")
    memory = instance["npu_mem"]
    data = {
        "model": {
            "hf_config": f"models/{instance['model_name']}.json",
            "name": instance["model_name"],
        },
        "card": {
            "name": instance["hardware"],
            "memory_gib": memory["mem_size"],
            "memory_bandwidth_gbps": float(memory["mem_bw"]),
        },
        "engine": {
            "gpu_memory_utilization": memory["mem_util"],
            "max_num_seqs": MAX_NUM_SEQS[card],
            "max_model_len": 32768,
            "null_block": False,
            "async_scheduling": False,
            **engine,
        },
        "workload": {"jsonl": f"workloads/{WORKLOADS[model]}"},
        "profile": {"bundles": "perf"},
    }
    return point_from_mapping(data, reference, config)


def generated_point(reference: Path, requests: int = 100_000) -> Point:
    """A generated workload on measured tables if they are there, else on a linear law."""
    data = json.loads(json.dumps(GENERATED))
    data["workload"]["generate"]["num_requests"] = requests
    bundle = reference / "perf" / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16"
    data["profile"] = (
        {"bundle": str(bundle)}
        if bundle.is_dir()
        else {"linear": {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_kv_token_ns": 80}}
    )
    return point_from_mapping(data, ROOT, "generated")
