"""One number of a candidate: how far its requests are from the measured ones, in %.

All candidates are held as arrays, so that the same can be asked of resampled requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.truth_data import HEADLINE
from profiles.bundle import Floats, Ints
from simulator.metrics import PERCENTILES

Kind = Literal["requests", "statistics"]
NUM_METRICS = len(HEADLINE)


@dataclass(frozen=True, eq=False)
class RunValues:
    """One run: `measured` ms [metric, request], `simulated` ms [candidate, metric, request].

    A candidate that did not serve all of them holds NaN.
    """

    measured: Floats
    simulated: Floats

    def __len__(self) -> int:
        """Requests."""
        return int(self.measured.shape[1])


def objective(kind: Kind, runs: list[RunValues], rows: list[Ints] | None = None) -> Floats:
    """Of every candidate, the mean over runs; `rows` are resampled requests of each run.

    A candidate without an answer has inf.
    """
    each = [
        of_run(kind, run if rows is None else taken(run, rows[i])) for i, run in enumerate(runs)
    ]
    found: Floats = np.mean(each, axis=0)
    return np.where(np.isfinite(found), found, np.inf)


def taken(run: RunValues, rows: Ints) -> RunValues:
    return RunValues(run.measured[:, rows], run.simulated[..., rows])


def of_run(kind: Kind, run: RunValues) -> Floats:
    if kind == "requests":
        return requests_error(run)
    return statistics_error(run)


def requests_error(run: RunValues) -> Floats:
    """Sum of |simulated - measured| over the sum of the measured, the mean over the metrics."""
    apart = np.abs(run.simulated - run.measured).sum(axis=-1)
    found: Floats = 100 * (apart / run.measured.sum(axis=-1)).mean(axis=-1)
    return found


def statistics_error(run: RunValues) -> Floats:
    """Mean |error| over mean and percentiles of the metrics; a truth of 0 is left out."""
    ours, theirs = statistics_of(run.simulated), statistics_of(run.measured)
    there: NDArray[np.bool_] = theirs > 0
    found: Floats = 100 * np.abs(ours[..., there] / theirs[there] - 1).mean(axis=-1)
    return found


def statistics_of(values: Floats) -> Floats:
    """[..., metric, request] -> [..., metric, statistic]."""
    percentiles = np.moveaxis(np.percentile(values, PERCENTILES, axis=-1), 0, -1)
    return np.concatenate([values.mean(axis=-1, keepdims=True), percentiles], axis=-1)
