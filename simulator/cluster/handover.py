"""Requests between instances: who waits at a router, and whose prompt has been computed elsewhere."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.build import end_num_tokens
from simulator.cluster.instance import Instance
from simulator.cluster.router import Choose
from simulator.core import state
from simulator.kv_transfer import Handover
from simulator.simulation import PreparedCluster
from simulator.workloads import Workload


class Gate:
    """A router before some instances, and those it holds because every instance has its limit."""

    def __init__(self, instances: Sequence[Instance], choose: Choose) -> None:
        self.held: deque[int] = deque()
        self.instances, self.choose = instances, choose

    def hand_out(self, now_ns: int) -> Iterator[tuple[int, Instance]]:
        """First come, first served; who cannot be taken waits, and everybody behind.

        The caller lets the instance take the request before it asks for the next.
        """
        while self.held:
            r = self.held[0]
            free = [
                one
                for one in self.instances
                if one.in_flight < one.max_in_flight and r not in one.refuses
            ]
            if not free:
                return
            self.held.popleft()
            yield r, free[self.choose(r, free, now_ns)]


class HandingOver:
    """From prefill instances to decode instances."""

    def __init__(
        self,
        instances: Sequence[Instance],
        choose: Choose,
        cluster: PreparedCluster,
        workload: Workload,
        between: Handover,
    ) -> None:
        assert cluster.kv_transfer is not None
        self.gate = Gate([one for one in instances if one.role == "decode"], choose)
        self._prefill = [one for one in instances if one.role == "prefill"]
        self._proxy_ns = round(cluster.kv_transfer.proxy_ms * 1e6)
        self._token_is_theirs = cluster.kv_transfer.first_token == "prefill"
        self._transfers = between.transfers
        self._passed_on = passed_on(cluster, workload)
        if cluster.kv_transfer.connector == "NixlConnector":  # blocks are held until they are read
            self._transfers.has_stored[: len(workload)] = self._passed_on
        self._coming: list[tuple[int, int]] = []  # ns at a decode instance, request
        self._computed: dict[int, tuple[Instance, int]] = {}

    def passes_on(self, r: int, served_by: Instance) -> bool:
        """Whether the request, done with by that instance, goes on to another."""
        return served_by.role == "prefill" and bool(self._passed_on[r])

    def computed(self, r: int, served_by: Instance, now_ns: int) -> None:
        """Its prompt has been computed, and a first token sampled from it."""
        self._computed[r] = served_by, now_ns
        heapq.heappush(self._coming, (now_ns + self._proxy_ns, r))

    def next_ns(self) -> int:
        """When the next request arrives at the decode instances."""
        return self._coming[0][0] if self._coming else state.FOREVER

    def arrive(self) -> None:
        self.gate.held.append(heapq.heappop(self._coming)[1])

    def hand_out(self, now_ns: int) -> Iterator[tuple[int, Instance]]:
        for r, chosen in self.gate.hand_out(now_ns):
            served_by, token_ns = self._computed.pop(r)
            self._transfers.prefill_instance[r] = served_by.number
            if self._token_is_theirs:
                chosen.engine.kv.requests.num_tokens[r] += 1
                chosen.engine.kv.requests.last_token_ns[r] = token_ns
                chosen.engine.kv.infos.first_token_ns[r] = token_ns
                chosen.engine.queues.counters.num_generated_tokens[0] += 1
            yield r, chosen

    def refresh(self) -> None:
        """A read that has begun tells a prefill instance when its blocks become free."""
        for one in self._prefill:
            one.look_ahead()


def passed_on(cluster: PreparedCluster, workload: Workload) -> NDArray[np.bool_]:
    """Which requests prefill instances hand over: those that are not done with their token."""
    transfer = cluster.kv_transfer
    if transfer is None or transfer.first_token == "decode":
        return np.full(len(workload), transfer is not None)
    ends = [
        end_num_tokens(workload, part.max_model_len)
        for part, role in zip(cluster.instances, cluster.roles, strict=True)
        if role == "decode"
    ]
    passed: NDArray[np.bool_] = np.min(ends, axis=0) > workload.num_prompt_tokens + 1
    return passed
