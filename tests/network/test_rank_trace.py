"""A step over stages and replicas: what every rank runs, in process and as files."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from profiles.errors import InputError
from profiles.model import ModelConfig
from simulator.network.chakra import encoded
from simulator.network.cost import collective_ns, send_ns
from simulator.network.dialect import Dialect
from simulator.network.experts import GATHERED, Backend, ExpertRanks
from simulator.network.rank_trace import Axes, axes_of, rows_trace
from simulator.network.replay import replay
from simulator.network.text_trace import text_trace
from simulator.network.trace import Collective, Compute, MemoryAccess, Receive, Send
from tests.network.make import RECORDINGS, make_network
from tests.network.steps import MOE, links, replica_rows, step

SENT: dict[str, Any] = {"backend": "deepep_high_throughput", "model_type": "qwen3_moe"}
QWEN = MOE.model_copy(update={"model_type": "qwen3_moe"})
PREFIX: dict[Dialect, str] = {"llmservingsim": "llm", "upstream": "et"}
# What both programs answered, ns of every rank: the fork reads tokens from the host, upstream does not.
RECORDED: list[tuple[str, dict[str, Any], dict[Dialect, tuple[int, ...]]]] = [
    (
        "step_tp_pp",
        {"tensor": 2, "stages": 2},
        {
            "llmservingsim": (10240, 10310, 20878, 20948),
            "upstream": (10170, 10170, 20766, 20766),
        },
    ),
    (
        "step_gather",
        {"tensor": 2, "stages": 2, "replicas": 2},
        {
            "llmservingsim": (26913, 26983, 54224, 54294, 27123, 27193, 54504, 54574),
            "upstream": (26843, 26843, 54112, 54112, 26913, 26913, 54252, 54252),
        },
    ),
    (
        "step_all_to_all",
        {"tensor": 2, "replicas": 2, **SENT},
        {
            "llmservingsim": (28110, 28180, 28390, 28460),
            "upstream": (27998, 27998, 28138, 28138),
        },
    ),
    (
        "step_sequence_parallel",
        {"tensor": 2, "replicas": 2, "model_type": "qwen3_moe"},
        {
            "llmservingsim": (28158, 28228, 28438, 28508),
            "upstream": (28046, 28046, 28186, 28186),
        },
    ),
]


@pytest.mark.parametrize("dialect", ["llmservingsim", "upstream"])
@pytest.mark.parametrize(("name", "shape", "found"), RECORDED, ids=[one[0] for one in RECORDED])
def test_recorded_steps(
    name: str, shape: dict[str, Any], found: dict[Dialect, tuple[int, ...]], dialect: Dialect
) -> None:
    trace, network, axes, rows = step(host=dialect == "llmservingsim", **shape)
    assert replay(trace, network).rank_ns == found[dialect]
    dimensions = len(network.dimensions)
    for rank, nodes in enumerate(trace.ranks):
        file = RECORDINGS / name / f"{PREFIX[dialect]}.{rank}.et"
        assert encoded(nodes, dialect, rank=rank, num_dimensions=dimensions) == file.read_bytes()
    for replica, own in enumerate(rows):
        text = (RECORDINGS / name / f"trace.{replica}.txt").read_text()
        assert text_trace(own, network, axes) == text


def test_stages_are_cut_between_blocks_and_hand_on_hidden_states() -> None:
    trace, network, _, (rows,) = step(tensor=2, stages=2)
    assert [row.stage for row in rows] == [0] * 5 + [1] * 5
    hidden = 10 * 64 * 2
    sends = [node for nodes in trace.ranks for node in nodes if isinstance(node, Send)]
    receives = [node for nodes in trace.ranks for node in nodes if isinstance(node, Receive)]
    assert [(node.peer, node.num_bytes, node.tag) for node in sends] == [
        (2, hidden, 0),
        (3, hidden, 0),
    ]
    assert [(node.peer, node.num_bytes, node.tag) for node in receives] == [
        (0, hidden, 0),
        (1, hidden, 0),
    ]
    assert [type(nodes[0]) for nodes in trace.ranks] == [Compute, Compute, Receive, Receive]
    assert {node.dims for node in trace.ranks[3] if isinstance(node, Collective)} == {(0,)}
    took = sum(row.ns for row in rows) + send_ns(network, 0, 2, hidden)
    took += 4 * collective_ns(network, "all_reduce", hidden, (0,))
    assert replay(trace, network).total_ns == took


def test_the_host_is_at_the_first_and_the_last_stage() -> None:
    trace, _, _, _ = step(tensor=1, stages=2, host=True)
    kinds = [
        [type(node) for node in nodes if not isinstance(node, Compute)] for nodes in trace.ranks
    ]
    assert kinds == [[MemoryAccess, Send], [Receive, MemoryAccess]]


def test_nodes_of_a_rank_follow_each_other() -> None:
    trace, _, _, _ = step(tensor=2, stages=2, replicas=2)
    for nodes in trace.ranks:
        assert nodes[0].after == ()
        assert all(node.after == (i,) for i, (_, node) in enumerate(pairwise(nodes)))


def around(
    replicas: int, tensor: int, backend: Backend = GATHERED, model: ModelConfig = MOE
) -> list[tuple[str, int, tuple[str, ...]]]:
    """Of 10 tokens a replica, 128 bytes a hidden state, 8 experts and 2 of them a token."""
    before, after = ExpertRanks(replicas, tensor, backend).around(model, 2, 10)
    return [(e.kind, e.num_bytes, e.over) for e in (*before, *after)]


def test_who_exchanges_what_around_experts() -> None:
    """Qwen3-MoE's four tensor-parallel ranks take 3 of 10 tokens each where there are replicas."""
    both, data, tensor = ("tensor", "data"), ("data",), ("tensor",)
    assert around(1, 4) == around(1, 4, "deepep_high_throughput") == []
    assert around(2, 1) == [("all_gather", 10 * 144, data), ("reduce_scatter", 20 * 128, data)]
    assert around(2, 4) == [*around(2, 1), ("all_reduce", 10 * 128, tensor)]
    assert around(2, 4, model=QWEN) == [
        ("all_gather", 3 * 144, both),
        ("reduce_scatter", 8 * 3 * 128, both),
        ("all_gather", 3 * 128, tensor),
    ]
    assert around(2, 1, model=QWEN) == around(2, 1)
    sent = ("all_to_all", 10 * 2 * 128, both)
    assert around(2, 4, "deepep_low_latency") == [sent, sent]
    sent = ("all_to_all", 3 * 2 * 128, both)
    assert around(2, 4, "nixl_ep", QWEN) == [sent, sent, ("all_gather", 3 * 128, tensor)]
    assert all(row.collective is None for row in replica_rows(4, replicas=2) if row.after)


def test_collectives_involve_the_dimensions_of_their_ranks() -> None:
    trace, network, _, _ = step(tensor=2, stages=2, replicas=2)
    found = {node.kind: node.dims for node in trace.ranks[0] if isinstance(node, Collective)}
    assert found == {"all_reduce": (0,), "all_gather": (2,), "reduce_scatter": (2,)}
    trace, _, _, _ = step(tensor=2, stages=2, replicas=2, **SENT)
    found = {node.kind: node.dims for node in trace.ranks[0] if isinstance(node, Collective)}
    assert found == {"all_reduce": (0,), "all_to_all": (0, 2), "all_gather": (0,)}
    assert len(network.dimensions) == 3


def test_dimensions_of_one_rank_may_be_left_out() -> None:
    assert axes_of(links(2, 3), 2, 3, 1, "p") == Axes(0, 1, None)
    assert axes_of(links(3), 1, 3, 1, "p") == Axes(None, 0, None)
    assert axes_of(make_network(1, 3), 1, 3, 1, "p") == Axes(0, 1, None)
    assert axes_of(links(2, 3, 4), 2, 3, 4, "p") == Axes(0, 1, 2)
    assert axes_of(links(4, 2), 4, 1, 2, "p") == Axes(0, None, 1)
    assert axes_of(links(4, 2), 4, 1, 1, "p") == Axes(0, None, None)  # two copies
    for ranks in ((2,), (3, 2), (2, 3, 2), (6,)):
        with pytest.raises(InputError, match="2 tensor, 3 pipeline parallel ranks in this order"):
            axes_of(links(*ranks), 2, 3, 1, "p")


def test_messages_that_do_not_match_are_told() -> None:
    rows = replica_rows(1, 2)
    at = next(i for i, row in enumerate(rows) if row.stage == 1)
    rows[at] = replace(rows[at], input_bytes=7)
    network = links(2)
    trace = rows_trace([rows], network, Axes(None, 0), host=False)
    with pytest.raises(InputError, match="1280 bytes', expected a receive of that size for each"):
        replay(trace, network)


def test_text_names_stages_and_experts() -> None:
    _, network, axes, rows = step(tensor=2, stages=2, replicas=2, **SENT)
    lines = text_trace(rows[1], network, axes).splitlines()
    head = lines[0].split()
    assert head[:3] == ["COLOCATED", "model_parallel_NPU_group:", "2"]
    assert lines[3 + int(head[4])].split()[0].startswith("layernorm_")
    assert int(lines[1]) == len(lines) - 3
    markers = [line for line in lines if line.startswith("EXPERT")]
    spread = 5 * 2 * 128
    block = [
        f"EXPERT 0 ALLTOALL:1,0,1 {spread}",
        "EXPERT 1 NONE 0",
        f"EXPERT END ALLTOALL:1,0,1 {spread}",
    ]
    assert markers == block * 2
    rest = [line.split() for line in lines if "_rest" in line]
    assert [(row[1], row[8], row[9]) for row in rest] == [("1", "ALLGATHER:1,0,0", "640")] * 2
