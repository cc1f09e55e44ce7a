"""`servesweep truth check`: the simulator against a recorded folder, step by step and end to end.

Step by step: every request becomes visible in the step in which the recorded scheduler first could
see it; then every batch, preemption, finish and count must be the recorded one.
End to end: the same point with arrivals as recorded; errors of latencies against the recording.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.recording.folder import LAW
from orchestrator.recording.inside.files import load_latency
from orchestrator.recording.steps import FILE, Step, host_ns, read_steps
from profiles.errors import MISSING, InputError
from profiles.recorded import RecordedRun, load_recorded_run
from simulator.config import Point, load_point
from simulator.core.latency import Latency
from simulator.replay import Decision, replay_steps
from simulator.simulation import Prepared, prepare, recorded_arrivals
from simulator.step_tables import frozen

if TYPE_CHECKING:
    from orchestrator.compare import Comparison

NAMES = ("sched", "preempted", "finished", "running", "waiting", "free", "formed_before_update")


@dataclass(frozen=True)
class StepCheck:
    """How many steps were compared; the first that differs, with both sides."""

    steps: int
    preemptions: int
    identical: int
    first_difference: str | None


@dataclass(frozen=True)
class Recorded:
    """A recorded folder with its steps."""

    folder: Path
    point: Point
    run: RecordedRun
    steps: list[Step]


def load_recorded(folder: Path) -> Recorded:
    """Raises InputError."""
    folder = Path(folder)
    run = load_recorded_run(folder)
    if not (folder / FILE).exists():
        expected = (
            "the steps that `servesweep truth record` writes; without them the folder is a truth for "
            "sweeps (truth: {recorded: ...}) and there is nothing to check step by step"
        )
        raise InputError(folder, FILE, MISSING, expected)
    steps = read_steps(folder / FILE, len(run))
    if run.resolved is not None and not run.resolved.async_scheduling:
        steps = list(without_empty(steps))
    seen = [r for step in steps for r, _ in step.added]
    if sorted(seen) != list(range(len(run))):
        expected = f"each of {len(run)} requests once"
        raise InputError(folder / FILE, "added", f"{len(seen)} requests", expected)
    return Recorded(folder, load_point(folder / "point.yaml"), run, steps)


def without_empty(steps: list[Step]) -> Iterator[Step]:
    """Without steps that scheduled nothing.

    A synchronous engine forms one after its last request has finished, to tell its workers; nothing
    depends on it and the simulator leaves it out.
    """
    kept = 0
    added: list[tuple[int, int]] = []
    for step in steps:
        added = [*added, *step.added]
        if step.sched:
            kept += 1
            step.added, added = added, []
            step.formed_before_update = kept
            yield step


def check_steps(recorded: Recorded) -> StepCheck:
    """Replay the recorded steps. Raises InputError if the recording is not of its point."""
    prepared = prepare(recorded.point, recorded.folder / "point.yaml")
    recorded_arrivals(prepared.workload, recorded.run)  # as many requests, of the same lengths
    added = [[r for r, _ in step.added] for step in recorded.steps]
    order = np.argsort(recorded.run.arrival_s, kind="stable").tolist()
    found = replay_steps(prepared.workload, prepared.hashes, prepared.settings, added, order)
    theirs = [as_decision(step) for step in recorded.steps]
    same = [ours == recording for ours, recording in zip(found, theirs, strict=False)]
    first = same.index(False) if False in same else None
    if first is None and len(found) != len(theirs):
        first = min(len(found), len(theirs))
    return StepCheck(
        steps=len(theirs),
        preemptions=sum(len(step.preempted) for step in theirs),
        identical=sum(same),
        first_difference=None if first is None else difference(first, found, theirs),
    )


def as_decision(step: Step) -> Decision:
    return Decision(
        sched=tuple(step.sched),
        preempted=tuple(step.preempted),
        finished=tuple(step.finished),
        running=step.running,
        waiting=step.waiting,
        free=step.free,
        formed_before_update=step.formed_before_update,
    )


def difference(step: int, ours: list[Decision], theirs: list[Decision]) -> str:
    """Both sides of the first step that differs."""
    if step >= len(ours):
        return f"step {step}: recorded {theirs[step]}, the simulator has nothing to do"
    if step >= len(theirs):
        return f"step {step}: simulated {ours[step]}, the recording has ended"
    wrong = [name for name in NAMES if getattr(ours[step], name) != getattr(theirs[step], name)]
    sides = [
        f"{name}:\n  simulated {getattr(ours[step], name)}\n  recorded  {getattr(theirs[step], name)}"
        for name in wrong
    ]
    return f"step {step}, " + "; ".join(sides)


@dataclass(frozen=True)
class HostTime:
    """What a synchronous engine's host adds to a step: per step and per request in it, ms."""

    per_step_ms: float
    per_request_ms: float
    steps: int

    def overhead(self) -> dict[str, float]:
        return {
            "host_ms_per_step": self.per_step_ms,
            "host_ms_per_request": self.per_request_ms,
        }


def host_time(recorded: Recorded) -> HostTime:
    """A least-squares line through the recorded steps' host times.

    Raises InputError where the recording cannot tell: under asynchronous scheduling the host's time
    hides behind the device's.
    """
    path = recorded.folder / FILE
    if recorded.run.resolved is not None and recorded.run.resolved.async_scheduling:
        raise InputError(path, "async_scheduling", True, "a synchronous recording, for host times")
    host, requests = host_ns(recorded.steps)
    if len(host) < 2:
        expected = "steps that follow one another, for host times"
        raise InputError(path, "steps", f"{len(host)} such steps", expected)
    mean_n, mean = requests.mean(), host.mean()
    spread = ((requests - mean_n) ** 2).sum()
    slope = float(((requests - mean_n) * (host - mean)).sum() / spread) if spread else 0.0
    slope = max(0.0, slope)
    return HostTime(max(0.0, (mean - slope * mean_n) / 1e6), slope / 1e6, len(host))


def end_to_end(recorded: Recorded, overhead: dict[str, Any]) -> tuple[Comparison, Any]:
    """The point with arrivals as recorded and `overhead` on top of its own, against the recording.

    A recording with a device model is judged with the law that its device had: tables that have been
    composed differently since are not the recorded engine's.
    """
    from orchestrator.compare import compare
    from orchestrator.truth_recorded import recorded_truth
    from simulator.simulation import run

    point = recorded.point.model_copy(
        update={"overhead": recorded.point.overhead.model_copy(update=overhead)}
    )
    prepared: Prepared = prepare(point, recorded.folder / "point.yaml")
    law = recorded.folder / LAW
    if law.exists():
        prepared = replace(prepared, latency=frozen(read_law(law)))
    result = run(prepared)
    return compare(result, recorded_truth(recorded.folder)), result


def read_law(path: Path) -> Latency:
    """The step law of a recorded device. Raises InputError."""
    try:
        return load_latency(path)[0]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(path, "file", str(error), "a step law as the recorder wrote it") from None
