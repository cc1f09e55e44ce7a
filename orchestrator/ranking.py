"""Which points of a sweep come first: those nearest to their truth, or without one the quickest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.expand import SweepPoint
from orchestrator.plan import FINISHED, Outcome, Plan

MEAN_ABS = "err_pct/mean_abs"
LATENCY = "latency_ms/mean"
# What a result is, whatever the pool it ran in.
RESULT = (
    "steps",
    "makespan_ms",
    "ttft_ms/mean",
    "ttft_ms/p99",
    "latency_ms/mean",
    "latency_ms/p99",
)


@dataclass(frozen=True)
class Ranked:
    """A point, its metrics, and how many later ones have the same result."""

    point: SweepPoint
    outcome: Outcome
    same: int

    @property
    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.outcome["metrics"]
        return metrics


def measure(plan: Plan) -> str:
    """The metric that ranks a sweep's points, smallest first."""
    return MEAN_ABS if any(point.truth for point in plan.points) else LATENCY


def ranking(plan: Plan, count: int) -> list[Ranked]:
    """The first finished points with different results.

    Without a truth a point that refused requests comes after those that served all of them.
    """
    by = measure(plan)
    scored: list[tuple[bool, float, int, SweepPoint, Outcome]] = []
    for point, outcome, equals in plan.rows():
        metrics = (outcome or {}).get("metrics") or {}
        if equals is None and outcome and by in metrics:
            refused = by == LATENCY and metrics["requests/refused"] > 0
            scored.append((refused, metrics[by], point.index, point, outcome))
    groups: dict[tuple[Any, ...], list[tuple[SweepPoint, Outcome]]] = {}
    for _, value, _, point, outcome in sorted(scored, key=lambda one: one[:3]):
        result = (value, *(outcome["metrics"].get(name) for name in RESULT))
        groups.setdefault(result, []).append((point, outcome))
    return [Ranked(*group[0], same=len(group) - 1) for group in list(groups.values())[:count]]


def best_points(plan: Plan, count: int) -> list[SweepPoint]:
    return [ranked.point for ranked in ranking(plan, count)]


def finished_points(plan: Plan) -> list[SweepPoint]:
    """Finished points, without those that equal another."""
    return [
        point
        for point, outcome, equals in plan.rows()
        if equals is None and outcome and outcome["status"] == FINISHED
    ]
