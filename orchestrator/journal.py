"""Which points are done, a line each, safe against crashes.

A line is written whole and reaches the disk before the sweep goes on counting on it; a line that a crash
cut off is ignored, and its point runs again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from orchestrator.outcome import ESSENTIAL


class Journal:
    """Appends outcomes to a file; one process at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        _drop_cut_line(self._file)

    def append(self, outcomes: Iterable[dict[str, Any]]) -> None:
        """All of them, on the disk, when it returns."""
        lines = b"".join(
            json.dumps(outcome, allow_nan=True, separators=(",", ":")).encode() + b"\n"
            for outcome in outcomes
        )
        rest = memoryview(lines)
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_journal(path: Path) -> dict[str, dict[str, Any]]:
    """The outcome of each point, by point id: the last one, but nothing undoes a finished one.

    Lines that are not whole are left out.
    """
    outcomes: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return outcomes
    with path.open("rb") as file:
        for line in file:
            outcome = _outcome(line) if line.endswith(b"\n") else None
            if outcome is None:
                continue
            before = outcomes.get(outcome["point_id"])
            if before is None or before["status"] != "finished" or outcome["status"] == "finished":
                outcomes[outcome["point_id"]] = outcome
    return outcomes


def _outcome(line: bytes) -> dict[str, Any] | None:
    try:
        outcome = orjson.loads(line)
    except ValueError:
        try:
            outcome = json.loads(line)  # knows NaN and Infinity
        except ValueError:
            return None
    return outcome if _is_whole(outcome) else None


def _is_whole(outcome: Any) -> bool:
    """Whether a line is an outcome: a damaged one counts as none, and its point runs again."""
    if not isinstance(outcome, dict):
        return False
    if not all(isinstance(outcome.get(field), str) for field in ("point_id", "status")):
        return False
    if not _is_number(outcome.get("wall_s")) or not _is_count(outcome.get("enough_blocks", 0)):
        return False
    metrics, notes = outcome.get("metrics", {}), outcome.get("notes", [])
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        return False
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        return False
    whole = all(math.isfinite(metrics.get(name, math.nan)) for name in ESSENTIAL)
    return outcome["status"] != "finished" or whole


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 1 << 63


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _drop_cut_line(file: Any) -> None:
    """Whatever follows the last line's end was cut off by a crash."""
    end = file.seek(0, os.SEEK_END)
    whole, step = end, 1 << 16
    while whole > 0:
        start = max(0, whole - step)
        file.seek(start)
        at = file.read(whole - start).rfind(b"\n")
        if at >= 0:
            whole = start + at + 1
            break
        whole = start
    if whole != end:
        file.truncate(whole)
