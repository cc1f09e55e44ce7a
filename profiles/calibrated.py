"""A calibrated card: the settings that make the simulator reproduce recorded runs of one engine build.

Written by `servesweep calibrate`, named by a point (`calibration: FILE`). The file says what was
fitted, on which data, with which version, and how well; applying it takes `parameters` alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from profiles.errors import FieldError, finite_number, parse_model, read_yaml

SECTIONS = ("card", "engine", "overhead", "profile", "tiers")
FIELD = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)+")

Number = Annotated[float, Field(allow_inf_nan=False)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimate(Frozen):
    """One parameter: the fields of a point that take its value, and its interval if there is one."""

    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    value: Annotated[int | float, PlainValidator(finite_number)]
    low: Number | None = None
    high: Number | None = None

    @model_validator(mode="after")
    def _fields_of_the_card(self) -> Self:
        for field in self.fields:
            section = field.partition(".")[0]
            if not FIELD.fullmatch(field) or section not in SECTIONS:
                expected = f"a field of {', '.join(SECTIONS)} by its dotted name"
                raise FieldError("fields", field, expected)
        return self


class CalibratedCard(Frozen):
    """The content of the file.

    `card` and `model` are those of the first run it was fitted to; `data`: run -> content ids, part,
    card and model of each. `errors`: run -> part -> metric -> value, in %.
    """

    name: Annotated[str, Field(min_length=1)]
    card: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)]
    parameters: Annotated[dict[str, Estimate], Field(min_length=1)]
    objective: str = ""
    confidence: float | None = None
    data: dict[str, dict[str, str]] = {}
    versions: dict[str, str] = {}
    errors: dict[str, dict[str, dict[str, float]]] = {}
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _each_field_once(self) -> Self:
        known: set[str] = set()
        for name, estimate in self.parameters.items():
            for field in estimate.fields:
                if field in known:
                    raise FieldError(f"parameters.{name}.fields", field, "a field set once")
                known.add(field)
        return self

    @property
    def others(self) -> tuple[tuple[str, str], ...]:
        """Further cards it was fitted to, each with its model."""
        fitted = (
            (run.get("card", self.card), run.get("model", self.model)) for run in self.data.values()
        )
        return tuple(one for one in dict.fromkeys(fitted) if one != (self.card, self.model))

    @property
    def fitted_to(self) -> str:
        """Models and cards in words."""
        pairs = ((self.card, self.model), *self.others)
        return " and ".join(f"{model} on {card}" for card, model in pairs)

    @property
    def content_id(self) -> str:
        """Of what it applies: cards and values, not of how they were found."""
        applied: dict[str, Any] = {"card": self.card, "model": self.model}
        applied["fields"] = self.field_values()
        if self.others:
            applied["others"] = self.others
        return hashlib.sha256(json.dumps(applied, sort_keys=True).encode()).hexdigest()

    def field_values(self) -> dict[str, int | float]:
        """Every field with its value."""
        return {f: estimate.value for estimate in self.parameters.values() for f in estimate.fields}


def load_calibrated_card(path: Path) -> CalibratedCard:
    """Raises InputError."""
    data: dict[str, Any] = read_yaml(path)
    return parse_model(CalibratedCard, data, path)
