"""The process that writes runs: reads the spool, retries, and leaves its counts in a report.

A process rather than a thread, because importing MLflow and preparing rows would hold Python's
lock for seconds while a sweep hands out points. It gives way to the points (`nice`), ends when its
standard input does, and may be killed at any time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.tracking.address import database_path, ui_hint
from orchestrator.tracking.backend import Backend, LayoutUnknown, Refused, Unreachable
from orchestrator.tracking.entry import Entry, make_entry, sweep_entry
from orchestrator.tracking.model import TrackedSweep
from orchestrator.tracking.spool import REPORT, SpoolReader, read_point, read_sweep

POLL_S = 0.05
REPORT_EVERY_S = 0.5
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 15.0
REFUSALS = 3  # of one run by a place that answers otherwise
T = TypeVar("T")


class Stopped(Exception):
    """Nobody waits for the writer any longer."""


@dataclass
class Counts:
    """What the report says; `ended` with the last of them."""

    written: int = 0
    already_there: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    notes: list[str] = field(default_factory=list)
    ui: str = ""
    ended: bool = False
    hopeless: bool = False


class Writer:
    def __init__(self, folder: Path, stop: threading.Event) -> None:
        self._report, self._stop = folder / REPORT, stop
        self._spool = SpoolReader(folder)
        self._reported = 0.0
        self.counts = Counts()

    def run(self) -> None:
        try:
            first = self._next(wait=True)
            assert first is not None
            sweep = read_sweep(first["sweep"])
            backend = self._open(first["address"], first["experiment"], sweep)
            self._write_all(backend, sweep)
            backend.close()
            self.counts.ended, self.counts.problem = True, None
        except Stopped:
            pass
        except Refused as error:
            self.counts.problem, self.counts.hopeless = str(error), True
        self.report(at_once=True)

    def _open(self, address: str, experiment: str, sweep: TrackedSweep) -> Backend:
        if importlib.util.find_spec("mlflow") is None:
            raise Refused("MLflow is not installed")
        head, path = sweep_entry(sweep), database_path(address)

        def hint(place: Backend) -> str:
            return ui_hint(address, place.experiment_id, sweep.sweep_id, sweep.order_by)

        if path is not None:
            from orchestrator.tracking.sqlite import SqliteBackend

            backend: Backend = SqliteBackend(address, path)
            try:
                self._patiently(lambda: backend.open(experiment, head))
                self.counts.ui = hint(backend)
                return backend
            except LayoutUnknown as error:
                self.counts.notes.append(f"written through MLflow's client: {error}")
        from orchestrator.tracking.server import ServerBackend

        server = ServerBackend(address)
        self._patiently(lambda: server.open(experiment, head))
        self.counts.ui = hint(server)
        return server

    def _write_all(self, backend: Backend, sweep: TrackedSweep) -> None:
        for truth in sweep.truths:
            self._write(backend, [make_entry(truth, sweep.sweep_id, "truth")])
        while True:
            batch: list[Entry] = []
            record = self._next(wait=True)
            while record is not None and record["kind"] == "point":
                batch.append(make_entry(read_point(record["point"]), sweep.sweep_id, "point"))
                record = self._next() if len(batch) < backend.batch else None
            if batch:
                self._write(backend, batch)
            if record is not None:
                self._finish(backend, [*sweep.artifacts, *map(Path, record["artifacts"])], record)
                return

    def _write(self, backend: Backend, entries: list[Entry]) -> None:
        try:
            written = self._patiently(lambda: backend.write(entries), backend)
        except Refused as error:
            if len(entries) > 1:
                for entry in entries:
                    self._write(backend, [entry])
            else:
                self.counts.failed[entries[0].key] = str(error)
            return
        self.counts.written += sum(written)
        self.counts.already_there += len(written) - sum(written)
        self.report()

    def _finish(self, backend: Backend, files: list[Path], record: dict[str, Any]) -> None:
        for file, folder in artifact_folders(files):
            if not file.is_file():
                self.counts.notes.append(f"artifact {file.name}: no such file")
                continue
            try:
                self._patiently(partial(backend.attach, file, folder), backend)
            except Refused as error:
                self.counts.notes.append(f"artifact {file.name}: {error}")
        self._patiently(lambda: backend.finish(record["tags"]), backend)

    def _next(self, wait: bool = False) -> dict[str, Any] | None:
        while True:
            if self._stop.is_set():
                raise Stopped
            record = self._spool.read()
            if record is not None or not wait:
                return record
            self.report()
            self._pause(POLL_S)

    def _patiently(self, action: Callable[[], T], backend: Backend | None = None) -> T:
        """Until it works, is refused, or nobody waits any longer."""
        refusals, wait = 0, FIRST_WAIT_S
        while True:
            try:
                result = action()
                self.counts.problem = None
                return result
            except Unreachable as error:
                self.counts.problem = str(error)
                self.report()
                if backend is not None and backend.alive():
                    refusals += 1
                    if refusals == REFUSALS:
                        raise Refused(str(error)) from error
            self._pause(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped

    def report(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._reported > REPORT_EVERY_S:
            self._reported = now
            whole = self._report.with_suffix(".partial")
            whole.write_text(json.dumps(asdict(self.counts)), encoding="utf-8")
            whole.replace(self._report)


def artifact_folders(files: list[Path]) -> list[tuple[Path, str | None]]:
    """Files of one name go into folders named as where they come from."""
    names = [file.name for file in dict.fromkeys(files)]
    return [
        (file, file.parent.name if names.count(file.name) > 1 else None)
        for file in dict.fromkeys(files)
    ]


def main(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.nice(10)
    parent, stop = os.getppid(), threading.Event()
    writer = Writer(folder, stop)

    def watch() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        writer.run()
    except Exception as error:
        writer.counts.problem = f"{type(error).__name__}: {error}"
        writer.report(at_once=True)
        raise
    finally:
        if os.getppid() != parent:  # the sweep was killed and can't clear up
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
