"""Host time by regression, where a recording has steps: no search end to end is needed.

What the host adds to a step is a time a step and a time a request in it:

    host = host_ms_per_step + host_ms_per_request x requests

by least squares over steps, within the ranges of what is free; a term that is not free is taken off
first, because the other one is another number beside it. Late steps (a garbage collection, another
process) count, because they count end to end as well. Their share is in the intervals, which
resample steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from profiles.bundle import Floats, Ints
from profiles.calibrated import Estimate
from profiles.errors import InputError

PER_STEP, PER_REQUEST = "overhead.host_ms_per_step", "overhead.host_ms_per_request"
FIELDS = (PER_STEP, PER_REQUEST)
FEWEST = 20  # steps, from which nothing is told
Bounds = Mapping[str, tuple[float, float]]  # ms, of every field that is free


@dataclass(frozen=True, eq=False)
class HostTime:
    """Every free field's estimate in ms with its interval, and those of resampled steps
    [sample, field]."""

    estimates: dict[str, Estimate]
    resampled: Floats
    num_steps: int


def host_time(
    host_ms: Floats,
    num_requests: Ints,
    bounds: Bounds,
    *,
    source: str,
    samples: int = 200,
    confidence: float = 0.9,
    seed: int = 0,
) -> HostTime:
    """`host_ms` [step] less the terms that are not free, and the number of requests in each step.
    Raises InputError if steps do not tell the times. Intervals are by bootstrap over steps."""
    if len(host_ms) < FEWEST:
        raise InputError(source, "steps", len(host_ms), f"at least {FEWEST}")
    if len(bounds) > 1 and len(np.unique(num_requests)) < 2:
        expected = "steps of different numbers of requests"
        raise InputError(source, "requests of a step", int(num_requests[0]), expected)
    random = np.random.default_rng(seed)
    found = least_squares(host_ms, num_requests, bounds)
    again = []
    for _ in range(samples):
        rows = random.integers(0, len(host_ms), len(host_ms))
        if len(bounds) == 1 or len(np.unique(num_requests[rows])) > 1:
            again.append(least_squares(host_ms[rows], num_requests[rows], bounds))
    resampled = np.array(again)
    tail = (1 - confidence) / 2
    ends = np.quantile(resampled, [tail, 1 - tail], axis=0)
    estimates = {
        field: Estimate(
            fields=(field,),
            value=min(max(rounded(found[i]), first), last),
            low=rounded(ends[0, i]),
            high=rounded(ends[1, i]),
        )
        for i, (field, (first, last)) in enumerate(bounds.items())
    }
    return HostTime(estimates, resampled, len(host_ms))


def rounded(ms: float) -> float:
    return float(f"{ms:.6g}")


def least_squares(host_ms: Floats, num_requests: Ints, bounds: Bounds) -> Floats:
    """ms of every free field, in the order of `bounds` and within them."""
    columns = {PER_STEP: np.ones(len(host_ms)), PER_REQUEST: num_requests.astype(np.float64)}
    x = np.column_stack([columns[field] for field in bounds])
    low, high = zip(*bounds.values(), strict=True)
    return np.asarray(lsq_linear(x, host_ms, bounds=(low, high), method="bvls").x, np.float64)
