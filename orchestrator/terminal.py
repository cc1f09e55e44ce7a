"""What a sweep shows on a terminal: progress, failures, the plan."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from orchestrator.estimate import estimate
from orchestrator.expand import SweepPoint
from orchestrator.plan import Plan
from orchestrator.ranking import MEAN_ABS, score
from orchestrator.session import Session


class TerminalProgress:
    """A bar on a terminal, a line now and then elsewhere; failures when they happen."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._best: float | None = None
        self._shown: dict[str, str] = {}

    def begin(self, plan: Plan) -> None:
        left = len(plan.to_run())
        self._bar = tqdm(
            total=left,
            unit="point",
            disable=left == 0,
            mininterval=0.5 if sys.stderr.isatty() else 20.0,
        )

    def advance(self, plan: Plan, outcome: dict[str, Any], point: SweepPoint) -> None:
        assert self._bar is not None  # begin comes first
        if self._bar.n == 0:
            self._bar.unpause()  # what starting took says nothing about the rate
        value = score(outcome.get("metrics") or {}, MEAN_ABS)
        if value is not None and (self._best is None or value < self._best):
            self._best = value
            self._shown["best"] = f"best {value:.2f} %: {point.name}"
        if plan.failed:
            self._shown["failed"] = f"{plan.failed} failed"
        self._bar.set_postfix_str(", ".join(self._shown.values()), refresh=False)
        self._bar.update(1)

    def failure(self, outcome: dict[str, Any], point: SweepPoint) -> None:
        tqdm.write(
            f"failed {outcome['point_id']} ({point.name}): {outcome['status']}: {outcome['reason']}",
            file=sys.stderr,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def resume_line(plan: Plan) -> str:
    """What the folder's journal brings along, and what it does not."""
    line = f"resuming: {plan.resumed} points are done"
    if plan.others:
        line += f", {plan.others} are of other settings, inputs or versions and do not count"
    return line


def plan_lines(session: Session) -> list[str]:
    """What `run` would do, a line a point."""
    plan = session.plan
    to_run = {point.point_id for point in plan.to_run()}
    lines = [f"{'point':17s} {'blocks':>8s}  {'state':24s} axes"]
    for point, outcome, equals in plan.rows():
        if equals is not None:
            state = f"equals {equals.point_id}"
        elif outcome is not None:
            state = "done"
        else:
            before = plan.failed_before.get(point.point_id)
            state = f"to run again: {before['status']}" if before else "to run"
        blocks = point.prepared.capacity.num_gpu_blocks
        lines.append(f"{point.point_id:17s} {blocks:8d}  {state:24s} {point.name}")
    counts = plan.counts()
    lines.append(
        f"{counts['points']} points, {counts['equal']} equal to another, {plan.resumed} done, "
        f"{len(to_run)} to run"
    )
    if plan.others:
        lines.append(resume_line(plan))
    return [*lines, estimate(session)]
