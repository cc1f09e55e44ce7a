"""Networks for tests, and where the recordings are."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from simulator.network.config import NetworkConfig

RECORDINGS = Path(__file__).parent / "recordings"


def rows(name: str) -> list[dict[str, str]]:
    with (RECORDINGS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def dimension(ranks: int, topology: str = "Ring", **changes: Any) -> dict[str, Any]:
    return {
        "topology": topology,
        "ranks": ranks,
        "bandwidth_gibps": 50.0,
        "latency_ns": 500.0,
        **changes,
    }


def make_network(*dimensions: dict[str, Any] | int, **changes: Any) -> NetworkConfig:
    """Rings of 50 GiB/s and 500 ns where only a number of ranks is given."""
    given = [dimension(d) if isinstance(d, int) else d for d in dimensions or (2,)]
    data = {"dimensions": given, "local_mem_gbps": 1597.0, **changes}
    return NetworkConfig.model_validate(data)


def recorded_network(row: dict[str, str], kind: str) -> NetworkConfig:
    """The network of a row of collectives*.csv."""
    dim = dimension(
        int(row["npus"]),
        row["topology"],
        bandwidth_gibps=float(row["bw_GBps"]),
        latency_ns=float(row["latency_ns"]),
    )
    return make_network(
        dim,
        local_mem_gbps=float(row["local_mem_bw"]),
        endpoint_delay_ns=int(row["endpoint_delay_ns"]),
        **{kind: row["impl"]},
    )


def measured_network(row: dict[str, str]) -> NetworkConfig:
    """The network of a row of dimensions.csv or skewed.csv."""
    columns = ("topologies", "ranks", "bandwidth_gibps", "latency_ns")
    dims = [
        dimension(int(n), topology, bandwidth_gibps=float(bandwidth), latency_ns=float(latency))
        for topology, n, bandwidth, latency in zip(
            *(row[c].split("|") for c in columns), strict=True
        )
    ]
    changes: dict[str, Any] = {row["collective"]: row["implementations"].split("|")}
    return make_network(
        *dims,
        local_mem_gbps=float(row["local_mem_gbps"]),
        endpoint_delay_ns=int(row["endpoint_delay_ns"]),
        collective_optimization=row["optimization"],
        **changes,
    )
