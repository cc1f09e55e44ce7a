"""A point for tests: small, complete, and changed field by field."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from simulator import Point, point_from_mapping

MODEL = {
    "name": "test/model",
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 512,
}
POINT = {
    "model": MODEL,
    "card": {"name": "TestCard", "memory_gib": 1},
    "engine": {"num_gpu_blocks_override": 60, "max_num_seqs": 8, "max_num_batched_tokens": 96},
    "workload": {
        "generate": {
            "num_requests": 60,
            "arrivals": {"rate": 50.0},
            "prompt_tokens": {"uniform": [5, 150]},
            "output_tokens": {"uniform": [1, 40]},
            "shared_prefix": {"groups": 2, "tokens": 40},
        }
    },
    "profile": {
        "linear": {
            "base_ns": 7_000_000,
            "per_token_ns": 150_000,
            "per_kv_token_ns": 500,
            "per_request_ns": 400_000,
        }
    },
}
NOTHING = object()


def point_data(**changes: Any) -> dict[str, Any]:
    """POINT with fields replaced: point_data(engine__block_size=8, profile={...}).

    `__` goes one level down; a field set to NOTHING is left out.
    """
    data = copy.deepcopy(POINT)
    for path, value in changes.items():
        *above, name = path.split("__")
        section: dict[str, Any] = data
        for part in above:
            section = section.setdefault(part, {})
        if value is NOTHING:
            del section[name]
        else:
            section[name] = value
    return data


def make_point(**changes: Any) -> Point:
    return point_from_mapping(point_data(**changes), Path(), "point.yaml")
