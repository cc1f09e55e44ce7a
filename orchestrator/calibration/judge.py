"""The fit beside the settings as they were, on what it saw and on what was held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.calibration.evaluate import Candidates, Evaluator
from orchestrator.calibration.objective import RunValues, objective
from orchestrator.calibration.study import Cell, Side, Study
from orchestrator.calibration.uncertainty import interval_of

HELD_OUT = "held out"


@dataclass(frozen=True)
class Judged:
    """Errors of one run on one side, in %, before and after; nan where requests were not served.

    `requests` and `statistics` as the study's objective defines them; intervals of the fit's.
    """

    run: str
    side: Side
    part: str
    num_requests: int
    before: dict[str, float]
    after: dict[str, float]
    intervals: dict[str, tuple[float, float]]

    @property
    def label(self) -> str:
        return "fitted" if self.side == "train" else HELD_OUT


def judge(study: Study, evaluator: Evaluator, cell: Cell) -> list[Judged]:
    """Training sides first."""
    found: list[Judged] = []
    sides: list[tuple[Side, list[str]]] = [("train", study.training), ("test", study.testing)]
    for side, runs in sides:
        if not runs:
            continue
        before = evaluator.as_it_was(runs, side)
        after = evaluator.run([cell], runs, side)
        found += [_judged(study, run, side, before, after) for run in runs]
    return found


def _judged(study: Study, run: str, side: Side, before: Candidates, after: Candidates) -> Judged:
    at = before.runs.index(run)
    old, new = before.values()[at], after.values()[at]
    intervals = {}
    if np.isfinite(new.simulated).all():
        intervals = {
            "requests": interval_of(study, new, "requests"),
            "statistics": interval_of(study, new, "statistics"),
        }
    return Judged(
        run=run,
        side=side,
        part=str(study.runs[run].part(side)),
        num_requests=len(new),
        before=_errors(old),
        after=_errors(new),
        intervals=intervals,
    )


def _errors(run: RunValues) -> dict[str, float]:
    return {
        "requests": float(objective("requests", [run])[0]),
        "statistics": float(objective("statistics", [run])[0]),
    }
