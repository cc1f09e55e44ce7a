"""A running ASTRA-Sim: its output line by line, and a watch over whether it gets anywhere."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from profiles.errors import MISSING, InputError
from simulator.progress import SimulationError

ENVIRONMENT = "ASTRA_SIM_BIN"
LINES_KEPT, WIDTH_KEPT = 12, 160


class AstraError(SimulationError):
    """ASTRA-Sim crashed, hung, or said something else than it should."""


def find_program(given: Path | None = None) -> Path:
    """The binary: `given`, else what ASTRA_SIM_BIN names. Raises InputError."""
    source, field = ("command line", "--binary") if given else ("environment", ENVIRONMENT)
    named = given or (Path(found) if (found := os.environ.get(ENVIRONMENT)) else None)
    if named is None:
        expected = "the path of ASTRA-Sim's analytical, congestion-unaware binary"
        raise InputError(source, field, MISSING, expected)
    if not named.is_file() or not os.access(named, os.X_OK):
        raise InputError(source, field, str(named), "a file that can be executed")
    return named.absolute()


class Program:
    """One process; `folder` is where it runs and leaves what it writes.

    `patience_s`: `line` gives up when `progress` was not called for so long, whatever is printed.
    """

    def __init__(self, command: list[str], folder: Path, patience_s: float) -> None:
        self.name = Path(command[0]).name
        self.patience_s = patience_s
        self.tail: deque[str] = deque(maxlen=LINES_KEPT)
        # Bounded: a process that prints without end waits for us instead of filling the memory.
        self.lines: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        try:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise AstraError(f"{command[0]} does not start: {error.strerror or error}") from None
        self.closing = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.progress()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not self._put(line.rstrip("\n")):
                return
        self._put(None)

    def _put(self, line: str | None) -> bool:
        while not self.closing.is_set():
            try:
                self.lines.put(line, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def progress(self) -> None:
        """Something came to its end: the patience starts anew."""
        self.deadline = time.monotonic() + self.patience_s

    def line(self, waiting_for: str) -> str | None:
        """The next line of output, None at its end. Raises AstraError without progress."""
        try:
            line = self.lines.get(timeout=max(0.0, self.deadline - time.monotonic()))
        except queue.Empty:
            line = None
        else:
            if line is not None and line.strip():
                self.tail.append(line[:WIDTH_KEPT])
        if time.monotonic() >= self.deadline:
            self.close()
            raise AstraError(
                f"{self.name} hangs: {waiting_for} did not come to an end within "
                f"{self.patience_s:g} s. A send without its receive, or one of another size, does "
                f"that without a word. {self.last_words()}"
            )
        return line

    def say(self, text: str) -> None:
        """A line to its standard input. Raises AstraError if it is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
        except OSError:
            raise AstraError(f"{self.name} {self.ending()}. {self.last_words()}") from None

    def ending(self) -> str:
        """How it ended; waits for it."""
        try:
            status = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its output and runs on"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def last_words(self) -> str:
        return "It printed: " + " | ".join(self.tail) if self.tail else "It printed nothing"

    def close(self) -> None:
        """End it, with whatever it started."""
        self.closing.set()
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(timeout=5)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def unfinished(found: dict[int, int], ranks: int) -> str:
    """The ranks that are not among `found`, in words."""
    left = [str(rank) for rank in range(ranks) if rank not in found]
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    return f"rank{'s' if len(left) > 1 else ''} {', '.join(left[:8])}{more}"
