"""A data-parallel group: instances that form their batches together (core/lockstep.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.build import grow_log
from simulator.cluster.instance import Instance
from simulator.core import state
from simulator.core.latency import Latency
from simulator.core.lockstep import apply, form, has_work, price, settle

DUMMY_TOKENS = 1  # what a replica without work runs, as vLLM's execute_dummy_batch


class Group:
    """The same to a cluster as an instance."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self.event_ns = state.FOREVER
        self._instances = list(instances)
        first = instances[0].engine
        self._depth = int(first.settings[0].batch_queue_size)
        self._latency = first.latency
        self._now_ns = 0
        self._ends: list[int] = []  # of the batches in flight
        self._must_wait = False

    def took(self, instance: Instance) -> None:
        """One of the cluster's instances was given a request."""
        if instance in self._instances:
            self._look_ahead()

    def advance(self, until_ns: int, look: Callable[[], None] | None) -> list[int]:
        """As Instance.advance."""
        done: list[int] = []
        while not done:
            if self._must_wait:
                if self._ends[0] >= until_ns:
                    break
                done = self._apply()
                continue
            if not self._ends and not any(one.has_requests for one in self._instances):
                arrival_ns = min(one.next_arrival_ns() for one in self._instances)
                if arrival_ns >= until_ns:
                    break
                self._now_ns = max(self._now_ns, arrival_ns)
            if self._now_ns >= until_ns:
                break
            if look:
                look()
            if not self._step():
                self._must_wait = bool(self._ends)
        self._look_ahead()
        return done

    def _step(self) -> bool:
        """Form a batch in every replica. Whether the next may be formed at once."""
        ready = [self._has_work(one) for one in self._instances]
        if not any(ready):
            return False
        tokens = [form(one.engine) for one in self._instances]
        start_ns = max(one.newest_batch().start_ns for one in self._instances)
        end_ns = int(start_ns)
        if any(tokens):
            run = run_tokens(self._latency, tokens)
            chunks = any(one.newest_batch().prefill_chunk for one in self._instances)
            share, mode_ns = share_of(run), common_mode_ns(self._latency, run, chunks)
            for one in self._instances:
                one.newest_batch().start_ns = start_ns
            alone = [
                price(one.engine, count, sum(run), share, mode_ns)
                for one, count in zip(self._instances, run, strict=True)
            ]
            end_ns = max(alone)
            self._free_stages_together()
        stuck = [settle(one.engine, end_ns) == state.STUCK for one in self._instances]
        self._ends.append(end_ns)
        if not any(tokens) and any(stuck):
            self._instances[stuck.index(True)].cannot_go_on(state.STUCK)
        return any(tokens) and len(self._ends) < self._depth and self._ends[0] > self._now_ns

    def _free_stages_together(self) -> None:
        """A pipeline stage starts its next batch when the slowest replica's has ended this one."""
        stages = [one.engine.stage_free_ns for one in self._instances]
        if len(stages[0]) > 1:
            slowest = np.max(stages, axis=0)
            for own in stages:
                own[:] = slowest

    def _has_work(self, one: Instance) -> bool:
        found = has_work(one.engine, self._now_ns)
        if found == state.LOG_FULL:
            one.engine = grow_log(one.engine)
            found = has_work(one.engine, self._now_ns)
        return bool(found)

    def _apply(self) -> list[int]:
        self._now_ns = max(self._now_ns, self._ends.pop(0))
        self._must_wait = False
        done: list[int] = []
        for one in self._instances:
            if apply(one.engine) == state.LIVELOCK:
                one.cannot_go_on(state.LIVELOCK)
            one.verify()
            done += one.finished()
        return done

    def _look_ahead(self) -> None:
        if self._must_wait:
            self.event_ns = self._ends[0]
        elif self._ends or any(one.has_requests for one in self._instances):
            self.event_ns = self._now_ns
        else:
            arrival_ns = min(one.next_arrival_ns() for one in self._instances)
            self.event_ns = max(arrival_ns, self._now_ns)


def run_tokens(latency: Latency, tokens: Sequence[int]) -> list[int]:
    """What every replica runs, as vLLM pads: to a graph's size each, and all to the largest where
    all replay graphs (`coordinate_batch_across_dp`)."""
    run = [count or DUMMY_TOKENS for count in tokens]
    if len(latency.padded_tokens) > max(run):  # a linear law has no table of it
        run = [int(latency.padded_tokens[count]) for count in run]
    if max(run) > latency.params[0].max_capture_size:
        return run
    return [max(run)] * len(run)


def common_mode_ns(latency: Latency, run: Sequence[int], chunks: bool) -> int:
    """What the mode adds that replicas agree on: of no graphs, piecewise and full ones, which each
    needs for its batch, the first (`_post_process_cudagraph_mode`)."""
    params = latency.params[0]
    if max(run) > params.max_capture_size:
        return int(params.eager_ns)
    return int(params.piecewise_ns if chunks else params.full_graph_ns)


def share_of(run: Sequence[int]) -> int:
    """The equal share whose exchange loads a link as much as these unequal ones.

    Where replicas run unequal numbers of tokens, vLLM's `all_gatherv` is a broadcast and its
    `reduce_scatterv` a reduction of every replica's part, all at once. Around NCCL's ring a link
    carries all parts but that of the replica it leads to, so the link to the smallest decides.
    """
    others = len(run) - 1
    return -(-(sum(run) - min(run)) // others) if others else run[0]
