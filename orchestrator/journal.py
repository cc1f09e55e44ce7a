"""Which points are done, a line each, safe against crashes.

A line is written whole and reaches the disk before the sweep goes on counting on it; a line that a crash
cut off is ignored, and its point runs again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson


class Journal:
    """Appends outcomes to a file; one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_cut_line(path)
        self._file = path.open("ab")

    def append(self, outcomes: Iterable[dict[str, Any]]) -> None:
        lines = b"".join(
            json.dumps(outcome, allow_nan=True, separators=(",", ":")).encode() + b"\n"
            for outcome in outcomes
        )
        self._file.write(lines)
        self._file.flush()
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
    """The last outcome of each point, by point id; lines that are not whole are left out."""
    outcomes: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return outcomes
    for line in path.read_bytes().split(b"\n"):
        try:
            outcome = orjson.loads(line)
            outcomes[outcome["point_id"]] = outcome
        except (ValueError, KeyError, TypeError):
            continue
    return outcomes


def _drop_cut_line(path: Path) -> None:
    """Whatever follows the last line's end was cut off by a crash."""
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
