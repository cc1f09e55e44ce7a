"""What is tracked, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Scalar = str | int | float | bool


@dataclass(frozen=True)
class TrackedPoint:
    """One point, or a ground truth.

    `series` maps a name such as `series/running` to (simulated second, value) pairs; the second
    becomes MLflow's step, so that points and truth lie over each other. Leave it empty for points
    whose series stay in Parquet: a point that was tracked with series keeps them when it is
    tracked again without.
    """

    point_id: str
    name: str
    params: Mapping[str, Scalar] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    status: Literal["finished", "failed"] = "finished"
    reason: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None


@dataclass(frozen=True)
class TrackedSweep:
    """The sweep itself; becomes the parent of its points' runs."""

    name: str
    sweep_id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Scalar] = field(default_factory=dict)
    truths: Sequence[TrackedPoint] = ()
    order_by: str = "err_pct/mean_abs"
    """The metric by which the link to MLflow's page sorts, smallest first."""
    artifacts: Sequence[Path] = ()
    started_ms: int | None = None


@dataclass(frozen=True)
class TrackingReport:
    """What became of the points that were handed over, ground truths among them.

    `failed` names points MLflow refused, with the reason; they are refused again next time.
    `pending` counts what is not written yet: tracking the same sweep again writes it. `problem`
    says why something is pending, in MLflow's words.
    """

    address: str
    experiment: str
    written: int = 0
    already_there: int = 0
    pending: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    notes: Sequence[str] = ()
    ui: str = ""
    wall_s: float = 0.0

    @property
    def complete(self) -> bool:
        return not self.pending and not self.failed and self.problem is None

    def __str__(self) -> str:
        counts = f"{self.written} runs written, {self.already_there} already there"
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            counts += f", {len(self.failed)} refused (first: {name}: {reason})"
        if self.pending:
            counts += f", {self.pending} pending"
        if self.problem:
            counts += f" ({self.problem})"
        return f"MLflow: {counts}" + (f"; {self.ui}" if self.ui else "")
