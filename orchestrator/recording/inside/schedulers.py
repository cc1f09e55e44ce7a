"""vLLM's schedulers, logging what they decide. Given to the engine by name (`scheduler_cls`).

Nothing is decided here: every method calls vLLM's and notes what came of it.
"""

from __future__ import annotations

from collections import deque
from time import monotonic_ns
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from orchestrator.recording.inside.log import (
    ADDED,
    SCHEDULED,
    UPDATED,
    log,
    request_number,
    write_part,
)


class _Logging:
    """Wraps the four methods through which the engine drives a scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_steps = 0
        self._in_flight: deque[tuple[Any, int]] = deque()

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        log.extend((ADDED, request_number(request.request_id), monotonic_ns()))

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        start = monotonic_ns()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        end = monotonic_ns()
        scheduled = output.num_scheduled_tokens
        preempted = output.preempted_req_ids or ()
        log.extend((SCHEDULED, self._num_steps, start, end, *self._sizes()))
        log.extend((len(scheduled), len(preempted)))
        requests = self.requests  # type: ignore[attr-defined]
        for name, num_tokens in scheduled.items():
            # vLLM has advanced it already.
            computed = requests[name].num_computed_tokens - num_tokens
            log.extend((request_number(name), num_tokens, computed))
        log.extend(sorted(map(request_number, preempted)))
        self._in_flight.append((output, self._num_steps))
        self._num_steps += 1
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        output, step = self._in_flight.popleft()
        assert output is scheduler_output, "batches are applied in the order they were formed"
        start = monotonic_ns()
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        end = monotonic_ns()
        finished = [
            request_number(one.request_id)
            for of_client in outputs.values()
            for one in of_client.outputs
            if one.finish_reason is not None
        ]
        log.extend((UPDATED, step, start, end, *self._sizes(), len(finished)))
        log.extend(finished)
        return outputs

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """The driver resets the cache before and after the run: the log is cut there."""
        write_part()
        self._num_steps = 0
        return super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]

    def _sizes(self) -> tuple[int, int, int]:
        """Requests running and waiting, and free blocks."""
        waiting = len(self.waiting)  # type: ignore[attr-defined]
        waiting += len(getattr(self, "skipped_waiting", ()))
        manager = self.kv_cache_manager  # type: ignore[attr-defined]
        free = manager.block_pool.get_num_free_blocks()
        return len(self.running), waiting, free  # type: ignore[attr-defined]


class LoggingScheduler(_Logging, Scheduler):
    """vLLM's synchronous scheduler."""


class LoggingAsyncScheduler(_Logging, AsyncScheduler):
    """vLLM's asynchronous scheduler."""
