"""The suite file: what is measured every night, and within which bands.

name: nightly
baseline: baseline                       # folder of what was accepted, beside this file
oracle:                                  # every recorded scenario below, in every mode it has
  decisions: ../../tests/oracle/recordings
points:
  rtx4090:
    group: replays
    needs: ../../../shared               # not there: skipped, and the report says so
    point: {...}                         # or the path of a point file
    truth: {recorded: ...}
    bands: {err_pct/mean_abs: 1.0}       # at most, either side of 0
groups:
  replays: {bands: {err_pct/mean_abs: 0.8}, worse: {err_pct/mean_abs: 0.05}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from orchestrator.sweep import Execution, Name, Tracking
from orchestrator.truth_config import TruthConfig
from profiles.errors import MISSING, FieldError, InputError, parse_model, read_yaml
from simulator.config import Frozen

Band = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bands = dict[str, Band]


class PointCase(Frozen):
    """One point. `needs`: a file or folder without which the case is skipped.

    bands: metric -> most that its absolute value may be.
    """

    point: Path | dict[str, Any]
    group: Name
    needs: Path | None = None
    truth: TruthConfig | None = None
    bands: Bands = Field(default_factory=dict)


class Group(Frozen):
    """bands: metric -> most that the mean of its absolute values over the group's cases may be.

    worse: metric -> how much it may grow beyond the last accepted night's.
    Every case of the group that is measured must have each of these metrics.
    """

    bands: Bands = Field(default_factory=dict)
    worse: Bands = Field(default_factory=dict)


class Suite(Frozen):
    name: Name
    baseline: Path
    oracle: dict[Name, Path] = Field(default_factory=dict)
    points: dict[Name, PointCase] = Field(default_factory=dict)
    groups: dict[Name, Group] = Field(default_factory=dict)
    execution: Execution = Execution(keep_requests="all")
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _groups_have_cases(self) -> Self:
        used = {case.group for case in self.points.values()} | set(self.oracle)
        for name in self.groups:
            if name not in used:
                known = ", ".join(sorted(used)) or "none"
                raise FieldError(f"groups.{name}", name, f"a group with cases: {known}")
        for name, case in self.points.items():
            if case.group in self.oracle:
                expected = "a group of points; the name is one of oracle"
                raise FieldError(f"points.{name}.group", case.group, expected)
        return self


def load_suite(path: Path) -> Suite:
    """Raises InputError, for a suite without a case as well."""
    data = read_yaml(path)
    suite = parse_model(Suite, data, path)
    if not suite.oracle and not suite.points:
        expected = "cases under oracle or points: an empty suite measures nothing"
        raise InputError(path, "points", MISSING, expected)
    return suite
