"""What a sweep talks to. Nothing here waits, except `finish`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestrator.tracking.address import mlflow_installed, shown, tracking_address
from orchestrator.tracking.model import TrackedPoint, TrackedSweep, TrackingReport
from orchestrator.tracking.spool import LOG, REPORT, Spool
from profiles.errors import MISSING, InputError

STALLED_S = 120.0  # nothing written for so long, MLflow's first start and its schema included
PATIENCE_S = 15.0  # with a problem that stays
TELL_EVERY_S = 10.0
STARTS = 3  # of the writer, if it dies
LAST_WORDS_S = 2.0
POLL_S = 0.02
LOOK_EVERY_S = 0.5  # into the writer's report
OURS = {
    # Of a surrounding MLflow run; it must not take the place of the sweep's own.
    **dict.fromkeys(["MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"], None),
    # Retries are the writer's, which knows what it may ask twice.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Tracker:
    """Writes a sweep's runs in a process of its own.

    `address` as MLflow takes it; None is MLFLOW_TRACKING_URI or the database in `folder`, which
    should be the folder that holds the sweeps. One tracker a sweep at a time.
    """

    def __init__(
        self,
        address: str | None,
        experiment: str,
        sweep: TrackedSweep,
        *,
        folder: Path = Path(),
    ) -> None:
        if not mlflow_installed():
            raise InputError(
                "tracking", "mlflow", MISSING, "MLflow to be installed, or no tracking"
            )
        if not experiment.strip() or len(experiment) > 250:
            raise InputError("tracking", "experiment", experiment, "a name of 1 to 250 characters")
        if not sweep.sweep_id or not sweep.sweep_id.isprintable() or "'" in sweep.sweep_id:
            expected = "an id of printable characters without quotes"
            raise InputError("tracking", "sweep_id", sweep.sweep_id, expected)
        self.address = tracking_address(address, folder)
        self._experiment = experiment
        self._given = len(sweep.truths)
        self._problem: str | None = None
        self._report: TrackingReport | None = None
        self._began = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="servesweep-tracking-"))
        self._spool = Spool(self._folder)
        self._starts = 0
        self._append("open", address=self.address, experiment=experiment, sweep=sweep)
        self._writer = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def point(self, point: TrackedPoint) -> None:
        """Hand a point over; a point given again with other content is written again."""
        self._given += 1
        self._append("point", point=point)

    def report(self) -> TrackingReport:
        """How far the writer is, as far as it has told."""
        return self._report or self._read_report()

    def finish(
        self,
        artifacts: Sequence[Path] = (),
        tags: Mapping[str, str] | None = None,
        *,
        patience_s: float = PATIENCE_S,
        stalled_s: float = STALLED_S,
        tell: Callable[[str], None] | None = None,
    ) -> TrackingReport:
        """Wait until all is written, artifacts are attached and the parent has ended.

        Gives up when a problem lasts for `patience_s`, or when nothing moves for `stalled_s`. `tell`
        is told of a problem when it begins, and now and then how far the writer is.
        """
        if self._report is None:
            self._append("finish", artifacts=list(artifacts), tags=dict(tags or {}))
            gave_up = self._wait(patience_s, stalled_s, tell or (lambda _: None))
            self._stop()
            report = self._read_report()
            if report.problem is None and not self._told().get("ended"):
                report = replace(report, problem=gave_up)
            self._report = report
            self._remove()
        return self._report

    def _wait(self, patience_s: float, stalled_s: float, tell: Callable[[str], None]) -> str | None:
        """Until the writer has ended (None), or why nobody waits for it any longer."""
        looked = moved = told_at = time.monotonic()
        trouble: float | None = None
        done = -1
        while not self._ended():
            time.sleep(POLL_S)
            now = time.monotonic()
            if now - looked < LOOK_EVERY_S:
                continue
            looked, told = now, self._told()
            before, done = done, sum(told.get(n, 0) for n in ("written", "already_there"))
            moved = now if done != before else moved
            problem = told.get("problem")
            if problem is None:
                trouble = None
            elif trouble is None:
                trouble, told_at = now, now
                tell(f"{shown(self.address)} has a problem, trying again: {shown(problem)}")
            elif now - trouble > patience_s:
                return None
            if now - moved > stalled_s:
                return f"nothing was written for {stalled_s:g} s"
            if now - told_at > TELL_EVERY_S:
                told_at = now
                tell(f"{done} of {self._given} runs written")
        return None

    def close(self) -> None:
        """Stop; what is not written by now is pending. Does nothing after `finish`."""
        if self._report is None:
            self._stop()
            self._report = self._read_report()
            self._remove()

    def _append(self, kind: str, **content: Any) -> None:
        """A full disk costs tracking, not the sweep."""
        if self._problem is None:
            try:
                self._spool.append(kind, **content)
            except OSError as error:
                self._problem = f"the spool could not be written: {error}"

    def _start(self) -> subprocess.Popen[bytes]:
        """Away from the terminal, whose Ctrl-C is for the sweep."""
        self._starts += 1
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **OURS, "PYTHONPATH": path}
        with (self._folder / LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "orchestrator.tracking.writer", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={name: value for name, value in environment.items() if value is not None},
                start_new_session=True,
            )

    def _ended(self) -> bool:
        """Whether there is nothing to wait for; starts a writer that died once more."""
        if self._writer.poll() is None:
            return False
        told = self._told()
        if told.get("ended") or told.get("hopeless") or self._problem or self._starts == STARTS:
            return True
        self._stop()
        self._writer = self._start()
        return False

    def _stop(self) -> None:
        assert self._writer.stdin is not None
        with contextlib.suppress(OSError):
            self._writer.stdin.close()
        try:
            self._writer.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self._writer.kill()
            self._writer.wait()

    def _told(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self._folder / REPORT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told

    def _read_report(self) -> TrackingReport:
        told = self._told()
        written, already_there = told.get("written", 0), told.get("already_there", 0)
        failed = told.get("failed", {})
        pending = max(self._given - written - already_there - len(failed), 0)
        problem = self._problem or told.get("problem")
        died = self._writer.returncode not in {None, 0} and not told.get("ended")
        if died and problem is None and self._writer.returncode != -9:
            problem = f"the writer ended with {self._writer.returncode}: {self._last_line()}"
        return TrackingReport(
            address=shown(self.address),
            experiment=self._experiment,
            written=written,
            already_there=already_there,
            pending=pending,
            failed={key: shown(reason) for key, reason in failed.items()},
            problem=shown(problem) if problem else None,
            notes=[shown(note) for note in told.get("notes", [])],
            ui=told.get("ui", ""),
            wall_s=time.monotonic() - self._began,
        )

    def _last_line(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / LOG).read_text(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""

    def _remove(self) -> None:
        self._spool.close()
        shutil.rmtree(self._folder, ignore_errors=True)
