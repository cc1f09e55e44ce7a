"""What every case of a suite gives tonight. A case that cannot be measured is data, not an exception."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from orchestrator.compare import compare as compare_with_truth
from orchestrator.expand import SweepPoint
from orchestrator.identity import Identifier, code_stamp
from orchestrator.nightly.scenarios import compare, scenarios_below
from orchestrator.nightly.suite import PointCase, Suite
from orchestrator.outcome import metrics_of
from orchestrator.truth import load_truth
from orchestrator.truth_data import Truth
from profiles.errors import InputError
from simulator.config import Point, load_point, point_from_mapping
from simulator.progress import SimulationError
from simulator.simulation import Prepared, prepare, run

Status = Literal["measured", "failed", "wrong_input", "skipped"]
ORACLE = "oracle"
# Columns of a run's steps that are kept: what was decided, and when.
STEP_COLUMNS = (
    "formed_ns",
    "start_ns",
    "end_ns",
    "update_ns",
    "num_requests",
    "num_tokens",
    "prefill_tokens",
    "num_decodes",
    "num_admitted",
    "num_preempted",
    "num_finished",
    "running_after_schedule",
    "waiting_after_schedule",
    "free_after_schedule",
    "prefix_hits",
)
BATCH_COLUMNS = ("requests", "scheduled_tokens", "computed_tokens", "new_blocks", "preempted")
BATCH = "batch"  # a digest of them
KEPT_COLUMNS = (*STEP_COLUMNS, BATCH)


@dataclass
class Measured:
    """One case. `predictions` say nothing of a truth, `errors` do."""

    name: str
    group: str
    kind: Literal["oracle", "point"]
    status: Status
    reason: str = ""
    predictions: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    steps: pa.Table | None = None
    difference: str | None = None
    """Of an oracle case: the first line that differs from the recording."""
    notes: list[str] = field(default_factory=list)

    def fail(self, reason: str) -> None:
        """Whatever it gave until then is no prediction."""
        self.status, self.reason = "failed", reason
        self.predictions, self.errors, self.steps = {}, {}, None

    def value(self, metric: str) -> float | None:
        """An error or a prediction by its name; None if it was not measured."""
        return self.errors.get(metric, self.predictions.get(metric))


@dataclass(frozen=True)
class Ready:
    """A point case with everything read."""

    name: str
    case: PointCase
    prepared: Prepared
    truth: Truth | None

    def sweep_point(self, index: int) -> SweepPoint:
        ids = Identifier().ids(self.prepared, self.truth)
        axes = {"case": self.name}
        return SweepPoint(index, ids.point, ids.run, ids.pool, axes, self.prepared, self.truth)


def oracle_cases(suite: Suite, base: Path) -> list[Measured]:
    """Every scenario below the suite's oracle folders, compared line by line."""
    found: list[Measured] = []
    for group, folder in suite.oracle.items():
        scenarios = scenarios_below(base / folder)
        if not scenarios:
            reason = f"{base / folder}: no recorded scenario in it"
            found.append(Measured(group, group, "oracle", "wrong_input", reason))
        for scenario in scenarios:
            name = f"{group}/{scenario.folder.name}-{scenario.mode}"
            case = Measured(name, group, "oracle", "measured")
            try:
                outcome = compare(scenario)
                case.predictions = {"lines": float(outcome.lines)}
                case.difference = outcome.difference
                if not outcome.lines and outcome.difference is None:
                    case.status, case.reason = "wrong_input", "the recording has no lines"
            except InputError as error:
                case.status, case.reason = "wrong_input", str(error)
            except (OSError, ValueError, KeyError) as error:
                case.status = "wrong_input"
                case.reason = f"{scenario.folder}: {crash(error)}"
            except Exception as error:  # the code that is judged may do anything
                case.fail(crash(error))
            found.append(case)
    return found


def ready_points(suite: Suite, path: Path) -> tuple[list[Ready], list[Measured]]:
    """Point cases that can run, and those that cannot, with the reason."""
    ready: list[Ready] = []
    others: list[Measured] = []
    for name, case in suite.points.items():
        if case.needs is not None and not (path.parent / case.needs).exists():
            reason = f"needs {case.needs}, which is not there"
            others.append(Measured(name, case.group, "point", "skipped", reason))
            continue
        try:
            point = case_point(case, path)
            where = f"{path}, points.{name}"
            prepared = prepare(point, where)
            truth = load_truth(case.truth, path.parent) if case.truth else None
        except InputError as error:
            others.append(Measured(name, case.group, "point", "wrong_input", str(error)))
            continue
        except Exception as error:  # the code that is judged may do anything
            others.append(Measured(name, case.group, "point", "failed", crash(error)))
            continue
        ready.append(Ready(name, case, prepared, truth))
    return ready, others


def case_point(case: PointCase, path: Path) -> Point:
    if isinstance(case.point, Path):
        return load_point(path.parent / case.point)
    return point_from_mapping(case.point, path.parent, path)


def traced(ready: Ready) -> Measured:
    """The case simulated here, with its steps."""
    case = Measured(ready.name, ready.case.group, "point", "measured", inputs=inputs_of(ready))
    try:
        result = run(ready.prepared, steps=True)
        assert result.steps is not None
        case.predictions = metrics_of(result)
        case.steps = kept_steps(result.steps)
        case.notes = list(result.summary["notes"])
        if ready.truth is not None:
            comparison = compare_with_truth(result, ready.truth)
            case.errors = comparison.flat()
            case.notes += comparison.notes
    except SimulationError as error:
        case.fail(str(error))
    except Exception as error:  # the code that is judged may do anything
        case.fail(crash(error))
    return case


def crash(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def inputs_of(ready: Ready) -> dict[str, str]:
    """What a prediction comes from, by content."""
    prepared = ready.prepared
    # What the file says; a default that changes is another version of the code, not another point.
    asked = prepared.point.model_dump(
        mode="json", exclude_unset=True, exclude={"workload", "recorded_run"}
    )
    for name in ("bundle", "bundles"):
        asked["profile"].pop(name, None)
    asked["model"].pop("name", None)
    return {
        "point": hashlib.sha256(repr(asked).encode()).hexdigest()[:16],
        "profile": prepared.profile_id[:64],
        "workload": prepared.workload.content_id,
        "arrivals": hashlib.sha256(prepared.arrival_ns.tobytes()).hexdigest()[:16],
        "truth": ready.truth.content_id if ready.truth else "",
        "version": code_stamp(),
    }


def kept_steps(steps: pa.Table) -> pa.Table:
    """Columns of numbers, and a digest of who was in each batch."""
    columns: dict[str, Any] = {
        name: pa.array(np.asarray(steps[name].to_numpy(), np.int64)) for name in STEP_COLUMNS
    }
    lists = [steps[name].to_pylist() for name in BATCH_COLUMNS]
    digests = [
        int.from_bytes(hashlib.sha256(repr(row).encode()).digest()[:4], "little")
        for row in zip(*lists, strict=True)
    ]
    columns[BATCH] = pa.array(digests, pa.int64())
    return pa.table(columns)


def disagreement(case: Measured, outcome: dict[str, Any] | None) -> str | None:
    """Where a worker's result is not what this process computed: it never should be."""
    if outcome is None:
        return "no worker ran it"
    if outcome["status"] != "finished":
        return f"a worker: {outcome['status']}: {outcome['reason']}"
    for name, value in case.predictions.items():
        theirs = outcome["metrics"].get(name)
        if theirs != value:
            return f"{name} is {value!r} here and {theirs!r} in a worker: not deterministic"
    return None


Watch = Callable[[str], None]
