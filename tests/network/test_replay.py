"""Whole traces in process: as the fork ran them, and traces that cannot run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.network.config import KINDS, CollectiveKind, NetworkConfig
from simulator.network.cost import collective_ns, send_ns
from simulator.network.replay import ReplayError, replay
from simulator.network.skewed import ends_ns
from simulator.network.trace import Collective, Compute, MemoryAccess, Node, Receive, Send, Trace
from tests.network.make import dimension, make_network, measured_network, rows

MEGA = 1 << 20
HOST = {"bandwidth_gbps": 256.0, "latency_ns": 100}
OWN = {"bandwidth_gbps": 1597.0, "latency_ns": 7}
CXL = {"bandwidth_gbps": 64.0, "latency_ns": 250, "devices": 4}
MILLION = 1_000_000

SERIAL = [
    MemoryAccess("a", "remote", MILLION),
    MemoryAccess("b", "remote", MILLION),
]


def alone(*nodes: Node) -> Trace:
    """One rank that works, another that has nothing to do."""
    return Trace((nodes, ()))


# Of each row of fork_semantics.csv that is no single access: the trace that was run.
SEMANTICS: dict[str, Trace] = {
    "2 independent remote loads same device serialise": alone(*SERIAL),
    "2 independent local loads overlap": alone(
        MemoryAccess("a", "local", MILLION), MemoryAccess("b", "local", MILLION)
    ),
    "2 cxl loads, different devices overlap": alone(
        MemoryAccess("a", "cxl", MILLION), MemoryAccess("b", "cxl", MILLION, device=1)
    ),
    "2 cxl loads same device serialise": alone(
        MemoryAccess("a", "cxl", MILLION), MemoryAccess("b", "cxl", MILLION)
    ),
    "2 NPUs same remote device: max": Trace(((SERIAL[0],), (SERIAL[1],))),
    "COMP dur ns": alone(Compute("a", 12345)),
    "2 indep COMP serialise": alone(Compute("a", 100), Compute("b", 200)),
    "COMP || ALLREDUCE overlap": Trace(
        ((Compute("a", MILLION), Collective("b", "all_reduce", MEGA)),) * 2
    ),
    "2 indep ALLREDUCE serialise per NPU": Trace(
        ((Collective("a", "all_reduce", MEGA), Collective("b", "all_reduce", MEGA)),) * 2
    ),
    # What waits by control alone does not wait.
    "ctrl_deps honoured?": alone(MemoryAccess("a", "remote", 256), Compute("b", 100)),
}


@pytest.mark.parametrize("row", rows("fork_semantics.csv"), ids=lambda row: row["case"])
def test_the_forks_queues_to_the_nanosecond(row: dict[str, str]) -> None:
    case = row["case"]
    access = re.match(r"MEM_(LOAD|STORE) (remote|local) (\d+)B bw(\d+) lat(\d+)$", case)
    if access is None:
        network = make_network(2, remote_memory=HOST, local_memory=OWN, cxl_memory=CXL)
        trace = SEMANTICS[case]
    else:
        what, place, num_bytes, bandwidth, latency = access.groups()
        memory = {"bandwidth_gbps": float(bandwidth), "latency_ns": int(latency)}
        network = make_network(2, **{f"{place}_memory": memory})
        node = MemoryAccess("a", place, int(num_bytes), what == "STORE")  # type: ignore[arg-type]
        trace = alone(node)
    assert replay(trace, network).total_ns == int(row["measured_ns"])


def test_the_recorded_demos() -> None:
    reduced: tuple[Node, ...] = (
        Compute("c", 1000),
        Collective("r", "all_reduce", MEGA, None, (0,)),
    )
    ring = replay(Trace((reduced,) * 4), make_network(4))
    assert ring.rank_ns == (34838,) * 4
    sender: tuple[Node, ...] = (Compute("c", 1000), Send("s", 1, MEGA, 0, (0,)))
    for after, ends in ((500, 21531), (2000, 23031)):
        receiver: tuple[Node, ...] = (Receive("r", 0, MEGA), Compute("c", after, (0,)))
        network = make_network(dimension(2, "FullyConnected"))
        assert replay(Trace((sender, receiver)), network).rank_ns == (21031, ends)


def test_a_message_waits_for_its_receive_and_a_receive_for_its_message() -> None:
    network = make_network(2)
    arrives = send_ns(network, 0, 1, MEGA)
    late: tuple[Node, ...] = (Compute("c", 10**6), Receive("r", 0, MEGA, 0, (0,)))
    found = replay(Trace(((Send("s", 1, MEGA),), late)), network)
    assert found.rank_ns == (arrives, 10**6)
    early: tuple[Node, ...] = (Receive("r", 0, MEGA), Compute("c", 5))
    found = replay(Trace(((Compute("c", 10), Send("s", 1, MEGA, 0, (0,))), early)), network)
    assert found.end_ns == ((10, 10 + arrives), (10 + arrives, 5))


def test_the_lowest_node_that_can_start_goes_first() -> None:
    nodes: tuple[Node, ...] = (
        Compute("a", 10),
        Compute("b", 20, (0,)),
        Compute("c", 5),
        Compute("d", 1, (0,)),
    )
    assert replay(Trace((nodes,)), make_network(1)).end_ns == ((10, 30, 35, 36),)


def test_groups_of_a_collective_are_on_their_own() -> None:
    network = make_network(2, 2)
    reduce = Collective("r", "all_reduce", MEGA, (0,), (0,))
    ranks = tuple((Compute("c", ns), reduce) for ns in (10, 500, 7, 7))
    took = collective_ns(network, "all_reduce", MEGA, (0,))
    early, late, *others = replay(Trace(ranks), network).rank_ns
    assert others == [7 + took] * 2
    assert (early, late) == (10 + took, 500 + took)


@pytest.mark.parametrize("row", rows("skewed.csv"), ids=lambda row: row["num_bytes"])
def test_ranks_that_come_one_after_the_other_leave_as_measured(row: dict[str, str]) -> None:
    dims = tuple(int(dim) for dim in row["dims"].split("|"))
    kind: Any = row["collective"]
    call = Collective("c", kind, int(row["num_bytes"]), dims, (0,))
    starts = map(int, row["starts_ns"].split("|"))
    trace = Trace(tuple((Compute("c", ns), call) for ns in starts))
    measured = tuple(map(int, row["measured_ns"].split("|")))
    assert replay(trace, measured_network(row)).rank_ns == measured


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["ring", "direct", "halvingDoubling"])
def test_message_by_message_is_the_formula_where_ranks_come_together(
    kind: CollectiveKind, implementation: str
) -> None:
    if (kind, implementation) == ("all_to_all", "halvingDoubling"):
        pytest.skip("there is none")
    network = make_network(4, dimension(8, "Switch"), **{kind: implementation})
    starts = np.zeros((4, 8), np.int64)
    starts[3, 7] = 1
    latest = ends_ns(network, kind, 999_999, (0, 1), starts).max()
    assert latest == collective_ns(network, kind, 999_999) + 1


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (((),), "ranks: got 1, expected the network's 2"),
        (((Compute("a", 1, (0,)),), ()), "after: got 0, expected the number of an earlier node"),
        (((Compute("a", 0),), ()), "ns: got 0, expected 1 to 2^50"),
        (((Send("a", 1, 8),), ()), "got '1 from 0 to 1, tag 0, 8 bytes', expected a receive of"),
        (((Send("a", 1, 8),), (Receive("b", 0, 9),)), "expected a receive of that size for each"),
        (((Send("a", 1, 8, 1),), (Receive("b", 0, 8, 2),)), "tag 1, 8 bytes"),
        (((), (Receive("b", 0, 8),)), "expected a send of that size for each"),
        (((Send("a", 0, 8),), ()), "peer: got 0, expected another rank, 0 to 1"),
        (
            ((Collective("a", "all_reduce", 8),), ()),
            "rank 1: collectives: got '0 over dimensions [0]",
        ),
        (
            ((Collective("a", "all_reduce", 8),), (Collective("a", "all_reduce", 9),)),
            "got 'all_reduce of 9 bytes as number 1', expected all_reduce of 8 bytes as on rank 0",
        ),
        (((Collective("a", "all_reduce", 0),), ()), "num_bytes: got 0"),
        (((Collective("a", "all_reduce", 8, (1,)),), ()), "dims: got [1]"),
        (((MemoryAccess("a", "cxl", 8),), ()), "expected a network with cxl_memory"),
        (((MemoryAccess("a", "remote", 8, device=1),), ()), "device: got 1, expected 0 to 0"),
    ],
)
def test_what_would_hang_is_refused(ranks: Any, says: str) -> None:
    network = make_network(2, remote_memory=HOST)
    with pytest.raises(InputError) as caught:
        replay(Trace(ranks), network)
    assert says in str(caught.value)


def test_a_collective_of_one_rank_is_refused() -> None:
    trace = Trace(((Collective("a", "all_reduce", 8, (0,)),),) * 2)
    with pytest.raises(InputError, match="dimensions of two ranks or more"):
        replay(trace, make_network(1, 2))


def test_ranks_that_wait_for_each_other_are_told() -> None:
    """Each sends only after it has received, which no count of messages shows."""
    ranks: Any = tuple(
        (Receive("r", 1 - rank, 8), Send("s", 1 - rank, 8, 0, (0,))) for rank in (0, 1)
    )
    with pytest.raises(ReplayError, match="rank 1 waits for 8 bytes from 0 with tag 0"):
        replay(Trace(ranks), make_network(2))


@st.composite
def traces(draw: st.DrawFn) -> tuple[Trace, NetworkConfig]:
    """Rounds that every rank goes through: work of uneven length, then a message or a collective."""
    network = make_network(
        dimension(draw(st.integers(1, 4)), draw(st.sampled_from(["Ring", "Switch"]))),
        dimension(draw(st.integers(1, 3))),
    )
    ranks: list[list[Node]] = [[] for _ in range(network.ranks)]

    def last(rank: int) -> tuple[int, ...]:
        return (len(ranks[rank]) - 1,) if ranks[rank] else ()

    for tag in range(draw(st.integers(0, 6))):
        for rank, nodes in enumerate(ranks):
            nodes.append(Compute("c", draw(st.integers(1, 10**5)), last(rank)))
        size = draw(st.integers(1, 1 << 22))
        dims = draw(st.sampled_from([(0,), (1,), (0, 1)]))
        if any(network.dimensions[dim].ranks > 1 for dim in dims):
            for rank, nodes in enumerate(ranks):
                nodes.append(Collective("a", "all_reduce", size, dims, last(rank)))
        if network.ranks > 1:
            src, dst = draw(st.permutations(range(network.ranks)))[:2]
            ranks[src].append(Send("s", dst, size, tag, last(src)))
            ranks[dst].append(Receive("r", src, size, tag, last(dst)))
    return Trace(tuple(map(tuple, ranks))), network


@given(given_trace=traces())
@examples(max_examples=150)
def test_every_trace_ends_after_its_longest_chain_of_work(
    given_trace: tuple[Trace, NetworkConfig],
) -> None:
    trace, network = given_trace
    found = replay(trace, network)
    for nodes, ends, rank_ns in zip(trace.ranks, found.end_ns, found.rank_ns, strict=True):
        work = sum(node.ns for node in nodes if isinstance(node, Compute))
        assert rank_ns >= work
        assert all(ends[i] >= ends[w] for i, node in enumerate(nodes) for w in node.after)
    assert found == replay(trace, network)
