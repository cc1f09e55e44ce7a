"""The file between a sweep and its writer: one JSON line a record, appended by one, read by another.

It keeps a sweep from ever waiting for MLflow and memory from growing while a server is down.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

from orchestrator.tracking.model import TrackedPoint, TrackedSweep

RECORDS = "records.jsonl"
REPORT = "report.json"
LOG = "writer.log"


class Spool:
    """The appending end."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / RECORDS).open("ab", buffering=0)
        self._lock = threading.Lock()

    def append(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, **content}, default=_plain).encode() + b"\n"
        with self._lock:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        self._file.close()


class SpoolReader:
    """The reading end; a line that is not whole yet is left for the next call."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / RECORDS).open("rb")

    def read(self) -> dict[str, Any] | None:
        start = self._file.tell()
        line = self._file.readline()
        if not line.endswith(b"\n"):
            self._file.seek(start)
            return None
        record: dict[str, Any] = json.loads(line)
        return record


def read_point(record: dict[str, Any]) -> TrackedPoint:
    return TrackedPoint(**record)


def read_sweep(record: dict[str, Any]) -> TrackedSweep:
    truths = [read_point(truth) for truth in record.pop("truths")]
    artifacts = [Path(path) for path in record.pop("artifacts")]
    return TrackedSweep(**record, truths=truths, artifacts=artifacts)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return vars(value)
    if isinstance(value, Path):
        return str(value.absolute())
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    if hasattr(value, "items"):
        return dict(value)
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be tracked: {value!r}")
