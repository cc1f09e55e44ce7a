"""The loop of a cluster: whatever happens next, an arrival or an event of an instance, in order of time.

Instances meet at the router, and at tiers that they share. The router looks at them when a request
arrives, or when it is told of them, and a session's next call arrives when the one before it has ended.
So an instance may run ahead of the others up to the next arrival, and where sessions or limits make
finished requests matter, or a tier is shared, up to the others' next event.
At one moment arrivals come before instances, and instances in their order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.build import build_engine, with_their_sessions
from simulator.cluster.group import Group
from simulator.cluster.instance import Instance
from simulator.cluster.result import merged
from simulator.cluster.router import Choose, ToldLeastLoaded, router
from simulator.core import state
from simulator.result import Result
from simulator.simulation import Prepared, PreparedCluster
from simulator.storage import build_tier
from simulator.workloads import Workload

Member = Instance | Group


def run_cluster(
    prepared: Prepared,
    cluster: PreparedCluster,
    *,
    steps: bool = False,
    look: Callable[[], None] | None = None,
) -> Result:
    """Simulate a prepared cluster. Raises SimulationError if an instance makes no progress."""
    checked = prepared.point.check_invariants
    workload = prepared.workload
    grouped = {number for group in cluster.groups for number in group}
    instances: list[Instance] = []
    refused: dict[int, str] | None = None
    between = _shared_tiers(cluster)
    for number, part in enumerate(cluster.instances):
        settings = replace(
            part.settings,
            log_events=steps,
            stride=not checked and number not in grouped,
            routed=True,
            report_finished=True,
            lockstep=number in grouped,
        )
        engine, refused_here = build_engine(
            workload, part.hashes, settings, part.latency, prepared.arrival_ns, between
        )
        limit = cluster.max_in_flight[number]
        instances.append(Instance(number, engine, workload, limit, checked, set(refused_here)))
        # Refused is who can run nowhere.
        everywhere = refused_here if refused is None else refused
        refused = {r: why for r, why in everywhere.items() if r in refused_here}
    refused = with_their_sessions(refused or {}, workload)
    members: list[Member] = [one for one in instances if one.number not in grouped]
    members += [Group([instances[number] for number in group]) for group in cluster.groups]
    choose = router(cluster.routing, "cluster")
    run = ClusterRun(
        workload, prepared.arrival_ns, instances, members, choose, refused, in_order=any(between)
    )
    run.run(look)
    return merged(prepared, cluster, instances, run.owner, run.arrival_ns, refused, steps=steps)


def _shared_tiers(cluster: PreparedCluster) -> list[state.Tier | None]:
    """One for all instances where a tier is shared, None where each has its own."""
    first = cluster.instances[0]
    return [
        build_tier(tier, first.settings.block_size, first.hashes) if tier.shared else None
        for tier in first.settings.tiers
    ]


class ClusterRun:
    """One run; `owner[r]` is the instance that took request r, -1 if none did."""

    def __init__(
        self,
        workload: Workload,
        arrival_ns: NDArray[np.int64],
        instances: Sequence[Instance],
        members: Sequence[Member],
        choose: Choose,
        refused: Mapping[int, str],
        *,
        in_order: bool = False,
    ) -> None:
        """`in_order`: instances meet at more than the router, so that none may run ahead."""
        self._instances, self._members, self._choose = instances, members, choose
        self._told = choose if isinstance(choose, ToldLeastLoaded) else None
        self.owner = np.full(len(workload), -1, np.int64)
        self.arrival_ns = arrival_ns.copy()
        self._tool_ns = workload.tool_ns
        self._next_call = np.full(len(workload), -1, np.int64)
        calls = np.flatnonzero(workload.session_parent >= 0)
        calls = calls[~np.isin(calls, list(refused))]
        self._next_call[workload.session_parent[calls]] = calls
        roots = [
            r for r in np.flatnonzero(workload.session_parent < 0).tolist() if r not in refused
        ]
        self._arrivals = [(int(arrival_ns[r]), r) for r in roots]
        heapq.heapify(self._arrivals)
        self._held: deque[int] = deque()  # at the router, because every instance has its limit
        limits = any(one.max_in_flight < state.FOREVER // 2 for one in instances)
        self._in_order = bool(len(calls)) or limits or in_order

    def run(self, look: Callable[[], None] | None = None) -> None:
        """To the end. Raises SimulationError if an instance makes no progress."""
        members = self._members
        while True:
            arrival_ns = self._arrivals[0][0] if self._arrivals else state.FOREVER
            events = [member.event_ns for member in members]
            first_ns = min(events)
            if arrival_ns == state.FOREVER and first_ns == state.FOREVER:
                return
            update_ns = self._told.next_update_ns if self._told else state.FOREVER
            if self._told and update_ns <= min(arrival_ns, first_ns):
                self._told.update(self._instances)
                continue
            if arrival_ns <= first_ns:
                self._route(heapq.heappop(self._arrivals)[1], arrival_ns)
                continue
            place = events.index(first_ns)
            until_ns = min(arrival_ns, update_ns)
            if self._in_order:
                events[place] = state.FOREVER
                until_ns = min(until_ns, max(min(events), first_ns + 1))
            member = members[place]
            for r in member.advance(until_ns, look):
                self._has_finished(r)

    def _route(self, r: int, now_ns: int) -> None:
        self.arrival_ns[r] = now_ns
        self._held.append(r)
        self._hand_out(now_ns)

    def _hand_out(self, now_ns: int) -> None:
        """First come, first served; who cannot be taken waits, and everybody behind."""
        while self._held:
            r = self._held[0]
            free = [
                one
                for one in self._instances
                if one.in_flight < one.max_in_flight and r not in one.refuses
            ]
            if not free:
                return
            self._held.popleft()
            chosen = free[self._choose(r, free, now_ns)]
            self.owner[r] = chosen.number
            chosen.take(r, now_ns)
            for member in self._members:
                member.took(chosen)

    def _has_finished(self, r: int) -> None:
        now_ns = int(self._instances[self.owner[r]].engine.kv.requests.last_token_ns[r])
        following = int(self._next_call[r])
        if following >= 0:
            release_ns = now_ns + int(self._tool_ns[r])
            heapq.heappush(self._arrivals, (release_ns, following))
        self._hand_out(now_ns)
