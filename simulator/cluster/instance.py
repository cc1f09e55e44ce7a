"""One engine as the cluster sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from simulator.build import grow_log
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.routed import cached_tokens, hand_over
from simulator.core.state import Engine
from simulator.invariants import check_invariants
from simulator.progress import NO_LIMIT, STEPS_BETWEEN_LOOKS, SimulationError, no_progress
from simulator.together import next_event_ns
from simulator.workloads import Workload


def as_numbers(records: state.Records) -> NDArray[np.int64]:
    """Records of int64 fields as rows of numbers, in the order of the fields; the same memory."""
    numbers: NDArray[np.int64] = records.view(np.ndarray).view(np.int64)
    return numbers.reshape(len(records), -1)


def _places(dtype: np.dtype[np.void], *names: str) -> tuple[int, ...]:
    assert dtype.names is not None
    return tuple(dtype.names.index(name) for name in names)


NOW_NS, MUST_WAIT, NUM_BATCHES, OLDEST_BATCH, NUM_RUNNING, NUM_UNFINISHED = _places(
    state.COUNTERS,
    "now_ns",
    "must_wait",
    "num_batches",
    "oldest_batch",
    "num_running",
    "num_unfinished",
)
NUM_RELEASED, NUM_REPORTED, FINISHED_TO_REPORT = _places(
    state.COUNTERS, "num_released", "num_reported", "finished_to_report"
)
(IDLE,) = _places(state.COUNTERS, "idle")
(END_NS,) = _places(state.BATCH, "end_ns")


class Instance:
    """An engine whose requests are handed over to it; `max_in_flight` is the router's limit."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        workload: Workload,
        max_in_flight: int | None = None,
        check: bool = False,
        refuses: Iterable[int] = (),
        role: str = "both",
    ) -> None:
        self.number = number
        self.role = role
        self.refuses = set(refuses)  # requests that can never run here
        self.engine = engine
        self.max_in_flight = max_in_flight or NO_LIMIT
        self.in_flight = 0
        self.event_ns = state.FOREVER
        self._workload, self._check = workload, check
        # Plain numbers: a field of a record takes Python twenty times as long to read.
        self._counters = as_numbers(engine.queues.counters)[0]
        self._batches = as_numbers(engine.batches.info)
        self._arrival_ns = engine.kv.infos.arrival_ns
        self._released = engine.queues.released
        settings = engine.settings[0]
        self.max_num_seqs = int(settings.max_num_seqs)
        self._async_scheduling = bool(settings.async_scheduling)
        self._depth = int(settings.batch_queue_size)
        self._offloads = bool(settings.kv_connector == state.OFFLOADING)

    @property
    def running(self) -> int:
        return int(self._counters[NUM_RUNNING])

    @property
    def waiting(self) -> int:
        """Requests it has and does not run, arrived at this very moment included."""
        return self.in_flight - self.running

    @property
    def queued(self) -> int:
        """Requests that its scheduler has queued: without those that it takes in with its next step."""
        return int(self._counters[NUM_UNFINISHED]) - self.running

    def cached_tokens(self, r: int) -> int:
        return int(cached_tokens(self.engine, r))

    @property
    def has_requests(self) -> bool:
        """Whether it would form a batch now."""
        told = (self._async_scheduling or self._offloads) and self._counters[FINISHED_TO_REPORT]
        return bool(self._counters[NUM_UNFINISHED] or told)

    def next_arrival_ns(self) -> int:
        """Of the requests it was given, the first that it has not queued yet."""
        if not self._counters[NUM_RELEASED]:
            return state.FOREVER
        return int(self._arrival_ns[self._released[0]])

    def newest_batch(self) -> state.Record:
        counters = self.engine.queues.counters[0]
        slot = counters.oldest_batch + counters.num_batches - 1
        return self.engine.batches.info[slot % self._depth]

    def take(self, r: int, now_ns: int) -> None:
        """Request `r` arrives."""
        self.in_flight += 1
        hand_over(self.engine, r, now_ns)
        self.look_ahead()

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
        self.look_ahead()
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
        count = int(self._counters[NUM_REPORTED])
        if not count:
            return []
        self._counters[NUM_REPORTED] = 0
        self.in_flight -= count
        done: list[int] = self.engine.queues.finished[:count].tolist()
        return done

    def look_ahead(self) -> None:
        """When it does something next."""
        self.event_ns = self._next_event_ns()

    def _next_event_ns(self) -> int:
        """When it forms its next batch or takes in the next output; FOREVER: it has nothing to do."""
        counters = self._counters
        now_ns = int(counters[NOW_NS])
        if counters[MUST_WAIT]:
            return max(now_ns, int(self._batches[counters[OLDEST_BATCH], END_NS]))
        if counters[IDLE]:
            return next_event_ns(self.engine)
        if counters[NUM_BATCHES] or self.has_requests:
            return now_ns
        return max(now_ns, self.next_arrival_ns())
