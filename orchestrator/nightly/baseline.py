"""What was accepted: predictions, step by step, with the inputs they came from and the reason.

FOLDER/baseline.json     a case: status, predictions, errors, inputs; and who accepted it, why
FOLDER/<case>.parquet    its steps
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.nightly.measure import Measured
from profiles.errors import InputError
from simulator.result import write_whole

FILE = "baseline.json"


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
    commit: str | None
    cases: dict[str, Accepted] = field(default_factory=dict)


def load_baseline(folder: Path) -> Baseline | None:
    """None if nothing was ever accepted. Raises InputError for a damaged one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = Baseline(data["reason"], data.get("commit"))
        for name, case in data["cases"].items():
            steps = folder / steps_file(name)
            found.cases[name] = Accepted(
                case["status"],
                case["predictions"],
                case["errors"],
                case["inputs"],
                pq.read_table(steps) if steps.is_file() else None,
            )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        expected = "a baseline, as `servesweep nightly --accept` writes it"
        raise InputError(path, "file", f"{type(error).__name__}: {error}", expected) from None
    return found


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
