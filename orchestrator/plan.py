"""Which points of a sweep run, which equal another, which are done already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.expand import SweepPoint

FINISHED = "finished"


@dataclass
class Plan:
    """The state of a sweep. Points with equal simulation and truth share one run.

    `leader[i]` is the position of the point that runs for point i. `outcomes` holds what is known, by
    the leader's point id; a sweep is resumed by starting with the journal's.
    """

    points: list[SweepPoint]
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    leader: list[int] = field(init=False)
    resumed: int = field(init=False)

    def __post_init__(self) -> None:
        self._position: dict[str, int] = {}
        for i, point in enumerate(self.points):
            self._position.setdefault(point.point_id, i)
        first: dict[tuple[str, str | None], int] = {}
        self.leader = [first.setdefault(_key(point), i) for i, point in enumerate(self.points)]
        own = {point.point_id for point in self.points}
        self.outcomes = {
            point_id: outcome
            for point_id, outcome in self.outcomes.items()
            if point_id in own and outcome["status"] == FINISHED
        }
        for i in self._leaders():
            self._adopt(i)
        self.resumed = sum(self._outcome(i) is not None for i in self._leaders())

    def to_run(self) -> list[SweepPoint]:
        """Leaders without an outcome; of points that differ in capacity alone, the largest first.

        If its pool is never exhausted, the others of at least the size it used are proven equal.
        """
        waiting = [i for i in self._leaders() if self._outcome(i) is None]
        largest: dict[tuple[str, str | None], int] = {}
        for i in waiting:
            pool = _pool(self.points[i])
            if pool not in largest or _usable(self.points[i]) > _usable(self.points[largest[pool]]):
                largest[pool] = i
        first = set(largest.values())
        return [self.points[i] for i in sorted(waiting, key=lambda i: (i not in first, i))]

    def still_needed(self, point: SweepPoint) -> bool:
        """Whether a point of `to_run` has not been proven equal to another meanwhile."""
        i = self._position[point.point_id]
        return self.leader[i] == i and self._outcome(i) is None

    def record(self, outcome: dict[str, Any]) -> None:
        """Take in an outcome, and let points that must equal it follow its point."""
        self.outcomes[outcome["point_id"]] = outcome
        self._adopt(self._position[outcome["point_id"]])

    def rows(self) -> list[tuple[SweepPoint, dict[str, Any] | None, SweepPoint | None]]:
        """Every point with its outcome, if there is one, and the point whose run it is."""
        rows = []
        for i, point in enumerate(self.points):
            leader = self.leader[i]
            rows.append(
                (point, self._outcome(leader), self.points[leader] if leader != i else None)
            )
        return rows

    def counts(self) -> dict[str, int]:
        leaders = list(self._leaders())
        done = [self._outcome(i) for i in leaders]
        return {
            "points": len(self.points),
            "runs": len(leaders),
            "equal": len(self.points) - len(leaders),
            "finished": sum(o is not None and o["status"] == FINISHED for o in done),
            "failed": sum(o is not None and o["status"] != FINISHED for o in done),
        }

    def _leaders(self) -> list[int]:
        return [i for i, leader in enumerate(self.leader) if leader == i]

    def _outcome(self, i: int) -> dict[str, Any] | None:
        return self.outcomes.get(self.points[i].point_id)

    def _adopt(self, i: int) -> None:
        """Points that a finished run proves equal follow it."""
        outcome = self._outcome(i)
        enough = outcome.get("enough_blocks") if outcome else None
        if enough is None:
            return
        pool = _pool(self.points[i])
        for j, point in enumerate(self.points):
            equal = _pool(point) == pool and _usable(point) >= enough
            if equal and self._outcome(self.leader[j]) is None:
                self.leader[j] = i


def _key(point: SweepPoint) -> tuple[str, str | None]:
    return point.run_id, point.truth.content_id if point.truth else None


def _pool(point: SweepPoint) -> tuple[str, str | None]:
    return point.pool_id, point.truth.content_id if point.truth else None


def _usable(point: SweepPoint) -> int:
    return point.prepared.settings.num_usable_blocks
