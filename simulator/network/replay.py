"""A whole trace in this process: when every node starts and ends.

Each rank runs one compute node and one collective or send at a time; receives and memory accesses
are never held back. What a collective or a message takes does not depend on what else is under way:
links are never shared.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import prod

import numpy as np

from simulator.network.config import MemoryNode, NetworkConfig
from simulator.network.cost import collective_ns, send_ns
from simulator.network.skewed import ends_ns
from simulator.network.trace import (
    Collective,
    Compute,
    MemoryAccess,
    Node,
    Receive,
    Send,
    Trace,
    check_trace,
)


class ReplayError(RuntimeError):
    """A trace that passes its checks and still comes to a stop; says who waits for what."""


@dataclass(frozen=True)
class Replay:
    """`rank_ns`: when each rank has ended; `end_ns[rank][node]`: when each node has."""

    rank_ns: tuple[int, ...]
    end_ns: tuple[tuple[int, ...], ...]

    @property
    def total_ns(self) -> int:
        return max(self.rank_ns)


@dataclass
class _Rank:
    waits: list[int]  # by node: how many nodes it still waits for
    followers: list[list[int]]  # by node: who waits for it
    ends: list[int]
    ready: list[int] = field(default_factory=list)  # a heap of nodes
    computing: bool = False
    communicating: bool = False
    left: int = 0


def replay(trace: Trace, network: NetworkConfig, source: str = "trace") -> Replay:
    """Run a trace. Raises InputError for one that cannot run, ReplayError for one that stops."""
    check_trace(trace, network, source)
    return _Replayer(trace, network).run()


class _Replayer:
    def __init__(self, trace: Trace, network: NetworkConfig) -> None:
        self.network = network
        self.nodes = trace.ranks
        self.ranks = [_fresh(nodes) for nodes in trace.ranks]
        self.now = 0
        self.events: list[tuple[int, int, int]] = []  # end, rank, node
        self.free_at: dict[tuple[str, int], int] = defaultdict(int)
        # Who has come to a collective, by dimensions, group and how many they called before.
        self.met: dict[
            tuple[tuple[int, ...], tuple[int, ...], int], list[tuple[int, int, int]]
        ] = {}
        self.calls: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        # Messages that came before they were asked for, and receives that wait for theirs.
        self.arrivals: dict[tuple[int, int, int, int], deque[int]] = defaultdict(deque)
        self.posted: dict[tuple[int, int, int, int], deque[int]] = defaultdict(deque)
        self.costs: dict[tuple[str, int, tuple[int, ...]], int] = {}

    def run(self) -> Replay:
        for rank in range(len(self.ranks)):
            self.start_ready(rank)
        while self.events:
            self.now, rank, node = heappop(self.events)
            self.end(rank, node)
        if any(rank.left for rank in self.ranks):
            raise ReplayError(self.stopped())
        ends = tuple(tuple(rank.ends) for rank in self.ranks)
        return Replay(tuple(max(own, default=0) for own in ends), ends)

    def start_ready(self, rank: int) -> None:
        state, held = self.ranks[rank], []
        while state.ready:
            node = heappop(state.ready)
            if self.is_free(state, self.nodes[rank][node]):
                self.start(rank, node)
            else:
                held.append(node)
        for node in held:
            heappush(state.ready, node)

    @staticmethod
    def is_free(state: _Rank, node: Node) -> bool:
        if isinstance(node, Compute):
            return not state.computing
        return not (state.communicating and isinstance(node, Collective | Send))

    def start(self, rank: int, i: int) -> None:
        node, state = self.nodes[rank][i], self.ranks[rank]
        match node:
            case Compute():
                state.computing = True
                self.ends_at(self.now + node.ns, rank, i)
            case Collective():
                state.communicating = True
                self.meet(rank, i, node)
            case Send():
                state.communicating = True
                arrival = self.now + send_ns(self.network, rank, node.peer, node.num_bytes)
                self.ends_at(arrival, rank, i)
                message = (rank, node.peer, node.tag, node.num_bytes)
                if self.posted[message]:
                    self.ends_at(arrival, node.peer, self.posted[message].popleft())
                else:
                    self.arrivals[message].append(arrival)
            case Receive():
                message = (node.peer, rank, node.tag, node.num_bytes)
                if self.arrivals[message]:
                    arrival = self.arrivals[message].popleft()
                    self.ends_at(max(self.now, arrival), rank, i)
                else:
                    self.posted[message].append(i)
            case MemoryAccess():
                self.ends_at(self.access(node), rank, i)

    def meet(self, rank: int, i: int, node: Collective) -> None:
        dims = self.network.involved(node.dims)
        call = self.calls[rank, dims]
        self.calls[rank, dims] += 1
        meeting = (dims, self.network.group(rank, dims), call)
        come = self.met.setdefault(meeting, [])
        come.append((rank, i, self.now))
        shape = [self.network.dimensions[dim].ranks for dim in dims]
        if len(come) < prod(shape):
            return
        del self.met[meeting]
        places = [tuple(self.network.address(other)[dim] for dim in dims) for other, _, _ in come]
        starts = np.zeros(shape, np.int64)
        for place, (_, _, ns) in zip(places, come, strict=True):
            starts[place] = ns
        if come[0][2] == self.now:
            cost = (node.kind, node.num_bytes, dims)
            if cost not in self.costs:
                self.costs[cost] = collective_ns(self.network, node.kind, node.num_bytes, dims)
            ends = starts + self.costs[cost]
        else:
            ends = ends_ns(self.network, node.kind, node.num_bytes, dims, starts)
        for place, (other, its, _) in zip(places, come, strict=True):
            self.ends_at(int(ends[place]), other, its)

    def access(self, node: MemoryAccess) -> int:
        memory: MemoryNode = getattr(self.network, f"{node.place}_memory")
        took = memory.access_ns(node.num_bytes)
        if node.place == "local":
            return self.now + took
        device = (node.place, node.device)
        self.free_at[device] = max(self.now, self.free_at[device]) + took
        return self.free_at[device]

    def ends_at(self, ns: int, rank: int, node: int) -> None:
        heappush(self.events, (ns, rank, node))

    def end(self, rank: int, i: int) -> None:
        state, node = self.ranks[rank], self.nodes[rank][i]
        state.ends[i] = self.now
        state.left -= 1
        if isinstance(node, Compute):
            state.computing = False
        elif isinstance(node, Collective | Send):
            state.communicating = False
        for follower in state.followers[i]:
            state.waits[follower] -= 1
            if not state.waits[follower]:
                heappush(state.ready, follower)
        self.start_ready(rank)

    def stopped(self) -> str:
        waiting = [
            f"rank {rank} has {state.left} nodes left"
            for rank, state in enumerate(self.ranks)
            if state.left
        ]
        for (dims, _, call), come in self.met.items():
            ranks = ", ".join(str(rank) for rank, _, _ in come)
            waiting.append(
                f"collective {call + 1} over dimensions {list(dims)} has only ranks {ranks}"
            )
        for (src, dst, tag, size), posted in self.posted.items():
            if posted:
                waiting.append(f"rank {dst} waits for {size} bytes from {src} with tag {tag}")
        return f"the trace stops at {self.now} ns: " + "; ".join(waiting)


def _fresh(nodes: tuple[Node, ...]) -> _Rank:
    followers: list[list[int]] = [[] for _ in nodes]
    waits = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for earlier in set(node.after):
            followers[earlier].append(i)
            waits[i] += 1
    ready = [i for i, count in enumerate(waits) if not count]
    return _Rank(waits, followers, [0] * len(nodes), ready=ready, left=len(nodes))
