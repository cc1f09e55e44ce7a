"""The files ASTRA-Sim reads beside the traces: network.yml, system.json and one for memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulator.network.config import KINDS, MemoryNode, NetworkConfig
from simulator.network.dialect import Dialect

MEMORY_FILE: dict[Dialect, str] = {
    "upstream": "remote_memory.json",
    "llmservingsim": "memory.json",
}
PEAK_TFLOPS = 0.002
"""Upstream's roofline, so that one operation takes half a nanosecond and memory is never in the way."""

HOST_MEMORY = MemoryNode(bandwidth_gbps=256.0)
"""The fork does not start without a memory; a trace that reads from none never touches it."""


def network_yml(network: NetworkConfig) -> str:
    dimensions = network.dimensions
    columns: dict[str, list[Any]] = {
        "topology": [dimension.topology for dimension in dimensions],
        "npus_count": [dimension.ranks for dimension in dimensions],
        "bandwidth": [dimension.bandwidth_gibps for dimension in dimensions],
        "latency": [dimension.latency_ns for dimension in dimensions],
    }
    return "".join(f"{name}: [{', '.join(map(str, values))}]\n" for name, values in columns.items())


def system(network: NetworkConfig, dialect: Dialect, *, exact_ns: bool = False) -> dict[str, Any]:
    """What system.json holds. `exact_ns` as for the traces it goes with (`chakra.encoded`)."""
    settings: dict[str, Any] = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": network.endpoint_delay_ns,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "collective-optimization": network.collective_optimization,
        "local-mem-bw": network.local_mem_gbps,
        "boost-mode": 0,
    }
    for kind in KINDS:
        implementations = [
            network.implementation(kind, dim) for dim in range(len(network.dimensions))
        ]
        settings[f"{kind.replace('_', '-')}-implementation"] = implementations
    if exact_ns and dialect == "upstream":
        settings |= {"roofline-enabled": 1, "peak-perf": PEAK_TFLOPS}
    return settings


def memory(network: NetworkConfig, dialect: Dialect) -> dict[str, Any]:
    """What the memory file holds. Upstream has no memory beside the ranks' own here."""
    if dialect == "upstream":
        return {"memory-type": "NO_MEMORY_EXPANSION"}
    levels = {
        "remote_mem": (network.remote_memory or HOST_MEMORY, "PER_NODE_MEMORY_EXPANSION"),
        "local_mem": (network.local_memory, "PER_NPU_MEMORY_EXPANSION"),
        "cxl_mem": (network.cxl_memory, "MEMORY_POOL"),
    }
    return {
        name: {
            "memory-type": kind,
            "mem-bw": node.bandwidth_gbps,
            "mem-latency": node.latency_ns,
            "num-devices": node.devices,
        }
        for name, (node, kind) in levels.items()
        if node is not None
    }


def file_texts(
    network: NetworkConfig, dialect: Dialect, *, exact_ns: bool = False
) -> dict[str, str]:
    """By name: network.yml, system.json and the memory file."""
    return {
        "network.yml": network_yml(network),
        "system.json": _json(system(network, dialect, exact_ns=exact_ns)),
        MEMORY_FILE[dialect]: _json(memory(network, dialect)),
    }


def write_files(
    folder: Path, network: NetworkConfig, dialect: Dialect, *, exact_ns: bool = False
) -> list[Path]:
    """Write them to `folder`, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = file_texts(network, dialect, exact_ns=exact_ns)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
