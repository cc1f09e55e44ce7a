"""Loads the parts of the core that a point needs before its time counts, compiling what is not kept yet.

A part is compiled when it is called first, so the smallest point that calls it is run. What a process
has loaded stays loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from simulator.config import point_from_mapping
from simulator.core import state
from simulator.core.jit import is_kept
from simulator.simulation import Prepared, simulate

ONE = {"fixed": 1}
POINT: dict[str, Any] = {
    "model": {
        "name": "one layer",
        "model_type": "llama",
        "hidden_size": 1,
        "intermediate_size": 1,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 1,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 16,
    },
    "card": {"name": "small", "memory_bytes": 1 << 20},
    "engine": {"max_num_seqs": 1},
    "workload": {
        "generate": {
            "num_requests": 1,
            "arrivals": {"process": "poisson", "rate": 1.0},
            "prompt_tokens": ONE,
            "output_tokens": ONE,
        }
    },
    "profile": {"linear": {"base_ns": 1}},
}
TIER = {
    "prefix_storage": "cpu",
    "tiers": {"cpu": {"capacity_gib": 0.001, "bandwidth_gbps": 1.0, "chunk_tokens": 16}},
}
TRANSFER = {"connector": "NixlConnector", "bandwidth_gibps": 1.0}
# A part of the core: what a point has that needs it, and the functions that are compiled for it.
PARTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "alone": ({}, ("advance_alone",)),
    "lmcache": (TIER, ("advance_lmcache",)),
    "offloading": (TIER | {"kv_connector": "OffloadingConnector"}, ("advance_offloading",)),
    "cluster": ({"cluster": {"instances": [{"count": 2}]}}, ("advance_alone", "hand_over")),
    "prefix_aware": (
        {"cluster": {"instances": [{"count": 2}], "routing": {"policy": "prefix_aware"}}},
        ("advance_alone", "hand_over", "cached_tokens"),
    ),
    "kv_transfer": (
        {
            "cluster": {
                "instances": [{"role": "prefill"}, {"role": "decode"}],
                "kv_transfer": TRANSFER,
            }
        },
        ("advance_offloading", "hand_over"),
    ),
    "group": (
        {"cluster": {"instances": [{"count": 2, "data_parallel_group": "A"}]}},
        ("has_work", "form", "price", "settle", "apply", "hand_over"),
    ),
}
CONNECTORS = {
    state.NO_CONNECTOR: "alone",
    state.LMCACHE: "lmcache",
    state.OFFLOADING: "offloading",
}


def warm_up(prepared: Prepared) -> None:
    """Load what running it will call."""
    for part in parts_of(prepared):
        _load(part)


def compile_what_is_missing(points: Iterable[Prepared]) -> None:
    """Compile, in this process, parts that other processes of this machine would compile each for
    themselves; the core says so as it does it."""
    needed = dict.fromkeys(part for prepared in points for part in parts_of(prepared))
    for part in needed:
        if not all(is_kept(name) for name in PARTS[part][1]):
            _load(part)


def parts_of(prepared: Prepared) -> tuple[str, ...]:
    cluster = prepared.cluster
    if cluster is None:
        return (CONNECTORS[prepared.settings.connector],)
    found = {CONNECTORS[one.settings.connector]: None for one in cluster.instances}
    found["cluster"] = None
    if cluster.kv_transfer is not None:
        found["kv_transfer"] = None
    if cluster.groups:
        found["group"] = None
    if cluster.routing.policy == "prefix_aware":
        found["prefix_aware"] = None
    return tuple(found)


@cache
def _load(part: str) -> None:
    simulate(point_from_mapping(POINT | PARTS[part][0], Path(), f"warm-up {part}"))
