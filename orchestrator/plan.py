"""Which points of a sweep run, which equal another, which are done already.

Points with the same run and truth are one class; its first point runs for all. Classes that differ in
the number of blocks alone are a family. Its largest runs first: if its pool is never exhausted, every
pool that can hand out as many blocks as it used gives the same result, and the worker that ran it says
so of each (outcome.py). Which points equal which does not depend on the order in which outcomes came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from orchestrator.expand import SweepPoint

FINISHED = "finished"
FAMILY = 256  # members whose results one task may bring along

Key = tuple[str, str | None]
Outcome = dict[str, Any]
Row = tuple[SweepPoint, Outcome | None, SweepPoint | None]


@dataclass
class _Class:
    """Points that must have the same result."""

    leader: SweepPoint
    outcome: Outcome | None = None

    @property
    def finished(self) -> bool:
        return self.outcome is not None and self.outcome["status"] == FINISHED


class Plan:
    """The state of a sweep; starts with what a journal holds. Failures of before run again."""

    def __init__(self, points: list[SweepPoint], outcomes: Mapping[str, Outcome] | None = None):
        self.points = points
        self._classes: dict[Key, _Class] = {}
        self._families: dict[Key, list[_Class]] = {}
        self._key_of: dict[str, Key] = {}
        self._siblings: dict[str, list[SweepPoint]] = {}
        for point in points:
            key = point.run_id, point.truth_id
            self._key_of[point.point_id] = key
            if key not in self._classes:
                self._classes[key] = _Class(point)
                family = self._families.setdefault((point.pool_id, point.truth_id), [])
                family.append(self._classes[key])
        for family in self._families.values():
            family.sort(key=lambda member: (-member.leader.usable_blocks, member.leader.index))
        self.resume(outcomes or {})

    def resume(self, outcomes: Mapping[str, Outcome]) -> None:
        """Start again from a journal's outcomes; those of other points are left alone."""
        self.failed_before: dict[str, Outcome] = {}
        self._failed = 0
        for found in self._classes.values():
            found.outcome = None
        for point in self.points:
            outcome = outcomes.get(point.point_id)
            if outcome is None:
                continue
            if outcome["status"] != FINISHED:
                self.failed_before[point.point_id] = outcome
            elif not (found := self._class(point)).finished:
                found.outcome = _lean(outcome)
        self.others = len(outcomes.keys() - self._key_of.keys())
        self.resumed = sum(found.finished for found in self._classes.values())

    def to_run(self) -> list[SweepPoint]:
        """Points without an outcome, one of each class; of each family the largest first."""
        waiting = [found.leader for found in self._classes.values() if found.outcome is None]
        parts = [part for family in self._families.values() for part in _parts(family)]
        self._siblings = {part[0].point_id: part[1:] for part in parts}
        return sorted(waiting, key=lambda point: point.point_id not in self._siblings)

    def siblings(self, point: SweepPoint) -> list[SweepPoint]:
        """Whose results follow from a run of `point`, should it never exhaust its pool."""
        return self._siblings.get(point.point_id, [])

    def still_needed(self, point: SweepPoint) -> bool:
        """Whether a point of `to_run` has not been proven equal to another meanwhile."""
        return self._class(point).outcome is None

    def record(self, outcome: Outcome) -> bool:
        """Take in an outcome; False if there is one already. A proof outweighs a failure."""
        found = self._classes[self._key_of[outcome["point_id"]]]
        new = found.outcome is None
        if new or (outcome["status"] == FINISHED and not found.finished):
            found.outcome = _lean(outcome)
            self._failed += int(new) - int(found.finished)
        return new

    @property
    def failed(self) -> int:
        """Points that failed, without those that equal one of them."""
        return self._failed

    def rows(self) -> list[Row]:
        """Every point with its outcome, if there is one, and the point it equals."""
        largest = {key: self._proven(family) for key, family in self._families.items()}
        rows: list[Row] = []
        for point in self.points:
            found = self._class(point)
            proof = largest[point.pool_id, point.truth_id]
            equals: SweepPoint | None = found.leader
            if proof is not None and found.finished and point.usable_blocks >= proof[1]:
                equals = proof[0]
            rows.append((point, found.outcome, equals if equals is not point else None))
        return rows

    def counts(self) -> dict[str, int]:
        rows = self.rows()
        own = [outcome for _, outcome, equals in rows if equals is None]
        return {
            "points": len(rows),
            "runs": len(own),
            "equal": len(rows) - len(own),
            "finished": sum(o is not None and o["status"] == FINISHED for o in own),
            "failed": sum(o is not None and o["status"] != FINISHED for o in own),
        }

    def _class(self, point: SweepPoint) -> _Class:
        return self._classes[point.run_id, point.truth_id]

    def _proven(self, family: list[_Class]) -> tuple[SweepPoint, int] | None:
        """The largest finished member, and from how many blocks on others are its equals."""
        finished = [member for member in family if member.finished]
        enough = [
            member.outcome["enough_blocks"]
            for member in finished
            if member.outcome and member.outcome.get("enough_blocks") is not None
        ]
        return (finished[0].leader, min(enough)) if enough else None


def _lean(outcome: Outcome) -> Outcome:
    """The same, with texts that other outcomes have as well held once."""
    lean = dict(outcome)
    if "metrics" in lean:
        lean["metrics"] = {intern(name): value for name, value in lean["metrics"].items()}
    if "notes" in lean:
        lean["notes"] = [intern(note) for note in lean["notes"]]
    return lean


def _parts(family: list[_Class]) -> list[list[SweepPoint]]:
    """What waits of a family, largest first, in parts that one task can bring along."""
    waiting = [member.leader for member in family if member.outcome is None]
    return [waiting[i : i + FAMILY] for i in range(0, len(waiting), FAMILY)]
