"""A serving step as rows, as text and as what every rank runs."""

from __future__ import annotations

import pytest

from profiles.errors import InputError
from simulator.network.cost import collective_ns
from simulator.network.rank_trace import rows_trace
from simulator.network.replay import replay
from simulator.network.step_trace import LayerShapes, Row, step_rows
from simulator.network.text_trace import text_trace
from simulator.network.trace import Collective, Compute, MemoryAccess
from simulator.step_layers import LayerTime, StepSize
from tests.network.make import make_network
from tests.profiles.models import LLAMA_8B

SIZE = StepSize(
    step=7,
    num_tokens=10,
    num_requests=3,
    prefill_tokens=8,
    num_decodes=2,
    kv_prefill=16,
    kv_decode=100,
    load_ns=0,
    device_ns=1000,
)
NAMES = ("embedding", "qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj", "sampler")


def rows(ranks: int = 1, names: tuple[str, ...] = NAMES) -> list[Row]:
    layers = [LayerTime(name, -1, 100 + i) for i, name in enumerate(names)]
    shapes = LayerShapes(LLAMA_8B, ranks, 2, 2, 2)
    return step_rows(layers, SIZE, shapes, modelled=ranks > 1)


def test_sizes_of_a_rank() -> None:
    found = {row.name.rpartition("_")[0]: row for row in rows()}
    assert found["embedding"].input_bytes == 10 * 4
    assert found["embedding"].weight_bytes == 128256 * 4096 * 2
    assert found["qkv_proj"].weight_bytes == 4096 * (4096 + 2 * 1024) * 2
    assert found["qkv_proj"].output_bytes == 122880
    assert found["attention"].input_bytes == 10 * 4096 * 2 + 2 * 1024 * (16 + 100 + 10) * 2
    assert found["sampler"].output_bytes == 3 * 4
    of_four = {row.name.rpartition("_")[0]: row for row in rows(4)}
    assert of_four["qkv_proj"].weight_bytes * 4 == found["qkv_proj"].weight_bytes
    assert of_four["down_proj"].input_bytes * 4 == found["down_proj"].input_bytes
    assert of_four["down_proj"].output_bytes == found["down_proj"].output_bytes == 81920


def test_quantized_projections_are_smaller() -> None:
    shapes = LayerShapes(LLAMA_8B, 1, 2, 1, 1)
    assert shapes.sizes("qkv_proj", SIZE) == (81920, 4096 * 6144, 122880)
    assert shapes.sizes("embedding", SIZE)[1] == 128256 * 4096 * 2
    assert shapes.sizes("attention", SIZE)[0] == 81920 + 2 * 1024 * 126


def test_ranks_add_up_after_attentions_output_and_after_the_mlp() -> None:
    assert all(row.collective is None for row in rows(1))
    reduced = {row.name: row.collective_bytes for row in rows(4) if row.collective}
    assert reduced == {"o_proj_3": 81920, "down_proj_5": 81920}
    assert {row.collective for row in rows(4)} == {None, "all_reduce"}


def test_a_measured_all_reduce_gives_way_to_a_modelled_one() -> None:
    names = ("embedding", "all_reduce", "o_proj", "all_reduce", "sampler")
    assert [row.name for row in rows(1, names)] == [
        "embedding_0",
        "all_reduce_1",
        "o_proj_2",
        "all_reduce_3",
        "sampler_4",
    ]
    modelled = rows(2, names)
    assert [row.name for row in modelled] == ["embedding_0", "o_proj_1", "sampler_2"]
    assert [bool(row.collective) for row in modelled] == [True, True, False]


def test_a_step_takes_its_layers_and_its_collectives() -> None:
    network = make_network(4, 2, remote_memory={"bandwidth_gbps": 1.0, "latency_ns": 30})
    given = rows(4)
    layers = sum(row.ns for row in given)
    took = layers + 2 * collective_ns(network, "all_reduce", 81920, (0,))
    assert replay(rows_trace([given], network, host=False), network).rank_ns == (took,) * 8
    alone = make_network(1, remote_memory={"bandwidth_gbps": 1.0, "latency_ns": 30})
    host = replay(rows_trace([rows()], alone, host=True), alone)
    assert host.rank_ns == (30 + 40 + layers + 30 + 12,)


def test_every_node_follows_the_one_before_it() -> None:
    network = make_network(2, 3, remote_memory={"bandwidth_gbps": 256.0})
    trace = rows_trace([rows(2)], network, host=True)
    (nodes,) = set(trace.ranks)
    assert len(trace.ranks) == 6
    assert [node.after for node in nodes] == [(), *((i,) for i in range(len(nodes) - 1))]
    kinds = [type(node) for node in nodes]
    assert kinds == [
        MemoryAccess,
        *[Compute] * 4,
        Collective,
        *[Compute] * 2,
        Collective,
        Compute,
        MemoryAccess,
    ]
    assert {node.dims for node in nodes if isinstance(node, Collective)} == {(0,)}


def test_a_host_needs_memory() -> None:
    with pytest.raises(InputError, match="remote_memory"):
        rows_trace([rows()], make_network(1), host=True)


def test_text_has_a_header_and_eleven_fields_a_row() -> None:
    lines = text_trace(rows(4), make_network(4, 2, 2)).splitlines()
    assert lines[0] == "COLOCATED\t\tmodel_parallel_NPU_group: 1"
    assert int(lines[1]) == len(lines) - 3 == 7
    assert lines[2].split()[:3] == ["Layername", "comp_time", "input_loc"]
    fields = [line.split() for line in lines[3:]]
    assert {len(row) for row in fields} == {11}
    assert fields[0] == ["embedding_0", "100", "REMOTE:0", "40", "LOCAL", "262668288",
                         "LOCAL", "81920", "NONE", "0", "NONE"]  # fmt: skip
    assert fields[3] == ["o_proj_3", "103", "LOCAL", "20480", "LOCAL", "8388608",
                         "LOCAL", "81920", "ALLREDUCE:1,0,0", "81920", "NONE"]  # fmt: skip
    assert fields[-1][6:8] == ["REMOTE:0", "12"]
    assert "ALLREDUCE " in text_trace(rows(4), make_network(4))
