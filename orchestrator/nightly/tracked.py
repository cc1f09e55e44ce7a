"""A night as a run of MLflow, with its cases below it."""

from __future__ import annotations

import datetime
import hashlib

from orchestrator.identity import code_stamp
from orchestrator.nightly.detector import Judgement
from orchestrator.nightly.measure import Measured
from orchestrator.nightly.suite import Suite
from orchestrator.nightly.trend import ACCEPTED, SUITE
from orchestrator.tracking import TrackedPoint, TrackedSweep


def tracked_night(
    suite: Suite, judgement: Judgement, started: datetime.datetime, versions: dict[str, str]
) -> TrackedSweep:
    """A run of its own for every night, named by when it began."""
    stamp = started.strftime("%Y-%m-%d %H:%M:%S")
    text = f"{suite.name} {started.isoformat()} {code_stamp()}"
    return TrackedSweep(
        name=f"{suite.name} {stamp}",
        sweep_id=hashlib.sha256(text.encode()).hexdigest()[:16],
        tags={SUITE: suite.name, **{f"servesweep.{n}": v for n, v in versions.items()}},
        params={"findings": len(judgement.findings), "measured": judgement.measured},
    )


def tags_of(judgement: Judgement, accept: str | None) -> dict[str, str]:
    tags = {
        "servesweep.verdict": judgement.verdict,
        "servesweep.predictions_changed": judgement.answer("changed"),
        "servesweep.accurate": judgement.answer("accurate"),
        ACCEPTED: "true" if judgement.verdict == "fine" or accept is not None else "false",
    }
    if accept is not None:
        tags["servesweep.accepted_because"] = accept
    return tags


def tracked_case(case: Measured, night: str) -> TrackedPoint:
    reason = None if case.status == "measured" else f"{case.status}: {case.reason}"
    return TrackedPoint(
        point_id=f"{night}-{case.name}",
        name=case.name,
        params={"group": case.group},
        metrics={**case.predictions, **case.errors},
        tags={f"servesweep.{name}": value[:64] for name, value in case.inputs.items() if value},
        status="finished" if case.status == "measured" else "failed",
        reason=reason,
    )
