"""MLflow's server as a process of its own, in a group that is ended as a whole whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from profiles.errors import InputError

START_S = 300.0  # MLflow's first start on a busy machine
ENDS_S = 10.0
SERVER = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven more processes, for what no sweep uses
}

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Trouble(Exception):
    """MLflow did not answer, or not as expected."""


class Stop:
    """Signals that end the program: the first one does so, as KeyboardInterrupt, while `listening`.

    Before that it is kept until then, so that no server is started and forgotten; later ones interrupt
    neither what ends the server nor the end of the program. What its caller ignores stays ignored.
    """

    def __init__(self) -> None:
        self._asked = self._listens = False

    def __enter__(self) -> Stop:
        heard = [one for one in STOPS if signal.getsignal(one) is not signal.SIG_IGN]
        self._before = {one: signal.signal(one, self._ask) for one in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            # The interpreter's end gives a handler of its own up, but not what is ignored.
            signal.signal(one, signal.SIG_IGN if self._asked else handler)

    def _ask(self, *_: object) -> None:
        first, self._asked = not self._asked, True
        if first and self._listens:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self._listens = True
        try:
            if self._asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._listens = False


def free_port(host: str, port: int) -> int:
    """The port, or a free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror as error:
            expected = f"an address of this machine ({error.strerror})"
            raise InputError("dashboard", "--host", host, expected) from None
        except OSError as error:
            expected = (
                f"an address and port that are free ({error.strerror}); --port chooses another"
            )
            raise InputError("dashboard", "--port", f"{host}:{port}", expected) from None
        free: int = probe.getsockname()[1]
        return free


def reachable(host: str) -> str:
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local


@contextlib.contextmanager
def running(
    address: str, host: str, port: int, log: Any, stop: Stop
) -> Iterator[subprocess.Popen[bytes]]:
    """MLflow's server, in a group of its own that is ended as a whole."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", address]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **SERVER},
        start_new_session=True,
    )
    try:
        with stop.listening():
            yield server
    finally:
        for signal_ in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(ENDS_S)


def wait_until_up(server: subprocess.Popen[bytes], local: str, log: Any) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise Trouble(f"MLflow did not start: {last_words(log)}")
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(f"{local}/health", timeout=5),
        ):
            return
        time.sleep(0.2)
    raise Trouble(f"MLflow did not answer for {START_S:g} s: {last_words(log)}")


def last_words(log: Any) -> str:
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
