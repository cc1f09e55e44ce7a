"""How generated lengths and arrival times are distributed."""

from __future__ import annotations

from math import log
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.errors import FieldError
from simulator.workloads.workload import MAX_NS

NS_PER_S = 1_000_000_000

Tokens = Annotated[int, Field(ge=1, le=1 << 24)]


class Settings(BaseModel):
    """What a person writes. Unknown fields are errors, and `true` is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LogNormal(Settings):
    """A long-tailed length; values outside `min`..`max` are moved to the nearer end."""

    median: Annotated[float, Field(gt=0)] | None = None
    mean: Annotated[float, Field(gt=0)] | None = None  # before values are moved to min and max
    sigma: Annotated[float, Field(ge=0, le=10)]  # standard deviation of the logarithm
    min: Tokens = 1
    max: Tokens

    @model_validator(mode="after")
    def _check(self) -> LogNormal:
        if (self.median is None) == (self.mean is None):
            raise ValueError("exactly one of median and mean")
        if self.min > self.max:
            raise ValueError("min not above max")
        return self

    @property
    def mu(self) -> float:
        if self.median is not None:
            return log(self.median)
        assert self.mean is not None
        return log(self.mean) - self.sigma**2 / 2


class Lengths(Settings):
    """A distribution of whole numbers: exactly one of its fields."""

    fixed: Tokens | None = None
    uniform: Annotated[tuple[Tokens, Tokens] | None, Field(strict=False)] = None  # ends included
    lognormal: LogNormal | None = None

    @model_validator(mode="after")
    def _check(self) -> Lengths:
        if [self.fixed, self.uniform, self.lognormal].count(None) != 2:
            raise ValueError("exactly one of fixed, uniform and lognormal")
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise ValueError("uniform: [smallest, largest]")
        return self

    def draw(self, random: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
        if self.fixed is not None:
            return np.full(n, self.fixed, np.int64)
        if self.uniform is not None:
            return random.integers(self.uniform[0], self.uniform[1], n, np.int64, endpoint=True)
        assert self.lognormal is not None
        x = self.lognormal
        lengths = np.rint(random.lognormal(x.mu, x.sigma, n)).clip(x.min, x.max)
        return lengths.astype(np.int64)


class Arrivals(Settings):
    """When requests, or sessions, arrive."""

    process: Literal["poisson", "gamma", "constant", "burst", "closed_loop"] = "poisson"
    rate: Annotated[float, Field(gt=0)] | None = None  # per second; burst: everything at time 0
    cv: Annotated[float, Field(ge=1e-3, le=1e3)] | None = (
        None  # gamma: deviation / mean of the gaps, 1: poisson
    )
    concurrency: Annotated[int, Field(ge=1, le=1 << 20)] | None = (
        None  # closed_loop: so many clients, each with one request after the other
    )

    @model_validator(mode="after")
    def _check(self) -> Arrivals:
        timed = self.process not in ("burst", "closed_loop")
        if not timed and self.rate is not None:
            raise ValueError(f"no rate, because a {self.process} has none")
        if timed and self.rate is None:
            raise ValueError("a rate, in requests (or sessions) per second")
        if (self.process == "closed_loop") != (self.concurrency is not None):
            raise ValueError("a concurrency for a closed_loop, and only for that")
        if (self.process == "gamma") != (self.cv is not None):
            raise ValueError("a cv for a gamma process, and only for that")
        return self

    def draw(self, random: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
        """`n` times in ns, never decreasing; another rate only stretches the same arrivals."""
        if self.rate is None:
            return np.zeros(n, np.int64)
        if self.cv is not None:
            gaps = random.standard_gamma(1 / self.cv**2, n) * self.cv**2
        elif self.process == "poisson":
            gaps = random.standard_exponential(n)
        else:
            gaps = np.ones(n)
            gaps[0] = 0
        seconds = np.cumsum(gaps) / self.rate
        if seconds[-1] > MAX_NS / NS_PER_S:
            expected = f"a rate at which {n} requests arrive within 36 years"
            raise FieldError("generate.arrivals.rate", self.rate, expected)
        return np.rint(seconds * NS_PER_S).astype(np.int64)
