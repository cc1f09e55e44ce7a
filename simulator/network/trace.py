"""What every rank does, as a graph of nodes: the form that is replayed, written and checked.

A node is known by its place in its rank's tuple, which is also its id in a written trace; it starts
when the nodes it waits for have ended. Of the nodes that could start the lowest goes first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from profiles.errors import InputError
from simulator.network.config import KINDS, MAX_BYTES, CollectiveKind, NetworkConfig

Place = Literal["local", "remote", "cxl"]


@dataclass(frozen=True, slots=True)
class Compute:
    """Runs for `ns`; one at a time on a rank."""

    name: str
    ns: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """Over the dimensions `dims`, None for all; one collective or send at a time on a rank."""

    name: str
    kind: CollectiveKind
    num_bytes: int
    dims: tuple[int, ...] | None = None
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """To rank `peer`; ends when it has arrived there."""

    name: str
    peer: int
    num_bytes: int
    tag: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Receive:
    """From rank `peer`, a send of the same tag and size; any number at a time."""

    name: str
    peer: int
    num_bytes: int
    tag: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """A load or a store; accesses to one device of remote or CXL memory wait for each other."""

    name: str
    place: Place
    num_bytes: int
    store: bool = False
    device: int = 0
    after: tuple[int, ...] = ()


Node = Compute | Collective | Send | Receive | MemoryAccess


@dataclass(frozen=True)
class Trace:
    """The nodes of every rank."""

    ranks: tuple[tuple[Node, ...], ...]


def check_trace(trace: Trace, network: NetworkConfig, source: str = "trace") -> None:
    """What ASTRA-Sim would hang on without a word, or crash on. Raises InputError.

    Every node waits for earlier nodes only; every send has a receive of its tag, ranks and size;
    the ranks of a collective call the same ones in the same order.
    """
    if len(trace.ranks) != network.ranks:
        raise InputError(source, "ranks", len(trace.ranks), f"the network's {network.ranks}")
    sent: Counter[tuple[int, int, int, int]] = Counter()
    received: Counter[tuple[int, int, int, int]] = Counter()
    for rank, nodes in enumerate(trace.ranks):
        for i, node in enumerate(nodes):
            _check_node(node, i, rank, network, f"{source}, rank {rank}, node {i} {node.name!r}")
            if isinstance(node, Send):
                sent[rank, node.peer, node.tag, node.num_bytes] += 1
            elif isinstance(node, Receive):
                received[node.peer, rank, node.tag, node.num_bytes] += 1
    for given, other, what in ((sent, received, "receive"), (received, sent, "send")):
        for (src, dst, tag, num_bytes), count in given.items():
            if other[src, dst, tag, num_bytes] != count:
                value = f"{count} from {src} to {dst}, tag {tag}, {num_bytes} bytes"
                raise InputError(source, "messages", value, f"a {what} of that size for each")
    _check_collectives(trace, network, source)


def _check_node(node: Node, i: int, rank: int, network: NetworkConfig, source: str) -> None:
    for waits_for in node.after:
        if not 0 <= waits_for < i:
            raise InputError(source, "after", waits_for, "the number of an earlier node")
    if isinstance(node, Compute):
        if not 1 <= node.ns <= 1 << 50:
            raise InputError(source, "ns", node.ns, "1 to 2^50 ns")
        return
    if not 1 <= node.num_bytes <= MAX_BYTES:
        raise InputError(source, "num_bytes", node.num_bytes, f"1 to {MAX_BYTES} (2^40) bytes")
    if isinstance(node, Collective):
        if node.kind not in KINDS:
            raise InputError(source, "kind", node.kind, f"one of {', '.join(KINDS)}")
        dims = network.involved(node.dims)
        if all(network.dimensions[dim].ranks == 1 for dim in dims):
            raise InputError(source, "dims", list(dims), "dimensions of two ranks or more in all")
        used = {network.implementation(node.kind, dim) for dim in dims}
        least = 2 * network.ranks if "halvingDoubling" in used else 1
        if node.kind != "all_gather" and node.num_bytes < least:
            expected = f"at least {least}, halvingDoubling halves it for {network.ranks} ranks"
            raise InputError(source, "num_bytes", node.num_bytes, expected)
    elif isinstance(node, MemoryAccess):
        memory = getattr(network, f"{node.place}_memory")
        if memory is None:
            raise InputError(source, "place", node.place, f"a network with {node.place}_memory")
        if not 0 <= node.device < memory.devices:
            raise InputError(source, "device", node.device, f"0 to {memory.devices - 1}")
    elif not 0 <= node.peer < network.ranks or node.peer == rank:
        raise InputError(source, "peer", node.peer, f"another rank, 0 to {network.ranks - 1}")


def _check_collectives(trace: Trace, network: NetworkConfig, source: str) -> None:
    """Ranks that meet in a collective call the same ones in the same order."""
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, list[Collective]]] = {}
    groups = {
        network.involved(node.dims)
        for nodes in trace.ranks
        for node in nodes
        if isinstance(node, Collective)
    }
    for rank, nodes in enumerate(trace.ranks):
        calls = [replace(n, name="", after=()) for n in nodes if isinstance(n, Collective)]
        for dims in groups:
            mine = [call for call in calls if network.involved(call.dims) == dims]
            other, theirs = first.setdefault((dims, network.group(rank, dims)), (rank, mine))
            if len(mine) != len(theirs):
                value = f"{len(mine)} over dimensions {list(dims)}"
                expected = f"{len(theirs)} as on rank {other}, which takes part in them"
                raise InputError(f"{source}, rank {rank}", "collectives", value, expected)
            for at, (ours, its) in enumerate(zip(mine, theirs, strict=True)):
                if (ours.kind, ours.num_bytes) != (its.kind, its.num_bytes):
                    value = f"{ours.kind} of {ours.num_bytes} bytes as number {at + 1}"
                    expected = f"{its.kind} of {its.num_bytes} bytes as on rank {other}"
                    raise InputError(f"{source}, rank {rank}", "collectives", value, expected)
