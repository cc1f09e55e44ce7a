"""Host time by regression, where a recording has steps: no search end to end is needed.

What the host adds to a step is a time a step and a time a request in it:

    host = host_ms_per_step + host_ms_per_request x requests

by least squares over steps: late ones (a garbage collection, another process) count, because they
count end to end as well. Their share is in the intervals, which resample steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.bundle import Floats, Ints
from profiles.calibrated import Estimate
from profiles.errors import InputError

FEWEST = 20  # steps, from which nothing is told


@dataclass(frozen=True)
class HostTime:
    """Both times in ms, each with the ends of its interval."""

    per_step: tuple[float, float, float]
    per_request: tuple[float, float, float]
    num_steps: int

    def estimates(self) -> dict[str, Estimate]:
        """As parameters of a calibrated card; host time is never negative there."""
        return {
            name: Estimate(
                fields=(f"overhead.{name}",),
                value=max(0.0, float(f"{value:.6g}")),
                low=float(f"{low:.6g}"),
                high=float(f"{high:.6g}"),
            )
            for name, (value, low, high) in (
                ("host_ms_per_step", self.per_step),
                ("host_ms_per_request", self.per_request),
            )
        }


def host_time(
    host_ns: Ints,
    num_requests: Ints,
    *,
    source: str,
    samples: int = 200,
    confidence: float = 0.9,
    seed: int = 0,
) -> HostTime:
    """`host_ns` [step] and the number of requests in each. Raises InputError if steps do not tell
    the two times apart. Intervals are by bootstrap over steps."""
    if len(host_ns) < FEWEST:
        raise InputError(source, "steps", len(host_ns), f"at least {FEWEST}")
    if len(np.unique(num_requests)) < 2:
        expected = "steps of different numbers of requests"
        raise InputError(source, "requests of a step", int(num_requests[0]), expected)
    random = np.random.default_rng(seed)
    found = least_squares(host_ns, num_requests)
    again = []
    for _ in range(samples):
        rows = random.integers(0, len(host_ns), len(host_ns))
        if len(np.unique(num_requests[rows])) > 1:
            again.append(least_squares(host_ns[rows], num_requests[rows]))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.array(again), [tail, 1 - tail], axis=0) / 1e6
    values = found / 1e6
    return HostTime(
        per_step=(float(values[0]), float(low[0]), float(high[0])),
        per_request=(float(values[1]), float(low[1]), float(high[1])),
        num_steps=len(host_ns),
    )


def least_squares(host_ns: Ints, num_requests: Ints) -> Floats:
    """[per step, per request] in ns."""
    x = np.column_stack([np.ones(len(host_ns)), num_requests]).astype(np.float64)
    solved = np.linalg.lstsq(x, host_ns.astype(np.float64), rcond=None)[0]
    return np.asarray(solved, np.float64)
