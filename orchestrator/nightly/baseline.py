"""What was accepted: predictions, step by step, with the inputs they came from and the reason.

FOLDER/baseline.json     a case: status, predictions, errors, inputs; and who accepted it, why
FOLDER/<case>.parquet    its steps, of every case that predicts a number of them
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.nightly.measure import KEPT_COLUMNS, Measured
from profiles.errors import MISSING, InputError, parse_model
from profiles.whole import write_whole
from simulator.config import Frozen

FILE = "baseline.json"
WHOLE = "a baseline, as `servesweep nightly --accept` writes it"


class AcceptedCase(Frozen):
    status: Literal["measured", "failed"]
    predictions: dict[str, float]
    errors: dict[str, float]
    inputs: dict[str, str]


class BaselineFile(Frozen):
    """The content of baseline.json."""

    reason: str
    commit: str | None = None
    cases: dict[str, AcceptedCase]


@dataclass
class Accepted:
    """One case as it was accepted."""

    status: str
    predictions: dict[str, float]
    errors: dict[str, float]
    inputs: dict[str, str]
    steps: pa.Table | None = None


@dataclass
class Baseline:
    reason: str
    commit: str | None = None
    cases: dict[str, Accepted] = field(default_factory=dict)


def load_baseline(folder: Path) -> Baseline | None:
    """None if nothing was ever accepted: nothing is there. Raises InputError for a damaged one."""
    path = folder / FILE
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(folder, "baseline", "no folder", "a folder for what is accepted")
    if not os.path.lexists(path):
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    file = parse_model(BaselineFile, data, path)
    found = Baseline(file.reason, file.commit)
    for name, case in file.cases.items():
        steps = None
        if "steps" in case.predictions:
            steps = read_steps(folder / steps_file(name), case.predictions["steps"])
        found.cases[name] = Accepted(case.status, case.predictions, case.errors, case.inputs, steps)
    return found


def read_steps(path: Path, num_steps: float) -> pa.Table:
    """The accepted steps of a case. Raises InputError if they are not all there."""
    if not path.is_file():
        raise InputError(path, "file", MISSING, f"{num_steps:g} steps, as {FILE} says")
    try:
        table = pq.read_table(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise damaged(path, error) from None
    if len(table) != num_steps:
        raise InputError(path, "steps", len(table), f"{num_steps:g}, as {FILE} says")
    known = [name for name in table.column_names if name in KEPT_COLUMNS]
    if not known or any(not pa.types.is_int64(table.schema.field(name).type) for name in known):
        raise InputError(path, "columns", ", ".join(table.column_names), WHOLE)
    return table


def damaged(path: Path, error: Exception) -> InputError:
    said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return InputError(path, "file", said, WHOLE)


def steps_file(name: str) -> str:
    return f"{name.replace('/', '.')}.parquet"


def write_baseline(
    folder: Path, cases: list[Measured], before: Baseline | None, reason: str, commit: str | None
) -> list[str]:
    """Accept what was measured. Cases that were skipped keep what they had. Returns the changed ones."""
    folder.mkdir(parents=True, exist_ok=True)
    old = before.cases if before else {}
    written: dict[str, Any] = {}
    changed = []
    for case in cases:
        if case.status == "skipped":
            if case.name in old:
                written[case.name] = plain(old[case.name])
            continue
        written[case.name] = {
            "status": case.status,
            "predictions": case.predictions,
            "errors": case.errors,
            "inputs": case.inputs,
        }
        before_it = old.get(case.name)
        if before_it is None or (case.status, case.predictions) != (
            before_it.status,
            before_it.predictions,
        ):
            changed.append(case.name)
        if case.steps is not None:
            write_whole(folder / steps_file(case.name), partial(write_steps, case.steps))
    data = {"reason": reason, "commit": commit, "cases": written}
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    write_whole(folder / FILE, lambda path: path.write_text(text, encoding="utf-8"))
    kept = {steps_file(name) for name in written}
    for path in folder.glob("*.parquet"):
        if path.name not in kept:
            path.unlink()
    return changed


def write_steps(steps: pa.Table, path: Path) -> None:
    encoding = dict.fromkeys(steps.column_names, "DELTA_BINARY_PACKED")
    pq.write_table(steps, path, compression="zstd", use_dictionary=False, column_encoding=encoding)


def plain(case: Accepted) -> dict[str, Any]:
    return {
        "status": case.status,
        "predictions": case.predictions,
        "errors": case.errors,
        "inputs": case.inputs,
    }
