"""Cells of the grid as points: base, what follows the card, then the axes' values.

A section that many cells have in common is read and checked once. An error names the field where the
sweep file has it, and the cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.sweep import CARD, SweepFile
from orchestrator.truth import load_truth
from orchestrator.truth_config import TruthConfig
from orchestrator.truth_data import Truth
from profiles.errors import NO_SUCH_FIELD, InputError, parse_model
from simulator.calibration import with_calibration
from simulator.config import PROFILE_SOURCES, Point, point_from_mapping
from simulator.simulation import Prepared, prepare

# Sections that say exactly one of several things: another one takes the place of the first.
ALTERNATIVES = {
    "profile": set(PROFILE_SOURCES),
    "workload": {"jsonl", "csv", "mooncake", "vllm_bench", "manifest", "generate"},
}

TRUTH = "truth."  # axes of the truth instead of the point
HERE = "the point itself"  # stands for the cell until an error has to name it


class NotASection(InputError):
    """What a file has for a whole section of the point is none."""

    def __init__(self, field: str, value: Any, expected: str) -> None:
        super().__init__(HERE, field, value, expected)


class Resolver:
    """Makes the points of one sweep file."""

    def __init__(self, sweep: SweepFile, path: Path) -> None:
        self._sweep, self._path = sweep, path
        self._sections: dict[tuple[str, str], Any] = {}
        self._truths: dict[str, Truth | None] = {}

    def point(self, index: int, axes: dict[str, Any]) -> Point:
        """Raises InputError."""
        try:
            mapping = with_calibration(self._mapping(axes), self._path.parent, HERE)
        except InputError as error:
            raise self._located(error, index, axes) from None
        keys = {name: (name, repr(value)) for name, value in mapping.items() if value is not None}
        for name, key in keys.items():
            mapping[name] = self._sections.get(key, mapping[name])
        try:
            point = point_from_mapping(mapping, self._path.parent, HERE)
        except InputError as error:
            raise self._located(error, index, axes) from None
        for name, key in keys.items():
            self._sections.setdefault(key, getattr(point, name))
        return point

    def prepared(self, index: int, axes: dict[str, Any], point: Point) -> Prepared:
        """Raises InputError."""
        try:
            return prepare(point, HERE)
        except InputError as error:
            raise self._located(error, index, axes) from None

    def truth(self, axes: dict[str, Any]) -> Truth | None:
        """The card's, or the sweep's, with what axes below `truth` say. Raises InputError."""
        given, place = self._sweep.truth, "truth"
        if CARD in axes and self._sweep.cards[axes[CARD]].get("truth") is not None:
            given = self._sweep.cards[axes[CARD]]["truth"]
            place = self._sweep.place_of_card(axes[CARD], "truth")
        own = {axis: value for axis, value in axes.items() if axis.startswith(TRUTH)}
        if given is None and not own:
            return None
        data = (
            given
            if isinstance(given, dict)
            else given.model_dump(exclude_none=True)
            if given
            else {}
        )
        mapping = {"truth": data}
        for axis, value in own.items():
            try:
                self._assign(mapping, axis, self._sweep.value(axis, value))
            except InputError as error:
                where = self._sweep.place(axis)
                raise InputError(self._path, where, error.value, error.expected) from None
        try:
            config = parse_model(TruthConfig, mapping["truth"], self._path)
        except InputError as error:
            field = "" if error.field == TruthConfig.__name__ else error.field
            wrong = next((a for a in own if a == f"{TRUTH}{field}"), None)
            where = self._sweep.place(wrong) if wrong else f"{place}.{field}".rstrip(".")
            raise InputError(self._path, where, error.value, error.expected) from None
        key = config.model_dump_json()
        if key not in self._truths:
            try:
                self._truths[key] = load_truth(config, self._path.parent)
            except InputError as error:
                source = f"{self._path}, {place}: {error.source}"
                raise InputError(source, error.field, error.value, error.expected) from None
        return self._truths[key]

    def _mapping(self, axes: dict[str, Any]) -> dict[str, Any]:
        mapping = dict(self._sweep.base)
        if CARD in axes:
            follows = self._sweep.cards[axes[CARD]]
            merge(mapping, {name: value for name, value in follows.items() if name != "truth"})
        for axis in sorted(axes, key=lambda axis: axis.count(".")):  # a section before its fields
            if axis != CARD and not axis.startswith(TRUTH):
                self._assign(mapping, axis, self._sweep.value(axis, axes[axis]))
        return mapping

    def _assign(self, mapping: dict[str, Any], axis: str, value: Any) -> None:
        *sections, field = axis.split(".")
        for depth, section in enumerate(sections):
            inner = mapping.get(section)
            if inner is not None and not isinstance(inner, dict):
                if depth == 0:  # whatever the axis, this is one
                    raise NotASection(section, inner, f"a section with fields, such as {axis}")
                expected = f"{NO_SUCH_FIELD}: {section} is {inner!r}, not a section with fields"
                raise InputError(HERE, axis, value, expected)
            mapping[section] = dict(inner or {})
            mapping = mapping[section]
        mapping[field] = value

    def _located(self, error: InputError, index: int, axes: dict[str, Any]) -> InputError:
        """The error with the cell, and the field where the sweep file has it."""
        source = f"{self._path}, point {index} ({shown(axes)})" if axes else str(self._path)
        if isinstance(error, NotASection):
            return InputError(source, self._below(error.field, axes), error.value, error.expected)
        if error.source == HERE:
            place, value = self._place(error.field, axes, error)
            return InputError(source, place, value, error.expected)
        if error.source.startswith(f"{HERE}, "):
            field, _, file = error.source.removeprefix(f"{HERE}, ").partition(": ")
            source = f"{source}, {self._place(field, axes, error)[0]}"
            return InputError(f"{source}: {file}", error.field, error.value, error.expected)
        return InputError(f"{source}: {error.source}", error.field, error.value, error.expected)

    def _place(self, field: str, axes: dict[str, Any], error: InputError) -> tuple[str, Any]:
        """Where the file gives the field, and the wrong value that stands there."""
        for axis in axes:
            if axis == CARD:
                continue
            if field == axis or field.startswith((f"{axis}.", f"{axis}[")):
                return self._sweep.blamed(axis, field[len(axis) :], error)
            if axis.startswith(f"{field}."):
                return self._sweep.blamed(axis, "", error)
        return self._below(field, axes), error.value

    def _below(self, field: str, axes: dict[str, Any]) -> str:
        """Where the file gives a field that is not an axis."""
        section = field.partition(".")[0].partition("[")[0]
        if CARD in axes and section in self._sweep.cards[axes[CARD]]:
            return self._sweep.place_of_card(axes[CARD], field)
        return f"base.{field}"


def merge(mapping: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Lay `overrides` over `mapping`, section by section; a card is a whole."""
    for name, value in overrides.items():
        before = mapping.get(name)
        if name == CARD or not isinstance(value, dict) or not isinstance(before, dict):
            mapping[name] = value
            continue
        among = ALTERNATIVES.get(name, set())
        replaced = among if among & value.keys() else set()
        mapping[name] = {f: v for f, v in before.items() if f not in replaced} | value


def shown(axes: dict[str, Any]) -> str:
    return ", ".join(f"{axis} {short(value)}" for axis, value in axes.items())


def short(value: Any, limit: int = 40) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
