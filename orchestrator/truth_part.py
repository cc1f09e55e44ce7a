"""A part of a truth's requests: what a fit sees, or what is held out to judge it.

The part of a truth is a truth of its own: its statistics are of these requests alone, and it holds
nothing of the others. A result is compared in the same rows, so the requests of the truth have to be
those of the workload, in its order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from profiles.bundle import Ints
from profiles.errors import FieldError, InputError
from simulator.config import Frozen

if TYPE_CHECKING:
    from orchestrator.truth_data import Truth, TruthRequests

Count = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Part(Frozen):
    """Which requests, by exactly one of:

    every: one of N, starting with request `first`.
    window_s: those that arrived from..to seconds after the first one, the end left out.
    share: a random share, drawn with `seed`.
    `rest` takes all others instead.
    """

    every: Annotated[int, Field(strict=True, ge=2)] | None = None
    first: Count = 0
    window_s: tuple[Seconds, Seconds] | None = None
    share: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = None
    seed: Count = 0
    rest: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [n for n in ("every", "window_s", "share") if getattr(self, n) is not None]
        if len(given) != 1:
            raise FieldError("", given or None, "exactly one of every, window_s, share")
        if self.every is not None and self.first >= self.every:
            raise FieldError("first", self.first, f"less than every ({self.every})")
        if self.window_s is not None and self.window_s[0] >= self.window_s[1]:
            raise FieldError("window_s", self.window_s, "[from, to] with from before to")
        return self

    @property
    def others(self) -> Part:
        return self.model_copy(update={"rest": not self.rest})

    def __str__(self) -> str:
        rule = (
            f"every {self.every} from {self.first}"
            if self.every is not None
            else f"arrived from {self.window_s[0]:g} to {self.window_s[1]:g} s"
            if self.window_s is not None
            else f"a share of {self.share:g} (seed {self.seed})"
        )
        return f"all but {rule}" if self.rest else rule

    def rows(self, requests: TruthRequests) -> Ints:
        """Indices of the requests that belong to it."""
        inside = self._inside(requests)
        return np.flatnonzero(inside != self.rest)

    def _inside(self, requests: TruthRequests) -> NDArray[np.bool_]:
        total = len(requests)
        if self.every is not None:
            taken: NDArray[np.bool_] = np.arange(total) % self.every == self.first
            return taken
        if self.share is not None:
            drawn = np.random.default_rng(self.seed).permutation(total)
            inside = np.zeros(total, bool)
            inside[drawn[: round(self.share * total)]] = True
            return inside
        assert self.window_s is not None
        if requests.start_s is None:
            raise FieldError("window_s", self.window_s, "a truth that says when requests arrived")
        begin, end = self.window_s
        found: NDArray[np.bool_] = (requests.start_s >= begin) & (requests.start_s < end)
        return found


def part_of(truth: Truth, part: Part) -> Truth:
    """The truth of these requests alone. Raises InputError if there are none to take."""
    if truth.requests is None:
        expected = "a truth with requests; this one has statistics alone"
        raise InputError(truth.source, "part", str(part), expected)
    try:
        rows = part.rows(truth.requests)
    except FieldError as error:
        raise InputError(truth.source, f"part.{error.field}", error.value, error.expected) from None
    if not len(rows):
        raise InputError(truth.source, "part", str(part), "at least one request")
    return rows_of(truth, rows)


def rows_of(truth: Truth, rows: Ints) -> Truth:
    """The truth of the requests in these rows."""
    # A file of settings is checked before what reads tables is loaded.
    from orchestrator.truth_data import HEADLINE, content_id, statistics

    assert truth.requests is not None
    requests = truth.requests.take(rows)
    done = ~requests.failed
    metrics = {}
    if done.any():
        metrics = {name: statistics(getattr(requests, name)[done]) for name in HEADLINE}
    if not truth.single_tokens_in_tpot:
        several = done & (requests.num_output_tokens > 1)
        metrics.pop("tpot_ms", None)
        if several.any():
            metrics["tpot_ms"] = statistics(requests.tpot_ms[several])
    return replace(
        truth,
        content_id=content_id("part", truth.content_id, rows.astype("<i8").tobytes()),
        num_requests=None,
        metrics=metrics,
        requests=requests,
        series={},
        makespan_ms=None,
        throughput={},
        rows=rows,
        notes=(*truth.notes, f"{len(rows)} of {len(truth.requests)} requests"),
    )
