"""The sweep file: a base point, axes over its fields, what to compare with, how to run it.

name: kv
base: {...}                          # a point, as `servesweep simulate` takes it
cards:                               # what follows the card, where `card` is an axis
  RTX4090: {card: {...}, truth: {...}}
axes:
  engine.gpu_memory_utilization: {linspace: [0.80, 0.95, 16]}
  engine.scheduler_reserve_full_isl: [true, false]
  cluster: {named: {one: {instances: [{}]}, two: {instances: [{count: 2}]}}}
zipped:                              # axes that move together
  - {engine.max_num_seqs: [64, 128], engine.max_num_batched_tokens: [1024, 2048]}
exclude:
  - {engine.gpu_memory_utilization: 0.80, engine.scheduler_reserve_full_isl: false}
truth: {recorded: bench/RTX4090/Llama-3.1-8B/vllm}
"""

from __future__ import annotations

import re
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.axes import MAX_POINTS, Axis, Named, axis_values, same
from orchestrator.truth_config import TruthConfig
from profiles.card import Card
from profiles.errors import MISSING, FieldError, InputError, parse_model, read_yaml
from simulator.config import Point

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]

FIELD = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
CARD = "card"  # the axis whose values are names under `cards`
REQUIRED = ("model", "engine", "workload", "profile")
CARD_FIELDS = ("truth", *Point.model_fields)  # what may follow the card


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Execution(Frozen):
    """How points run; none of it changes a result."""

    cpus_per_point: Annotated[float, Field(strict=True, ge=0.0001, le=1024)] = 1.0
    points_per_task: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """None: as many as take half a second, as measured on the way."""
    time_limit_s: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 600.0
    memory_limit_mib: Annotated[int, Field(strict=True, ge=64)] | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=10)] = 2
    """Of a point whose worker died; a point that failed by itself fails again."""
    max_failures: Annotated[int, Field(strict=True, ge=1)] | None = None
    keep_requests: Literal["none", "best", "all"] = "best"

    @model_validator(mode="after")
    def _cpus_as_ray_counts_them(self) -> Self:
        cpus = self.cpus_per_point
        if cpus > 1 and not cpus.is_integer():
            raise FieldError("cpus_per_point", cpus, "a whole number above 1, as Ray wants it")
        if cpus != round(cpus, 4):
            raise FieldError("cpus_per_point", cpus, "at most 4 decimals, as Ray counts")
        return self


class Tracking(Frozen):
    enabled: Annotated[bool, Field(strict=True)] = True
    uri: Annotated[str, Field(min_length=1)] | None = None
    experiment: Annotated[str, Field(pattern=r"\S", max_length=250)] | None = None


class SweepFile(Frozen):
    """A sweep as its file says it; points are made by expand.py."""

    name: Name
    base: dict[str, Any]
    cards: dict[str, dict[str, Any]] = {}
    axes: dict[str, Axis] = {}
    zipped: tuple[dict[str, Axis], ...] = ()
    exclude: tuple[dict[str, Any], ...] = ()
    truth: TruthConfig | None = None
    execution: Execution = Execution()
    tracking: Tracking = Tracking()

    def place(self, axis: str) -> str:
        """Where the file gives the axis."""
        groups = [f"zipped[{i}].{axis}" for i, group in enumerate(self.zipped) if axis in group]
        return groups[0] if groups else f"axes.{axis}"

    def value(self, axis: str, said: Any) -> Any:
        """What a point gets where the axis says so: what it names, or itself."""
        given = next(group[axis] for group in (self.axes, *self.zipped) if axis in group)
        return given.named[said] if isinstance(given, Named) else said

    def place_of_card(self, name: str, field: str) -> str:
        """Where the file gives a field that follows a card."""
        return f"cards.{name}.{field}"

    def blamed(self, axis: str, below: str, error: InputError) -> tuple[str, Any]:
        """Where the file gives what is wrong with an axis, or with a field `below` its value, and
        the wrong value that stands there."""
        return self.place(axis) + below, error.value

    @model_validator(mode="after")
    def _axes_make_sense(self) -> Self:
        known: dict[str, list[Any]] = {}
        count = 1
        for where, axes in [
            ("axes", self.axes),
            *((f"zipped[{i}]", group) for i, group in enumerate(self.zipped)),
        ]:
            lengths = {axis: len(axis_values(given)) for axis, given in axes.items()}
            for axis, given in axes.items():
                if axis in known:
                    raise FieldError(f"{where}.{axis}", axis, "an axis given once")
                if not FIELD.fullmatch(axis):
                    expected = "a field of a point by its dotted name: engine.max_num_seqs"
                    raise FieldError(where, axis, expected)
                known[axis] = axis_values(given)
                values = list(given.named.values()) if isinstance(given, Named) else known[axis]
                if axis in REQUIRED and None in values:
                    raise FieldError(f"{where}.{axis}", None, "a section, as a point must have one")
                if not lengths[axis]:
                    raise FieldError(f"{where}.{axis}", given, "at least one value")
                count *= lengths[axis] if where == "axes" else 1
            if where != "axes":
                if not axes:
                    raise FieldError(where, axes, "at least one axis")
                if len(set(lengths.values())) > 1:
                    raise FieldError(where, lengths, "as many values for each of its axes")
                count *= next(iter(lengths.values()))
        if count > MAX_POINTS:
            raise FieldError("axes", f"{count} points", f"at most {MAX_POINTS} points")
        self._check_cards(known.get(CARD))
        self._check_exclusions(known)
        return self

    def _check_cards(self, names: list[Any] | None) -> None:
        if names is None:
            if self.cards:
                raise FieldError("cards", list(self.cards), "an axis `card` that names them")
            return
        if any(isinstance(group.get(CARD), Named) for group in (self.axes, *self.zipped)):
            raise FieldError(self.place(CARD), "named", "a list: cards have names already")
        for name in names:
            if not isinstance(name, str) or name not in self.cards:
                cards = ", ".join(self.cards) or "none there"
                raise FieldError(self.place(CARD), name, f"a name under cards: {cards}")
        for name, follows in self.cards.items():
            for field in follows:
                if field not in CARD_FIELDS:
                    raise FieldError(
                        f"cards.{name}.{field}", follows[field], f"one of {', '.join(CARD_FIELDS)}"
                    )
            if not isinstance(follows.get(CARD), dict):
                expected = "the card itself: its name and memory"
                raise FieldError(f"cards.{name}.card", follows.get(CARD, MISSING), expected)
            refuse_null(follows, f"cards.{name}")
            for field, model in (("card", Card), ("truth", TruthConfig)):
                if follows.get(field) is not None:
                    check_section(model, follows[field], f"cards.{name}.{field}")

    def _check_exclusions(self, known: dict[str, list[Any]]) -> None:
        for i, excluded in enumerate(self.exclude):
            if not excluded:
                raise FieldError(f"exclude[{i}]", excluded, "values of at least one axis")
            for axis, value in excluded.items():
                if axis not in known:
                    axes = ", ".join(sorted(known)) or "none there"
                    raise FieldError(f"exclude[{i}].{axis}", axis, f"an axis: {axes}")
                if not any(same(value, one) for one in known[axis]):
                    some = ", ".join(map(str, known[axis][:8]))
                    more = ", ..." if len(known[axis]) > 8 else ""
                    raise FieldError(
                        f"exclude[{i}].{axis}", value, f"a value of the axis: {some}{more}"
                    )


def check_section(model: type[BaseModel], data: Any, field: str) -> None:
    """A section that not every sweep comes to use. Raises FieldError."""
    try:
        parse_model(model, data, field)
    except InputError as error:
        inner = "" if error.field == model.__name__ else f".{error.field}"
        raise FieldError(field + inner, error.value, error.expected) from None


def refuse_null(fields: dict[str, Any], where: str) -> None:
    """A section without fields would take the base's away and leave defaults in its place.

    Raises FieldError.
    """
    for field, value in fields.items():
        given = Point.model_fields.get(field)
        if value is None and given is not None and NoneType not in get_args(given.annotation):
            expected = "a value, or the field left out to leave it as the base has it"
            raise FieldError(f"{where}.{field}", None, expected)


def load_sweep(path: Path) -> SweepFile:
    """Read a sweep file. Raises InputError."""
    data = read_yaml(path)
    if "base" not in data and {"model", "workload"} & data.keys():
        expected = "the point to vary; this file is a point itself, `servesweep simulate` takes it"
        raise InputError(path, "base", MISSING, expected)
    sweep = parse_model(SweepFile, data, path)
    if "truth" in sweep.base:
        raise InputError(path, "base.truth", sweep.base["truth"], "truth beside base, not in it")
    return sweep
