"""The values of an axis: a list as it stands, values by rule, or values with names."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from profiles.errors import FieldError, finite_number, input_error

MAX_POINTS = 200_000  # of a sweep, and so of an axis


Number = Annotated[float, PlainValidator(finite_number)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_POINTS)]


class Spaced(BaseModel):
    """Values by rule; exactly one of the three. Ends are included, a range's stop too if hit.

    linspace, logspace: [first, last, count]; logspace is geometric between its ends.
    range: [start, stop, step].
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        ends = self.linspace or self.logspace
        if ends and ends[2] == 1 and ends[0] != ends[1]:
            raise FieldError(given[0], ends, "a count of at least 2, for both ends")
        if self.range:
            start, stop, step = self.range
            if step == 0 or (stop - start) / step < 0:
                raise FieldError("range", self.range, "a step that leads from start to stop")
            if (stop - start) / step >= MAX_POINTS:
                raise FieldError("range", self.range, f"at most {MAX_POINTS} values")
        return self

    def values(self) -> list[float | int]:
        """Worked out in decimals, so that 0.1 stays 0.1 and whole numbers stay what they are.

        What is no whole number is rounded to 12 digits.
        """
        if self.logspace:
            first, last, count = self.logspace
            grown = (math.log(last) - math.log(first)) / max(1, count - 1)
            inner = [math.exp(math.log(first) + i * grown) for i in range(1, count - 1)]
            ends = [first] if count == 1 else [first, last]
            rounded = [float(f"{x:.12g}") for x in inner]
            return [_number(Decimal(repr(x))) for x in (*ends[:1], *rounded, *ends[1:])]
        with localcontext(prec=60):
            if self.range:
                start, stop, step = (Decimal(repr(x)) for x in self.range)
                return [_number(start + i * step) for i in range(int((stop - start) / step) + 1)]
            assert self.linspace is not None
            low, high = (Decimal(repr(x)) for x in self.linspace[:2])
            steps = max(1, self.linspace[2] - 1)
            exact = [low + i * (high - low) / steps for i in range(self.linspace[2])]
            return [_number(x) for x in exact]


class Named(BaseModel):
    """Values that results, exclusions and pictures call by a name, such as whole clusters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    named: Annotated[
        dict[Annotated[str, Field(pattern=r"^[^\s\x00-\x1f](.*[^\s])?$", max_length=60)], Any],
        Field(min_length=1),
    ]


def _number(x: Decimal) -> float | int:
    whole = x.to_integral_value()
    if x == whole:
        return int(whole) if abs(whole) < 1 << 63 else float(x)
    return float(f"{x:.12g}")


def _axis(given: Any) -> Any:
    """Tell the two forms apart before pydantic tries both and reports on the wrong one."""
    if isinstance(given, list):
        return given
    if not isinstance(given, dict):
        raise FieldError("", given, "a list of values, or one of linspace, logspace, range, named")
    form: type[Spaced] | type[Named] = Named if "named" in given else Spaced
    try:
        return form.model_validate(given)
    except ValidationError as error:
        wrong = input_error(error, "", form)
        field = "" if wrong.field == form.__name__ else wrong.field
        raise FieldError(field, wrong.value, wrong.expected) from None


Axis = Annotated[Spaced | Named | list[Any], BeforeValidator(_axis)]


def axis_values(given: Spaced | Named | list[Any]) -> list[Any]:
    """What cells and results hold; the names of named values."""
    if isinstance(given, Named):
        return list(given.named)
    return given.values() if isinstance(given, Spaced) else given


def same(one: Any, other: Any) -> bool:
    """Whether two values of an axis are one: to Python true is 1, to a field it is not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
