"""Which points of a sweep come first: those nearest to their truth, or without one the quickest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.expand import SweepPoint
from orchestrator.plan import FINISHED, Outcome, Plan
from orchestrator.sweep import CARD
from orchestrator.truth_data import HEADLINE as HEADLINE_METRICS

T = TypeVar("T")

MEAN_ABS = "err_pct/mean_abs"
PARTIAL = "err_pct/mean_abs_partial"  # where the truth has some of the headline metrics only
LATENCY = "latency_ms/mean"
HEADLINE = set(HEADLINE_METRICS)
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
    """The metric that ranks a sweep's points, smallest first: an error, or the latency."""
    truths = [point.truth for point in plan.points if point.truth]
    if any(len(HEADLINE) == len(HEADLINE & truth.metrics.keys()) for truth in truths):
        return MEAN_ABS
    return PARTIAL if truths else LATENCY


def score(metrics: Mapping[str, float], by: str) -> float | None:
    """What ranks a point; an error over some of the metrics where there is none over all."""
    names = (LATENCY,) if by == LATENCY else (MEAN_ABS, PARTIAL)
    return next((metrics[name] for name in names if name in metrics), None)


def ranking(plan: Plan, count: int) -> list[Ranked]:
    """The first finished points with different results; those that refused requests come last."""
    own = [
        ((point, outcome), point.index, outcome.get("metrics") or {})
        for point, outcome, equals in plan.rows()
        if equals is None and outcome
    ]
    groups = ranked_groups(own, measure(plan))[:count]
    return [Ranked(*group[0], same=len(group) - 1) for group in groups]


def ranked_groups(own: Iterable[tuple[T, int, Mapping[str, float]]], by: str) -> list[list[T]]:
    """Points, their index and metrics -> those with one result together, the smallest score first.

    Points without a score are left out; those that refused requests come last.
    """
    scored: list[tuple[bool, float, int, T, Mapping[str, float]]] = []
    for point, index, metrics in own:
        value = score(metrics, by)
        if value is not None:
            refused = metrics.get("requests/refused", 0.0) > 0
            scored.append((refused, value, index, point, metrics))
    groups: dict[tuple[Any, ...], list[T]] = {}
    for _, value, _, point, metrics in sorted(scored, key=lambda one: one[:3]):
        result = (value, *(metrics.get(name) for name in RESULT))
        groups.setdefault(result, []).append(point)
    return list(groups.values())


def first_of_each_card(plan: Plan, count: int) -> list[Ranked]:
    """The first points, and at least one of every card where those have truths of their own."""
    found = ranking(plan, len(plan.points))
    if len({point.truth_id for point in plan.points}) > 1:
        cards: dict[Any, Ranked] = {}
        for one in found:
            cards.setdefault(one.point.axes.get(CARD), one)
        if len(cards) > 1:
            return list(cards.values())
    return found[:count]


def best_points(plan: Plan, count: int) -> list[SweepPoint]:
    return [ranked.point for ranked in ranking(plan, count)]


def finished_points(plan: Plan) -> list[SweepPoint]:
    """Finished points, without those that equal another."""
    return [
        point
        for point, outcome, equals in plan.rows()
        if equals is None and outcome and outcome["status"] == FINISHED
    ]
