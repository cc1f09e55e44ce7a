"""The sweep file: a base point, axes over its fields, what to compare with, how to run it.

name: kv
base: {...}                          # a point, as `servesweep simulate` takes it
cards:                               # what follows the card, where `card` is an axis
  RTX4090: {card: {...}, truth: {...}}
axes:
  engine.gpu_memory_utilization: {linspace: [0.80, 0.95, 16]}
  engine.scheduler_reserve_full_isl: [true, false]
zipped:                              # axes that move together
  - {engine.max_num_seqs: [64, 128], engine.max_num_batched_tokens: [1024, 2048]}
exclude:
  - {engine.gpu_memory_utilization: 0.80, engine.scheduler_reserve_full_isl: false}
truth: {recorded: bench/RTX4090/Llama-3.1-8B/vllm}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.truth_config import TruthConfig
from profiles.errors import FieldError, InputError, parse_model, read_yaml

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]

CARD = "card"  # the axis whose values are names under `cards`


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spaced(Frozen):
    """Values by rule; exactly one of the three. Ends are included, a range's stop too if hit.

    linspace, logspace: [first, last, count]; logspace is geometric between its ends.
    range: [start, stop, step].
    """

    linspace: tuple[Number, Number, Count] | None = None
    logspace: tuple[Number, Number, Count] | None = None
    range: tuple[Number, Number, Number] | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [n for n in ("linspace", "logspace", "range") if getattr(self, n) is not None]
        if len(given) != 1:
            raise FieldError("", given or None, "exactly one of linspace, logspace, range")
        if self.logspace and min(self.logspace[:2]) <= 0:
            raise FieldError("logspace", self.logspace, "ends above 0")
        if self.range and (
            self.range[2] == 0 or (self.range[1] - self.range[0]) / self.range[2] < 0
        ):
            raise FieldError("range", self.range, "a step that leads from start to stop")
        return self

    def values(self) -> list[float | int]:
        """Whole numbers are integers; others are rounded to 12 digits, so that 0.1 stays 0.1."""
        if self.linspace:
            first, last, count = self.linspace
            raw = np.linspace(first, last, count).tolist()
        elif self.logspace:
            first, last, count = self.logspace
            raw = np.geomspace(first, last, count).tolist()
        else:
            assert self.range is not None
            start, stop, step = self.range
            raw = [start + i * step for i in range(math.floor((stop - start) / step + 1e-9) + 1)]
        whole = all(float(x).is_integer() for x in (self.range or ()))
        return [round(x) if self.range and whole else _rounded(x) for x in raw]


def _rounded(x: float) -> float | int:
    return float(f"{x:.12g}")


class Execution(Frozen):
    """How points run; none of it changes a result."""

    cpus_per_point: Annotated[float, Field(gt=0, le=1024)] = 1.0
    points_per_task: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """None: as many as take about a second, measured on the first."""
    time_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    memory_limit_mib: Annotated[int, Field(strict=True, ge=64)] | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=10)] = 2
    """Of a point whose worker died; a point that failed by itself fails again."""
    max_failures: Annotated[int, Field(strict=True, ge=1)] | None = None
    keep_requests: Literal["none", "best", "all"] = "best"


class Tracking(Frozen):
    enabled: bool = True
    uri: str | None = None
    experiment: str | None = None


class SweepFile(Frozen):
    """A sweep as its file says it; points are made by expand.py."""

    name: Name
    base: dict[str, Any]
    cards: dict[str, dict[str, Any]] = {}
    axes: dict[str, Spaced | list[Any]] = {}
    zipped: tuple[dict[str, Spaced | list[Any]], ...] = ()
    exclude: tuple[dict[str, Any], ...] = ()
    truth: TruthConfig | None = None
    execution: Execution = Execution()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _axes_make_sense(self) -> Self:
        known: set[str] = set()
        for where, axes in [
            ("axes", self.axes),
            *((f"zipped[{i}]", z) for i, z in enumerate(self.zipped)),
        ]:
            for axis, given in axes.items():
                if axis in known:
                    raise FieldError(f"{where}.{axis}", axis, "an axis given once")
                known.add(axis)
                values = axis_values(given)
                if not values:
                    raise FieldError(f"{where}.{axis}", given, "at least one value")
                if axis == CARD and (missing := [v for v in values if v not in self.cards]):
                    cards = ", ".join(self.cards) or "none there"
                    raise FieldError(f"{where}.{axis}", missing[0], f"a name under cards: {cards}")
            lengths = {axis: len(axis_values(given)) for axis, given in axes.items()}
            if where != "axes" and len(set(lengths.values())) > 1:
                raise FieldError(where, lengths, "as many values for each of its axes")
        for i, excluded in enumerate(self.exclude):
            for axis in excluded:
                if axis not in known:
                    raise FieldError(
                        f"exclude[{i}].{axis}", axis, f"an axis: {', '.join(sorted(known))}"
                    )
        return self


def axis_values(given: Spaced | list[Any]) -> list[Any]:
    return given.values() if isinstance(given, Spaced) else given


def load_sweep(path: Path) -> SweepFile:
    """Read a sweep file. Raises InputError."""
    sweep = parse_model(SweepFile, read_yaml(path), path)
    if "truth" in sweep.base:
        raise InputError(path, "base.truth", sweep.base["truth"], "truth beside base, not in it")
    return sweep
