"""Two sweeps against each other, or two folders of sweeps such as nights or simulator versions.

Points belong together when they have the same values of the axes that both sweeps have. Where an axis
that only one of them has, or that is ignored, leaves several points with the same values, the best of
them by its sweep's measure stands for all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dashboards.sweep_data import FINISHED, SweepData, read_sweep
from dashboards.wording import counted, number, title
from orchestrator.ranking import LATENCY
from orchestrator.store import SweepStore
from profiles.errors import InputError

State = Literal["same", "changed", "fails now", "finishes now", "fails in both"]


@dataclass(frozen=True)
class Pair:
    """A point of each, as rows; `of_a` and `of_b` points stood for it. `same_id`: the same content."""

    a: int
    b: int
    of_a: int
    of_b: int
    state: State
    same_id: bool


@dataclass(frozen=True, eq=False)
class SweepComparison:
    """Two sweeps. `axes` are those by which points belong together."""

    name: str
    a: SweepData
    b: SweepData
    axes: tuple[str, ...]
    pairs: list[Pair]
    only_a: list[int]
    only_b: list[int]

    @property
    def measures(self) -> tuple[str, str]:
        """What ranks each: they differ where one has a truth and the other none."""
        return self.a.measure, self.b.measure

    @property
    def metric(self) -> str:
        """What both are looked at by: their measure, or what both have."""
        return self.a.measure if self.a.measure == self.b.measure else LATENCY

    def count(self, state: State) -> int:
        return sum(pair.state == state for pair in self.pairs)

    def sentence(self) -> str:
        """What changed, in one sentence."""
        if not self.pairs:
            return f"{self.name}: no point of one belongs to a point of the other."
        told = [f"{self.count(s)} {said}" for s, said in SAID.items() if self.count(s)]
        other = sum(not pair.same_id for pair in self.pairs)
        ids = f" ({other} with other inputs or another version)" if other else ""
        only = [
            f"{len(rows)} only in {side}"
            for rows, side in ((self.only_a, "A"), (self.only_b, "B"))
            if rows
        ]
        said = f"of {counted(len(self.pairs), 'point')} in both{ids} {', '.join(told + only)}"
        return f"{self.name}: {'; '.join([said, *self.differences(), self.bests()])}."

    def bests(self) -> str:
        """The best of each, of one measure or by what each is measured."""
        a, b = (_best(data) for data in (self.a, self.b))
        first, second = map(title, self.measures)
        if first == second:
            return f"best {first} {a} in A, {b} in B"
        if not (self.a.ranked and self.b.ranked):
            return f"best {first} {a} in A" if self.a.ranked else f"best {second} {b} in B"
        return f"best {first} {a} in A, best {second} {b} in B, which do not compare"

    def differences(self) -> list[str]:
        """What makes two sweeps hard to compare."""
        a, b = self.a, self.b
        found = []
        if (a.axes or b.axes) and not a.axes.keys() & b.axes.keys():
            found.append("they have no axis in common, the best of each stands for all")
        if a.model and b.model and a.model != b.model:
            found.append(f"A is of the model {a.model}, B of {b.model}")
        if a.measured and b.measured and a.measured != b.measured:
            found.append("they are measured against different truths")
        return found


SAID: dict[State, str] = {
    "same": "are the same",
    "changed": "changed",
    "fails now": "fail now",
    "finishes now": "finish now",
    "fails in both": "fail in both",
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Of two folders: sweeps of the same name against each other."""

    a: Path
    b: Path
    sweeps: list[SweepComparison]
    only_a: list[str]
    only_b: list[str]


def compare_folders(a: Path, b: Path, ignore: Sequence[str] = ()) -> Comparison:
    """Two sweeps' folders, or two folders of such. Raises InputError."""
    single = [_is_sweep(folder) for folder in (a, b)]
    if all(single):
        sweeps = [compare_sweeps(read_sweep(a), read_sweep(b), ignore)]
        return Comparison(a, b, sweeps, [], [])
    if any(single):
        sweep, other = (a, b) if single[0] else (b, a)
        expected = f"a sweep's folder, as {sweep} is: two sweeps, or two folders of sweeps"
        raise InputError("report", "OTHER", str(other), expected)
    inside = [_sweeps_in(folder) for folder in (a, b)]
    both = [name for name in inside[0] if name in inside[1]]
    if not both:
        expected = f"a sweep that is in {b} too; there are {', '.join(inside[1])}"
        raise InputError(a, "sweeps", ", ".join(inside[0]), expected)
    sweeps = [
        compare_sweeps(read_sweep(inside[0][name]), read_sweep(inside[1][name]), ignore)
        for name in both
    ]
    only_a, only_b = ([n for n in some if n not in both] for some in inside)
    return Comparison(a, b, sweeps, only_a, only_b)


def _is_sweep(folder: Path) -> bool:
    return SweepStore(folder).results_path.is_file()


def _sweeps_in(folder: Path) -> dict[str, Path]:
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    found = {path.name: path for path in inside if path.is_dir() and _is_sweep(path)}
    if not found:
        expected = "results of a sweep in it, or in folders in it"
        raise InputError("report", "SWEEP", str(folder), expected)
    return found


def compare_sweeps(a: SweepData, b: SweepData, ignore: Sequence[str] = ()) -> SweepComparison:
    """Raises InputError for an axis to ignore that neither has."""
    for axis in ignore:
        if axis not in a.axes and axis not in b.axes:
            known = ", ".join(dict.fromkeys([*a.axes, *b.axes])) or "none there"
            raise InputError("report", "--ignore", axis, f"an axis: {known}")
    axes = tuple(axis for axis in a.axes if axis in b.axes and axis not in ignore)
    ours, theirs = _by_key(a, axes), _by_key(b, axes)
    pairs = [_pair(a, b, rows, theirs[key]) for key, rows in ours.items() if key in theirs]
    only_a = [row for key, rows in ours.items() if key not in theirs for row in rows]
    only_b = [row for key, rows in theirs.items() if key not in ours for row in rows]
    name = a.name if a.name == b.name else f"{a.name} and {b.name}"
    return SweepComparison(name, a, b, axes, pairs, only_a, only_b)


def _by_key(data: SweepData, axes: Sequence[str]) -> dict[str, list[int]]:
    """Rows by the values of axes, best first."""
    found: dict[str, list[int]] = {}
    for row in range(len(data)):
        values = [data.axes[axis][row] for axis in axes]
        found.setdefault(json.dumps(values, default=str), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: (measured(data, row), row))
    return found


def measured(data: SweepData, row: int) -> float:
    """What ranks the point; infinite if it has none."""
    value = float(data.scores[row])
    return value if math.isfinite(value) else math.inf


def _pair(a: SweepData, b: SweepData, ours: list[int], theirs: list[int]) -> Pair:
    row_a, row_b = ours[0], theirs[0]
    same_id = a.texts["point_id"][row_a] == b.texts["point_id"][row_b]
    state = _state(a, row_a, b, row_b)
    return Pair(row_a, row_b, len(ours), len(theirs), state, same_id)


def _state(a: SweepData, row_a: int, b: SweepData, row_b: int) -> State:
    done = a.texts["status"][row_a] == FINISHED, b.texts["status"][row_b] == FINISHED
    if not any(done):
        return "fails in both"
    if not all(done):
        return "fails now" if done[0] else "finishes now"
    return "same" if a.metrics_of(row_a) == b.metrics_of(row_b) else "changed"


def _best(data: SweepData) -> str:
    return number(float(data.scores[data.ranked[0][0]])) if data.ranked else "-"


def summary_lines(comparison: Comparison) -> list[str]:
    """For the terminal."""
    lines = [f"A {comparison.a}", f"B {comparison.b}"]
    lines += [sweep.sentence() for sweep in comparison.sweeps]
    for names, side in ((comparison.only_a, "A"), (comparison.only_b, "B")):
        if names:
            lines.append(f"only in {side}: {', '.join(names)}")
    return lines
