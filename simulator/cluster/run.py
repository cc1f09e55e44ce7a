"""The loop of a cluster: whatever happens next, an arrival or an event of an instance, in order of time.

Instances meet at the router, and at tiers that they share. The router looks at them when a request
arrives, or when it is told of them, and a session's next call arrives when the one before it has ended.
So an instance may run ahead of the others up to the next arrival, and where sessions or limits make
finished requests matter, a tier is shared or KV caches are handed over, up to the others' next event.

Where prompts are computed apart, a request arrives twice: at a prefill instance, and at a decode
instance when its prompt has been computed.
At one moment arrivals come before instances, and instances in their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.build import build_engine, with_their_sessions
from simulator.cluster.group import Group
from simulator.cluster.handover import Gate, HandingOver
from simulator.cluster.instance import Instance
from simulator.cluster.result import merged
from simulator.cluster.router import ToldLeastLoaded, router
from simulator.core import state
from simulator.kv_transfer import Handover, new_handover
from simulator.progress import SimulationError
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
    shared = _shared_tiers(cluster)
    between = None
    if cluster.kv_transfer is not None:
        between = new_handover(cluster.parts, len(workload))
    grouped = {number for group in cluster.groups for number in group}
    instances: list[Instance] = []
    reasons: list[dict[int, str]] = []
    for number, part in enumerate(cluster.instances):
        settings = replace(
            part.settings,
            log_events=steps,
            stride=not checked and number not in grouped,
            routed=True,
            report_finished=True,
            lockstep=number in grouped,
            kv_transfer=cluster.parts[number],
        )
        engine, refused_here = build_engine(
            workload,
            part.hashes,
            settings,
            part.latency,
            prepared.arrival_ns,
            shared,
            between,
            number,
        )
        limit = cluster.max_in_flight[number]
        role = cluster.roles[number]
        instances.append(Instance(number, engine, workload, limit, checked, refused_here, role))
        reasons.append(refused_here)
    refused = with_their_sessions(_refused(reasons, cluster.roles), workload)
    for instance in instances:
        if instance.role == "prefill":  # what no decode instance can go on with
            instance.refuses |= _by_all(reasons, cluster.roles, "decode").keys()
    members: list[Member] = [one for one in instances if one.number not in grouped]
    members += [Group([instances[number] for number in group]) for group in cluster.groups]
    run = ClusterRun(
        workload,
        prepared.arrival_ns,
        instances,
        members,
        cluster,
        refused,
        between,
        in_order=any(shared),
    )
    run.run(look)
    return merged(
        prepared,
        cluster,
        instances,
        run.owner,
        run.prefilled_by,
        run.arrival_ns,
        refused,
        steps=steps,
    )


def _by_all(reasons: list[dict[int, str]], roles: Sequence[str], role: str) -> dict[int, str]:
    """Whom all instances with that role refuse, with the first one's reason."""
    first, *others = [why for why, one in zip(reasons, roles, strict=True) if one == role]
    return {r: why for r, why in first.items() if all(r in other for other in others)}


def _refused(reasons: list[dict[int, str]], roles: Sequence[str]) -> dict[int, str]:
    """Who can run nowhere: neither on one instance, nor on two after each other."""
    alone = _by_all(reasons, roles, "both") if "both" in roles else None
    if "prefill" not in roles:
        return alone or {}
    passed_on = _by_all(reasons, roles, "prefill") | _by_all(reasons, roles, "decode")
    if alone is None:
        return passed_on
    return {r: why for r, why in alone.items() if r in passed_on}


def _shared_tiers(cluster: PreparedCluster) -> list[state.Tier | None]:
    """One for all instances where a tier is shared, None where each has its own."""
    first = cluster.instances[0]
    return [
        build_tier(tier, first.settings.block_size, first.hashes) if tier.shared else None
        for tier in first.settings.tiers
    ]


class ClusterRun:
    """One run; `owner[r]` is the instance that served request r to its end, `prefilled_by[r]` the one
    that computed its prompt and handed it over; -1 if none did."""

    def __init__(
        self,
        workload: Workload,
        arrival_ns: NDArray[np.int64],
        instances: Sequence[Instance],
        members: Sequence[Member],
        cluster: PreparedCluster,
        refused: Mapping[int, str],
        between: Handover | None,
        *,
        in_order: bool = False,
    ) -> None:
        """`in_order`: instances meet at more than the router, so that none may run ahead."""
        self._instances, self._members = instances, members
        self.owner = np.full(len(workload), -1, np.int64)
        self.prefilled_by = np.full(len(workload), -1, np.int64)
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
        first = [one for one in instances if one.role != "decode"]
        self._gate = Gate(first, router(cluster.routing, "cluster"))
        limits = any(one.max_in_flight < state.FOREVER // 2 for one in instances)
        self._in_order = bool(len(calls)) or limits or in_order or between is not None
        self._handover: HandingOver | None = None
        if between is not None:
            choose = router(cluster.routing, "cluster")
            self._handover = HandingOver(instances, choose, cluster, workload, between)
        gates = [self._gate, *([self._handover.gate] if self._handover else [])]
        self._told = [
            (gate.choose, gate.instances)
            for gate in gates
            if isinstance(gate.choose, ToldLeastLoaded)
        ]

    def run(self, look: Callable[[], None] | None = None) -> None:
        """To the end. Raises SimulationError if an instance makes no progress."""
        members, handover = self._members, self._handover
        while True:
            arrival_ns = self._arrivals[0][0] if self._arrivals else state.FOREVER
            passed_ns = handover.next_ns() if handover else state.FOREVER
            events = [member.event_ns for member in members]
            first_ns = min(events)
            update_ns = min((told.next_update_ns for told, _ in self._told), default=state.FOREVER)
            coming_ns = min(arrival_ns, passed_ns)
            if min(coming_ns, first_ns) == state.FOREVER:
                break
            if update_ns <= min(coming_ns, first_ns):
                for told, instances in self._told:
                    if told.next_update_ns == update_ns:
                        told.update(instances)
                continue
            if coming_ns <= first_ns:
                if passed_ns <= arrival_ns:
                    assert handover is not None
                    handover.arrive()
                    self._hand_on(passed_ns)
                else:
                    self._route(heapq.heappop(self._arrivals)[1], arrival_ns)
                continue
            place = events.index(first_ns)
            until_ns = min(coming_ns, update_ns)
            if self._in_order:
                events[place] = state.FOREVER
                until_ns = min(until_ns, max(min(events), first_ns + 1))
            member = members[place]
            for r in member.advance(until_ns, look):
                self._has_finished(r)
            if handover:
                handover.refresh()
        if any(one.in_flight for one in self._instances):
            raise SimulationError("instances wait for each other, and nothing can happen any more")

    def _route(self, r: int, now_ns: int) -> None:
        self.arrival_ns[r] = now_ns
        self._gate.held.append(r)
        self._hand_out(now_ns)

    def _hand_out(self, now_ns: int) -> None:
        for r, chosen in self._gate.hand_out(now_ns):
            self.owner[r] = chosen.number
            self._take(r, chosen, now_ns)

    def _hand_on(self, now_ns: int) -> None:
        if self._handover:
            for r, chosen in self._handover.hand_out(now_ns):
                self.prefilled_by[r], self.owner[r] = self.owner[r], chosen.number
                self._take(r, chosen, now_ns)

    def _take(self, r: int, chosen: Instance, now_ns: int) -> None:
        chosen.take(r, now_ns)
        for member in self._members:
            member.took(chosen)

    def _has_finished(self, r: int) -> None:
        served_by = self._instances[self.owner[r]]
        now_ns = int(served_by.engine.kv.requests.last_token_ns[r])
        if self._handover and self._handover.passes_on(r, served_by):
            self._handover.computed(r, served_by, now_ns)
        else:
            following = int(self._next_call[r])
            if following >= 0:
                release_ns = now_ns + int(self._tool_ns[r])
                heapq.heappush(self._arrivals, (release_ns, following))
        self._hand_on(now_ns)
        self._hand_out(now_ns)
