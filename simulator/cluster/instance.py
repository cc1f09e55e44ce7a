"""One engine as the cluster sees it."""

from __future__ import annotations

from collections.abc import Callable

from simulator.build import grow_log
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.routed import cached_tokens, hand_over
from simulator.core.state import Engine
from simulator.invariants import check_invariants
from simulator.progress import NO_LIMIT, STEPS_BETWEEN_LOOKS, SimulationError, no_progress
from simulator.workloads import Workload


class Instance:
    """An engine whose requests are handed over to it; `max_in_flight` is the router's limit."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        workload: Workload,
        max_in_flight: int | None = None,
        check: bool = False,
    ) -> None:
        self.number = number
        self.engine = engine
        self.max_in_flight = max_in_flight or NO_LIMIT
        self.in_flight = 0
        self.event_ns = state.FOREVER
        self._workload, self._check = workload, check
        self._counters = engine.queues.counters[0]
        self._settings = engine.settings[0]
        self._batches = engine.batches.info

    @property
    def running(self) -> int:
        return int(self._counters.num_running)

    @property
    def waiting(self) -> int:
        """Requests it has and does not run, arrived at this very moment included."""
        return self.in_flight - self.running

    @property
    def max_num_seqs(self) -> int:
        return int(self._settings.max_num_seqs)

    def cached_tokens(self, r: int) -> int:
        return int(cached_tokens(self.engine, r))

    @property
    def has_requests(self) -> bool:
        """Whether it would form a batch now."""
        told = self._settings.async_scheduling and self._counters.finished_to_report
        return bool(self._counters.num_unfinished or told)

    def next_arrival_ns(self) -> int:
        """Of the requests it was given, the first that it has not queued yet."""
        if not self._counters.num_released:
            return state.FOREVER
        first = self.engine.queues.released[0]
        return int(self.engine.kv.infos.arrival_ns[first])

    def newest_batch(self) -> state.Record:
        counters = self._counters
        slot = counters.oldest_batch + counters.num_batches - 1
        return self._batches[slot % self._settings.batch_queue_size]

    def take(self, r: int, now_ns: int) -> None:
        """Request `r` arrives."""
        self.in_flight += 1
        hand_over(self.engine, r, now_ns)
        self._look_ahead()

    def took(self, instance: Instance) -> None:
        """One of the cluster's instances was given a request; `take` has seen to it."""

    def advance(self, until_ns: int, look: Callable[[], None] | None) -> list[int]:
        """Everything before `until_ns`; earlier if requests finish. Returns those that did.

        Raises SimulationError if it can make no progress.
        """
        max_steps = 1 if self._check else STEPS_BETWEEN_LOOKS if look else NO_LIMIT
        while True:
            if look:
                look()
            reason = advance(self.engine, until_ns, max_steps)
            self.verify()
            if reason == state.LOG_FULL:
                self.engine = grow_log(self.engine)
            elif reason in (state.STUCK, state.LIVELOCK):
                self.cannot_go_on(reason)
            elif reason != state.REACHED_UNTIL or self._next_event_ns() >= until_ns:
                break
        self._look_ahead()
        return self.finished()

    def verify(self) -> None:
        """The engine's invariants, where they are asked for."""
        if self._check:
            check_invariants(self.engine)

    def cannot_go_on(self, reason: int) -> None:
        why = no_progress(self.engine, self._workload, reason)
        raise SimulationError(f"instance {self.number}: {why}")

    def finished(self) -> list[int]:
        """Who has finished since this was asked last."""
        count = int(self._counters.num_reported)
        self._counters.num_reported = 0
        self.in_flight -= count
        done: list[int] = self.engine.queues.finished[:count].tolist()
        return done

    def _look_ahead(self) -> None:
        self.event_ns = self._next_event_ns()

    def _next_event_ns(self) -> int:
        """When it forms its next batch or takes in the next output; FOREVER: it has nothing to do."""
        counters = self._counters
        if counters.must_wait:
            return max(int(counters.now_ns), int(self._batches[counters.oldest_batch].end_ns))
        if counters.num_batches or self.has_requests:
            return int(counters.now_ns)
        return max(int(counters.now_ns), self.next_arrival_ns())
