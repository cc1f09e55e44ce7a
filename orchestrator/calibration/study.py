"""The study file: what is free, what it is fitted to, and what judges the fit.

name: rtx4090_modes
base: {...}                          # a point, as `servesweep simulate` takes it
parameters:
  decode_ms: {fields: [overhead.full_graph_ms], range: [-1.5, 0.5], resolution: 0.01}
  prefill_ms: {fields: [overhead.piecewise_ms, overhead.no_graph_ms], range: [0.0, 10.0]}
runs:
  RTX4090: {truth: {recorded: ...}, train: all}
  RTXPRO6000: {point: {card: {...}}, truth: {recorded: ...}, train: none}
objective: requests
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from orchestrator.axes import Number
from orchestrator.resolve import merge
from orchestrator.sweep import (
    CARD,
    CARD_FIELDS,
    Execution,
    Name,
    SweepFile,
    Tracking,
    check_section,
    refuse_null,
)
from orchestrator.truth_config import TruthConfig
from orchestrator.truth_part import Part
from profiles.calibrated import FIELD, SECTIONS
from profiles.card import Card
from profiles.errors import (
    MISSING,
    NO_SUCH_FIELD,
    FieldError,
    InputError,
    parse_model,
    read_yaml,
)
from simulator.config import Frozen

Side = Literal["train", "test"]
Value = int | float
Cell = tuple[Value, ...]  # a value of each parameter, in the study's order


class Parameter(Frozen):
    """Fields of a point that take one value from `range`, ends included.

    `resolution`: finer differences do not matter; a 200th of the range unless given. Whole numbers
    stay whole if range and resolution are. `points`: values of the first, coarse grid.
    """

    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    range: tuple[Number, Number]
    resolution: Number | None = None
    points: Annotated[int, Field(strict=True, ge=3, le=200)] = 13

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for field in self.fields:
            if not FIELD.fullmatch(field) or field.partition(".")[0] not in SECTIONS:
                expected = f"a field of {', '.join(SECTIONS)} by its dotted name"
                raise FieldError("fields", field, expected)
        low, high = self.range
        if not low < high:
            raise FieldError("range", self.range, "[low, high] with low below high")
        if self.resolution is not None and not 0 < self.resolution <= high - low:
            expected = f"above 0 and at most the range, {high - low:g}"
            raise FieldError("resolution", self.resolution, expected)
        return self

    @property
    def whole(self) -> bool:
        return all(isinstance(n, int) for n in (*self.range, self.resolution or 0))

    @property
    def step(self) -> float:
        low, high = self.range
        if self.resolution is not None:
            return float(self.resolution)
        return max(1.0, (high - low) // 200) if self.whole else (high - low) / 200

    def snapped(self, value: float) -> Value:
        """The nearest value that counts as different, inside the range."""
        low, high = self.range
        steps = round((value - low) / self.step)
        inside = min(max(low + steps * self.step, low), high)
        return round(inside) if self.whole else float(f"{inside:.12g}")


class StudyRun(Frozen):
    """One measured run. `point` is laid over the base.

    train: what the fit sees. test: what it is judged on; unless given, whatever it does not see.
    """

    point: dict[str, Any] = Field(default_factory=dict)
    truth: TruthConfig
    train: Literal["all", "none"] | Part = "all"
    test: Literal["all", "none", "rest"] | Part = "rest"

    @model_validator(mode="after")
    def _parts_of_a_whole(self) -> Self:
        if self.truth.part is not None:
            raise FieldError("truth.part", str(self.truth.part), "train and test instead")
        if self.train == "all" and self.test not in ("rest", "none"):
            raise FieldError(
                "test", self.test, "rest or none, because the fit sees all of this run"
            )
        return self

    def part(self, side: Side) -> Part | Literal["all", "none"]:
        if side == "train":
            return self.train
        if self.test != "rest":
            return self.test
        if isinstance(self.train, Part):
            return self.train.others
        return "none" if self.train == "all" else "all"

    def truth_of(self, side: Side) -> TruthConfig:
        part = self.part(side)
        return self.truth.model_copy(update={"part": part if isinstance(part, Part) else None})


class Search(Frozen):
    """How candidates are chosen.

    grid: a coarse grid, then finer ones around what is near the best. optuna: a sampler, for more
    parameters than a grid can hold. auto: grid up to two parameters.
    """

    method: Literal["auto", "grid", "optuna"] = "auto"
    rounds: Annotated[int, Field(strict=True, ge=1, le=20)] = 3
    near: Annotated[float, Field(gt=0, le=10)] = 0.3
    """A candidate is near the best up to this much above its objective."""
    trials: Annotated[int, Field(strict=True, ge=10, le=20_000)] = 300
    batch: Annotated[int, Field(strict=True, ge=1, le=1000)] = 20
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0


class Bootstrap(Frozen):
    samples: Annotated[int, Field(strict=True, ge=20, le=10_000)] = 200
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    seed: Annotated[int, Field(strict=True, ge=0)] = 0


class Study(Frozen):
    """A calibration as its file says it.

    objective: requests is the sum of |simulated - truth| over the training requests divided by the
    sum of the truth, the mean over TTFT, TPOT and latency; statistics is the mean |error| of 15
    statistics of them (mean, p50, p90, p95, p99). Both in %.
    """

    name: Name
    base: dict[str, Any]
    parameters: Annotated[dict[Name, Parameter], Field(min_length=1, max_length=20)]
    runs: Annotated[dict[Name, StudyRun], Field(min_length=1)]
    objective: Literal["requests", "statistics"] = "requests"
    search: Search = Search()
    bootstrap: Bootstrap = Bootstrap()
    execution: Execution = Execution(keep_requests="all")
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        known: dict[str, str] = {}
        for name, parameter in self.parameters.items():
            for field in parameter.fields:
                if field in known:
                    raise FieldError(f"parameters.{name}.fields", field, "a field given once")
                known[field] = name
        for name, run in self.runs.items():
            for field in run.point:
                if field == "truth" or field not in CARD_FIELDS:
                    expected = f"one of {', '.join(f for f in CARD_FIELDS if f != 'truth')}"
                    raise FieldError(f"runs.{name}.point.{field}", run.point[field], expected)
            refuse_null(run.point, f"runs.{name}.point")
            if not isinstance(self._card(run), dict):
                raise FieldError(f"runs.{name}.point.card", MISSING, "a card here or in base")
            where = f"runs.{name}.point.card" if CARD in run.point else "base.card"
            check_section(Card, self._card(run), where)
        if not self.training:
            raise FieldError(
                "runs", list(self.runs), "at least one run with a train that is not none"
            )
        if self.search.method == "grid" and len(self.parameters) > 3:
            raise FieldError("search.method", "grid", "optuna for more than three parameters")
        return self

    def without(self, names: set[str]) -> Study:
        """The same with these parameters left out."""
        kept = {name: p for name, p in self.parameters.items() if name not in names}
        return self.model_copy(update={"parameters": kept})

    def _card(self, run: StudyRun) -> Any:
        return run.point.get(CARD, self.base.get(CARD))

    @property
    def training(self) -> list[str]:
        return [name for name, run in self.runs.items() if run.part("train") != "none"]

    @property
    def testing(self) -> list[str]:
        return [name for name, run in self.runs.items() if run.part("test") != "none"]

    @property
    def method(self) -> Literal["grid", "optuna"]:
        if self.search.method != "auto":
            return self.search.method
        return "grid" if len(self.parameters) <= 2 else "optuna"

    def sweep(self, cells: list[Cell], runs: list[str], side: Side, suffix: str = "") -> SweepFile:
        """Candidates as a sweep over these runs; an empty cell is the base as it is."""
        cards = {}
        for name in runs:
            run = self.runs[name]
            truth = run.truth_of(side).model_dump(mode="json", exclude_none=True)
            cards[name] = {**run.point, CARD: self._card(run), "truth": truth}
        together: dict[str, Any] = {}
        if any(cells):
            for parameter, *values in zip(self.parameters.values(), *cells, strict=True):
                together |= dict.fromkeys(parameter.fields, values)
        return StudySweep(
            name=self.name + suffix,
            base=self.base,
            cards=cards,
            axes={CARD: runs},
            zipped=(together,) if together else (),
            execution=self.execution,
            tracking=self.tracking,
            study=self,
        )

    def mapping(self, run: str) -> dict[str, Any]:
        """The run's point before anything is fitted."""
        found = dict(self.base)
        merge(found, self.runs[run].point)
        return found


class StudySweep(SweepFile):
    """Candidates of a study as a sweep, whose errors name the study's fields."""

    study: Annotated[Study, Field(exclude=True, repr=False)]

    def place_of_card(self, name: str, field: str) -> str:
        section = field.partition(".")[0]
        if section == "truth":
            return f"runs.{name}.{field}"
        own = section in self.study.runs[name].point
        return f"runs.{name}.point.{field}" if own else f"base.{field}"

    def blamed(self, axis: str, below: str, error: InputError) -> tuple[str, Any]:
        name, given = next((n, p) for n, p in self.study.parameters.items() if axis in p.fields)
        if error.expected.startswith(NO_SUCH_FIELD):
            return f"parameters.{name}.fields", axis
        if not given.whole and all(isinstance(end, int) for end in given.range):
            return f"parameters.{name}.resolution", given.resolution  # makes whole ends fractions
        return f"parameters.{name}.range", error.value


def load_study(path: Path) -> Study:
    """Raises InputError."""
    data = read_yaml(path)
    if "axes" in data:
        raise InputError(path, "axes", data["axes"], "parameters; this is a sweep, `run` takes it")
    study = parse_model(Study, data, path)
    if study.execution.keep_requests != "all":
        # The objective is made of every candidate's requests.
        execution = study.execution.model_copy(update={"keep_requests": "all"})
        study = study.model_copy(update={"execution": execution})
    return study
