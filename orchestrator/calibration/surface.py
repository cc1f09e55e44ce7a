"""Where a rough objective has its minimum.

A millisecond more moves an admission to another step, and with it everything after: the objective
of a simulation is rough, and its lowest point is partly luck. Where enough candidates are near the
best, a quadratic through them says where the valley lies; where they are few, or the quadratic has
no minimum among them, the best candidate itself is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from profiles.bundle import Floats

ROUGHNESS = (
    2.0  # standard deviations of the surface's residuals that the answer may be above the best
)


@dataclass(frozen=True)
class Minimum:
    """`at` in the units of the candidates. `roughness`: of the objective around the surface."""

    at: Floats
    kind: Literal["surface", "candidate"]
    roughness: float = 0.0


def near_best(values: Floats, near: float) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = values <= values.min() * (1 + near)
    return found


def minimum(candidates: Floats, values: Floats, near: float) -> Minimum:
    """`candidates` [n, parameter], `values` [n] with at least one that is finite."""
    best = Minimum(candidates[int(values.argmin())], "candidate")
    close = near_best(values, near)
    inside, seen = candidates[close], values[close]
    count = inside.shape[1]
    if len(inside) < 2 * (count + 1) * (count + 2) // 2:
        return best
    middle, spread = inside.mean(axis=0), inside.std(axis=0)
    if not (spread > 0).all():
        return best
    scaled = (inside - middle) / spread
    fitted = np.asarray(np.linalg.lstsq(terms(scaled), seen, rcond=None)[0], np.float64)
    slope, bend = fitted[1 : count + 1], curvature(fitted, count)
    if np.linalg.eigvalsh(bend).min() <= 0:
        return best
    at = np.linalg.solve(bend, -slope)
    if (at < scaled.min(axis=0)).any() or (at > scaled.max(axis=0)).any():
        return best
    residuals = seen - terms(scaled) @ fitted
    free = max(1, len(seen) - len(fitted))
    return Minimum(at * spread + middle, "surface", float(np.sqrt((residuals**2).sum() / free)))


def terms(x: Floats) -> Floats:
    """1, x_i, x_i x_j of every row."""
    count = x.shape[1]
    products = [x[:, i] * x[:, j] for i in range(count) for j in range(i, count)]
    return np.column_stack([np.ones(len(x)), x, *products])


def curvature(fitted: Floats, count: int) -> Floats:
    """The second derivatives, [parameter, parameter]."""
    bend = np.zeros((count, count))
    at = count + 1
    for i in range(count):
        for j in range(i, count):
            bend[i, j] += fitted[at]
            bend[j, i] += fitted[at]
            at += 1
    return bend
