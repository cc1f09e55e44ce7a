"""How long the device model takes for a batch, and waiting for as long."""

from __future__ import annotations

import time
from time import monotonic_ns
from typing import Any

from simulator.core.latency import step_ns

LONGEST = 1 << 30  # longer than any request
SPIN_NS = 200_000  # a sleeper may wake up to so much too late: the rest is spun


def device_ns(latency: Any, outside: Any, batch: list[tuple[int, int]]) -> int:
    """Device time of a batch of (scheduled tokens, tokens computed before), as the core sums it up."""
    chunks = [(n, kv) for n, kv in batch if n > 1]
    lengths = [kv for n, kv in batch if n == 1]
    return int(
        step_ns(
            latency,
            outside,
            sum(n for n, _ in batch),
            len(batch),
            sum(n for n, _ in chunks),
            sum(kv for _, kv in chunks),
            len(lengths),
            sum(lengths),
            max(lengths, default=0),
            min(lengths, default=LONGEST),
        )
    )


def sleep_until(end_ns: int) -> None:
    """Return at `end_ns` of time.monotonic_ns(), or at once if that has passed."""
    while (left := end_ns - monotonic_ns()) > 0:
        if left > SPIN_NS:
            time.sleep((left - SPIN_NS) / 1e9)
