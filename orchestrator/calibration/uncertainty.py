"""How far the data determine the parameters: bootstrap over requests, and what to warn of.

An interval covers three things: where the minimum lies for resampled requests; all candidates that
resampled requests do not tell from the best, which is what a valley without a slope shows; and the
best few candidates, because nothing is known between those that were tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.calibration.evaluate import Candidates
from orchestrator.calibration.objective import Kind, RunValues, objective
from orchestrator.calibration.search import as_array, scores
from orchestrator.calibration.study import Cell, Study
from orchestrator.calibration.surface import ROUGHNESS, Minimum, minimum
from profiles.bundle import Floats, Ints

WIDE = 0.5  # an interval over this share of the range says that nothing was determined
NARROW = 0.05  # an interval up to this share of the range is determined, whatever it goes with
TOGETHER = 0.9  # parameters whose estimates are correlated beyond this
FEW = 5  # different estimates, from which no correlation is told
KEPT = 3.0  # candidates up to this many times the best take part in the resampling


@dataclass(frozen=True)
class Fit:
    """The answer; `low` and `high` are the ends of the intervals, in the parameters' order."""

    cell: Cell
    kind: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    train: float
    roughness: float
    warnings: tuple[str, ...]


def fit(study: Study, tried: Candidates) -> Fit:
    """Raises InputError if no candidate finished."""
    values, candidates = scores(study, tried), as_array(tried.cells)
    found = settled(minimum(candidates, values, study.search.near), candidates, values)
    cell = tuple(p.snapped(v) for p, v in zip(study.parameters.values(), found.at, strict=True))
    least = np.sort(values)[: 2 * candidates.shape[1] + 1].max()
    kept = np.isfinite(values) & (values <= max(values.min() * KEPT, least))
    resampled, same = resample(study, tried.values(), candidates, kept, int(values.argmin()))
    tail = (1 - study.bootstrap.confidence) / 2
    spread = np.quantile(resampled, [tail, 1 - tail], axis=0)
    low = np.minimum(np.minimum(spread[0], same.min(axis=0)), found.at)
    high = np.maximum(np.maximum(spread[1], same.max(axis=0)), found.at)
    return Fit(
        cell=cell,
        kind=found.kind,
        low=tuple(map(float, low)),
        high=tuple(map(float, high)),
        train=float(values.min()),
        roughness=found.roughness,
        warnings=tuple(warnings(study, cell, low, high, np.vstack([resampled, same]))),
    )


def settled(found: Minimum, candidates: Floats, values: Floats) -> Minimum:
    """A surface's minimum counts if the candidates next to it are as good as the roughness allows."""
    if found.kind == "candidate":
        return found
    extent = np.ptp(candidates, axis=0)
    away = (((candidates - found.at) / np.where(extent > 0, extent, 1)) ** 2).sum(axis=1)
    nearest = np.argsort(away)[: 2 ** candidates.shape[1]]
    if values[nearest].min() <= values.min() + ROUGHNESS * found.roughness:
        return found
    return Minimum(candidates[int(values.argmin())], "candidate", found.roughness)


def resample(
    study: Study,
    runs: list[RunValues],
    candidates: Floats,
    kept: Ints,
    best: int,
) -> tuple[Floats, Floats]:
    """The minimum of every sample, and the candidates that samples do not tell from the best."""
    some = [RunValues(run.measured, run.simulated[kept]) for run in runs]
    at, best_at = candidates[kept], int(np.flatnonzero(np.flatnonzero(kept) == best)[0])
    random = np.random.default_rng(study.bootstrap.seed)
    found, wins = [], np.zeros(len(at))
    for _ in range(study.bootstrap.samples):
        rows = [random.integers(0, len(run), len(run)) for run in runs]
        values = objective(study.objective, some, rows)
        found.append(settled(minimum(at, values, study.search.near), at, values).at)
        wins += values <= values[best_at]
    tail = (1 - study.bootstrap.confidence) / 2
    same = wins >= tail * study.bootstrap.samples
    same[np.argsort(objective(study.objective, some))[: 2 * at.shape[1] + 1]] = True
    return np.array(found), at[same]


def warnings(study: Study, cell: Cell, low: Floats, high: Floats, estimates: Floats) -> list[str]:
    said = []
    names = list(study.parameters)
    shares = []
    for i, (name, parameter) in enumerate(study.parameters.items()):
        first, last = parameter.range
        share = (high[i] - low[i]) / (last - first)
        shares.append(share)
        if not first < cell[i] < last:
            said.append(f"{name} is at the end of its range ({cell[i]:g}): widen the range")
        elif low[i] <= first or high[i] >= last:
            end = first if low[i] <= first else last
            said.append(f"the interval of {name} reaches the end of its range ({end:g})")
        if share > WIDE:
            said.append(
                f"{name} is not identifiable: its interval, {low[i]:.4g} to {high[i]:.4g}, covers "
                f"{share:.0%} of its range"
            )
    if len(np.unique(estimates, axis=0)) <= FEW:
        return said
    spread = estimates.std(axis=0)
    for i in range(len(names)):
        for j in range(i):
            if spread[i] == 0 or spread[j] == 0 or max(shares[i], shares[j]) <= NARROW:
                continue
            together = float(np.corrcoef(estimates[:, i], estimates[:, j])[0, 1])
            if abs(together) > TOGETHER:
                said.append(
                    f"{names[j]} and {names[i]} are determined together only (correlation "
                    f"{together:+.2f} of their estimates)"
                )
    return said


def interval_of(study: Study, run: RunValues, kind: Kind) -> tuple[float, float]:
    """The bootstrap interval of one candidate's error, over this run's requests."""
    random = np.random.default_rng(study.bootstrap.seed)
    found = [
        float(objective(kind, [run], [random.integers(0, len(run), len(run))])[0])
        for _ in range(study.bootstrap.samples)
    ]
    tail = (1 - study.bootstrap.confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)
