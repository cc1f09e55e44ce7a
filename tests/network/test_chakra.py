"""Files for ASTRA-Sim: equal byte by byte to ones it ran, and what the two dialects differ in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.network.chakra import decoded, encoded
from simulator.network.dialect import DIALECTS, Dialect
from simulator.network.files import write_files
from simulator.network.trace import Collective, Compute, MemoryAccess, Node, Receive, Send
from tests.network.make import RECORDINGS, dimension, make_network

MEGA = 1 << 20
REDUCE: tuple[Node, ...] = (
    Compute("COMP_NODE_x", 1000),
    Collective("COMM_COLL_NODE_x", "all_reduce", MEGA, None, (0,)),
)
SENDER: tuple[Node, ...] = (Compute("COMP", 1000), Send("SEND", 1, MEGA, 0, (0,)))


def receiver(ns: int) -> tuple[Node, ...]:
    return Receive("RECV", 0, MEGA), Compute("COMP", ns, (0,))


@pytest.mark.parametrize(
    ("dialect", "prefix", "ranks"),
    [
        ("llmservingsim", "demo_ring_ar/llm", (REDUCE,) * 4),
        ("upstream", "demo_up_ring_ar/et", (REDUCE,) * 4),
        ("llmservingsim", "demo_sendrecv/llm", (SENDER, receiver(500))),
        ("upstream", "demo_up_sendrecv/et", (SENDER, receiver(2000))),
    ],
)
def test_traces_are_those_that_ran(
    dialect: Dialect, prefix: str, ranks: tuple[tuple[Node, ...], ...]
) -> None:
    for rank, nodes in enumerate(ranks):
        golden = (RECORDINGS / f"{prefix}.{rank}.et").read_bytes()
        assert encoded(nodes, dialect, rank=rank) == golden


@pytest.mark.parametrize(
    ("dialect", "folder", "topology", "ranks"),
    [
        ("llmservingsim", "demo_ring_ar", "Ring", 4),
        ("llmservingsim", "demo_sendrecv", "FullyConnected", 2),
        ("upstream", "demo_up_ring_ar", "Ring", 4),
        ("upstream", "demo_up_sendrecv", "FullyConnected", 2),
    ],
)
def test_configurations_say_what_those_did(
    tmp_path: Path, dialect: Dialect, folder: str, topology: str, ranks: int
) -> None:
    network = make_network(dimension(ranks, topology))
    for path in write_files(tmp_path, network, dialect):
        golden = (RECORDINGS / folder / path.name).read_text()
        if path.suffix == ".yml":
            assert path.read_text() == golden
        else:
            assert json.loads(path.read_text()) == json.loads(golden)


def attributes(message: Any) -> dict[str, tuple[str, Any]]:
    """Name -> the field that holds the value, and the value."""
    return {
        attr.name: (attr.WhichOneof("value"), getattr(attr, attr.WhichOneof("value")))
        for attr in message.attr
    }


def nodes_of(data: bytes) -> list[Any]:
    metadata, *nodes = decoded(data)
    assert attributes(metadata) == {"schema": ("string_val", "1.0.2-chakra.0.0.4")}
    return nodes


def test_attributes_have_the_types_the_fork_insists_on() -> None:
    given: tuple[Node, ...] = (
        MemoryAccess("load", "cxl", 300, device=3),
        MemoryAccess("store", "remote", 4, store=True, after=(0,)),
        Collective("a2a", "all_to_all", 1 << 33, (1,), (1,)),
        Send("send", 5, 77, 9, (2,)),
        Receive("receive", 6, 78, 10),
        Compute("compute", 123, (3, 4)),
    )
    nodes = nodes_of(encoded(given, "llmservingsim", rank=2, num_dimensions=2))
    assert [node.id for node in nodes] == list(range(6))
    assert [node.type for node in nodes] == [2, 3, 8, 6, 7, 5]
    assert [list(node.data_deps) for node in nodes] == [[], [0], [1], [2], [], [3, 4]]
    assert [node.duration_micros for node in nodes] == [0] * 5 + [123]
    assert attributes(nodes[0]) == {
        "tensor_size": ("uint64_val", 300),
        "tensor_loc": ("uint32_val", 3),
        "tensor_device": ("uint32_val", 3),
    }
    assert attributes(nodes[1])["tensor_loc"] == ("uint32_val", 2)
    collective = attributes(nodes[2])
    kind, involved = collective.pop("involved_dim")
    assert (kind, list(involved.values)) == ("bool_list", [False, True])
    assert collective == {"comm_type": ("int64_val", 6), "comm_size": ("int64_val", 1 << 33)}
    sent = {"comm_size": ("int64_val", 77), "comm_tag": ("int32_val", 9)}
    assert attributes(nodes[3]) == {
        "comm_src": ("int32_val", 2),
        "comm_dst": ("int32_val", 5),
        **sent,
    }
    assert attributes(nodes[4])["comm_src"] == ("int32_val", 6)
    assert attributes(nodes[4])["comm_dst"] == ("int32_val", 2)


def test_node_types_of_both_dialects() -> None:
    given: tuple[Node, ...] = (
        Compute("c", 1),
        Collective("r", "reduce_scatter", 8),
        Send("s", 1, 8),
        Receive("v", 1, 8),
    )
    types = {d: [n.type for n in nodes_of(encoded(given, d, rank=0))] for d in DIALECTS}
    assert types == {"upstream": [4, 7, 5, 6], "llmservingsim": [5, 8, 6, 7]}


def test_upstreams_microseconds_add_up_to_half_of_one() -> None:
    given = [Compute("c", ns) for ns in (400, 400, 400, 2900, 1, 1, 1, 12_345)]
    micros = [node.duration_micros for node in nodes_of(encoded(given, "upstream", rank=0))]
    assert micros == [0, 1, 0, 3, 0, 0, 0, 12]
    assert sum(micros) == round(sum(node.ns for node in given) / 1000)


def test_upstreams_operations_make_whole_nanoseconds(tmp_path: Path) -> None:
    """The time it will compute: operations over their rate, in seconds, times 1e9, cut."""
    write_files(tmp_path, make_network(2), "upstream", exact_ns=True)
    system = json.loads((tmp_path / "system.json").read_text())
    assert system["roofline-enabled"] == 1
    rate = system["peak-perf"] * 1e12
    durations = [1, 2, 3, 999, 1000, 17_010_102, 10**9 + 7, (1 << 50) - 1]
    given = [Compute("c", ns) for ns in durations]
    nodes = nodes_of(encoded(given, "upstream", rank=0, exact_ns=True))
    for node, ns in zip(nodes, durations, strict=True):
        found = attributes(node)
        operations, size = found["num_ops"][1], found["tensor_size"][1]
        slowest = 1.0 * 1e9 * operations / size  # with the least memory bandwidth allowed
        assert int(operations / min(rate, slowest) * 1e9) == ns


def test_memory_beside_the_ranks(tmp_path: Path) -> None:
    memory = {"bandwidth_gbps": 60.0, "latency_ns": 250, "devices": 4}
    network = make_network(2, 2, cxl_memory=memory, local_memory={"bandwidth_gbps": 1008.0})
    write_files(tmp_path, network, "llmservingsim")
    found = json.loads((tmp_path / "memory.json").read_text())
    assert found["cxl_mem"] == {
        "memory-type": "MEMORY_POOL",
        "mem-bw": 60.0,
        "mem-latency": 250,
        "num-devices": 4,
    }
    assert found["local_mem"]["memory-type"] == "PER_NPU_MEMORY_EXPANSION"
    assert yaml.safe_load((tmp_path / "network.yml").read_text())["npus_count"] == [2, 2]
