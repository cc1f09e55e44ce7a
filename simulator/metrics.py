"""Latency metrics of a run, in the definitions that serving benchmarks use.

TTFT = first token - arrival. TPOT = (last token - first token) / max(1, output tokens - 1).
ITL: every time between two consecutive tokens of a request. Latency = last token - arrival.
Percentiles interpolate linearly between order statistics (numpy's default).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)


def latency_metrics(
    requests: pa.Table, intervals_ns: NDArray[np.int64], counts: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """Mean and percentiles in ms of ttft, tpot, itl, latency; a metric nobody has is left out."""
    done = {name: requests[name].to_numpy(zero_copy_only=False) for name in _USED}
    finished = ~np.isnan(done["last_token_ns"].astype(float)) & (done["finished"].astype(bool))
    arrival, first, last = (
        done[name][finished].astype(np.int64)
        for name in ("arrival_ns", "first_token_ns", "last_token_ns")
    )
    steps_between = np.maximum(1, done["output_tokens"][finished].astype(np.int64) - 1)
    series: dict[str, NDArray[np.float64]] = {
        "ttft_ms": (first - arrival) / 1e6,
        "tpot_ms": (last - first) / steps_between / 1e6,
        "latency_ms": (last - arrival) / 1e6,
    }
    metrics = {name: _statistics(values) for name, values in series.items() if len(values)}
    if counts.sum():
        metrics["itl_ms"] = weighted_statistics(intervals_ns / 1e6, counts)
    return metrics


_USED = ("arrival_ns", "first_token_ns", "last_token_ns", "output_tokens", "finished")


def _statistics(values: NDArray[np.float64]) -> dict[str, float]:
    found = np.percentile(values, PERCENTILES)
    return {"mean": float(values.mean()), **_named(found)}


def weighted_statistics(values: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, float]:
    """The same statistics of a run-length coded series."""
    # Equal values are joined first: the sum must not depend on how the series was cut into runs.
    values, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, weights=counts).astype(np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1])
    positions = np.asarray(PERCENTILES) / 100 * (total - 1)
    low = np.floor(positions).astype(np.int64)
    high = np.minimum(low + 1, total - 1)
    at_low = values[np.searchsorted(ends, low, side="right")]
    at_high = values[np.searchsorted(ends, high, side="right")]
    found = at_low + (positions - low) * (at_high - at_low)
    return {"mean": float((values * counts).sum() / total), **_named(found)}


def _named(found: Any) -> dict[str, float]:
    return {f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}
