"""How long the rest of a sweep takes, from what its points took so far or from one of them."""

from __future__ import annotations

import os

from orchestrator.journal import read_journal
from orchestrator.plan import FINISHED
from orchestrator.session import Session
from orchestrator.shared import Shared
from orchestrator.worker import Limits, run_jobs

MEASURED_S = 10.0  # for one point, at most


def estimate(session: Session) -> str:
    """In a line; runs a point if none was run before."""
    left = session.plan.to_run()
    if not left:
        return "nothing to run"
    journal = read_journal(session.store.journal_path).values()
    walls = [o["wall_s"] for o in journal if o["status"] == FINISHED and "proven_by" not in o]
    source = f"the mean of {len(walls)} in the journal"
    if not walls:
        shared = Shared(left[:1])
        limits = Limits(min(MEASURED_S, session.limits.time_s), session.limits.memory_mib)
        outcome = run_jobs([shared.job(left[0])], shared.parts.__getitem__, limits, False)[0]
        if outcome["status"] == "timeout":
            return f"no estimate: a point takes more than {limits.time_s:g} s"
        if outcome["status"] != FINISHED:
            return f"no estimate, a point failed: {outcome['status']}: {outcome['reason']}"
        walls, source = [outcome["wall_s"]], "measured on one"
    each = sum(walls) / len(walls)
    cpus = max(1, int((os.cpu_count() or 1) / session.sweep.execution.cpus_per_point))
    return (
        f"about {_duration(each * len(left))} of simulation at {each * 1e3:.3g} ms a point "
        f"({source}), {_duration(each * len(left) / min(cpus, len(left)))} with {cpus} at a time"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
