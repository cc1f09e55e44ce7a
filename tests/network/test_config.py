"""Network descriptions that are refused, with what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from profiles.errors import InputError
from simulator.network.config import fully_connected, load_network
from tests.network.make import dimension, make_network

GOOD: dict[str, Any] = {"dimensions": [dimension(4)], "local_mem_gbps": 1597.0}


def loaded(tmp_path: Path, data: dict[str, Any]) -> str:
    path = tmp_path / "network.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(InputError) as caught:
        load_network(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(yaml.safe_dump({**GOOD, "all_reduce": "direct"}))
    network = load_network(path)
    assert network.ranks == 4
    assert network.implementation("all_reduce", 0) == "direct"
    assert network.implementation("all_gather", 0) == "ring"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dimensions": []}, "dimensions: got []"),
        ({"dimensions": [dimension(0)]}, "dimensions[0].ranks: got 0"),
        ({"dimensions": [dimension(1025)]}, "dimensions[0].ranks: got 1025"),
        ({"dimensions": [dimension(64), dimension(32)]}, "dimensions: got 2048, expected at most"),
        ({"dimensions": [dimension(2)] * 5}, "dimensions: got"),
        ({"dimensions": [dimension(2, "Torus")]}, "dimensions[0].topology: got 'Torus'"),
        ({"dimensions": [dimension(2, bandwidth_gibps=0.0)]}, "dimensions[0].bandwidth_gibps"),
        ({"dimensions": [dimension(2, latency_ns=-1.0)]}, "dimensions[0].latency_ns: got -1.0"),
        ({"dimensions": [dimension(2, speed=1)]}, "dimensions[0].speed: got 1, expected no such"),
        ({"local_mem_gbps": None}, "local_mem_gbps: got None"),
        ({"all_reduce": ["ring", "ring"]}, "all_reduce: got ['ring', 'ring'], expected one imple"),
        ({"all_gather": "doubleBinaryTree"}, "it is an all-reduce only"),
        ({"all_to_all": "halvingDoubling"}, "all_to_all: got 'halvingDoubling', expected ring or"),
        (
            {"dimensions": [dimension(6)], "all_reduce": "halvingDoubling"},
            "because dimension 0 has 6 ranks, not a power of two",
        ),
        ({"all_reduce": "tree"}, "all_reduce[0]: got 'tree'"),
    ],
)
def test_a_wrong_one(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    assert says in loaded(tmp_path, {**GOOD, **changes})


def test_addresses_count_the_innermost_dimension_fastest() -> None:
    network = make_network(2, 3, 4)
    assert [network.address(rank) for rank in (0, 1, 2, 6, 23)] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (1, 2, 3),
    ]
    assert network.group(23, (0, 2)) == (2,)


def test_links_as_a_cluster_names_them() -> None:
    network = fully_connected([2, 4], [128, 16], 20000, 1597)
    assert network == make_network(
        dimension(2, "FullyConnected", bandwidth_gibps=128.0, latency_ns=20000.0),
        dimension(4, "FullyConnected", bandwidth_gibps=16.0, latency_ns=20000.0),
    )
    assert fully_connected([2], 16, 500.0, 1008.0).dimensions[0].bandwidth_gibps == 16.0
    with pytest.raises(InputError, match=r"bandwidth_gibps: got .* expected one number, or 2"):
        fully_connected([2, 4], [128], 20000, 1597)
