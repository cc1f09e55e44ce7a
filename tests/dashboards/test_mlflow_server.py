"""MLflow's server ends with the program that started it, whatever ends that; wrong addresses."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from dashboards.mlflow_server import STOPS, Stop, running
from orchestrator.cli import main

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
# In MLflow's place: a process with one of its own, which takes its time to end.
SERVER = """
import signal, subprocess, sys, time
def end(*_):
    time.sleep(0.5)
    sys.exit()
signal.signal(signal.SIGTERM, end)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", child.pid, file=open("up", "w"), flush=True)
time.sleep(600)
"""
PROGRAM = """
import sys
from dashboards.mlflow_server import Stop, running
try:
    with Stop() as stop, running("sqlite:///x", "127.0.0.1", 0, sys.stderr, stop) as server:
        print(server.pid, flush=True)
        server.wait()
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A program that was stopped hears no more signals; the one that tests it does."""
    before = {one: signal.getsignal(one) for one in STOPS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, found as a module; and the folder it runs in."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").touch()
    (tmp_path / "mlflow" / "__main__.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def until(holds: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """A process that nobody has collected yet has ended all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGHUP],
        [signal.SIGINT],
        [signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
    ],
)
def test_signals_end_the_server_and_all_of_its_processes(
    mlflow: Path, signals: list[signal.Signals]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            server = int(program.stdout.readline())
            until(lambda: (mlflow / "up").exists() and (mlflow / "up").read_text())
            child = int((mlflow / "up").read_text().split()[1])
            for one in signals:
                program.send_signal(one)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(0.05)
            assert program.communicate(timeout=PATIENCE_S)[0] == "stopped\n"
        finally:
            program.terminate()
    assert program.returncode == 0
    until(lambda: not runs(server) and not runs(child))


def test_a_signal_before_the_server_is_up_is_kept(
    mlflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def interrupted(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGHUP)
        started.append(start(*arguments, **options))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with (
        (mlflow / "log").open("wb") as log,
        pytest.raises(KeyboardInterrupt),
        Stop() as stop,
        running("sqlite:///x", "127.0.0.1", 0, log, stop),
    ):
        raise AssertionError("it goes on")
    assert started[0].returncode is not None
    os.kill(os.getpid(), signal.SIGTERM)  # too late to be heard


def test_signals_that_did_not_come_are_as_before() -> None:
    before = [signal.getsignal(one) for one in STOPS]
    with Stop() as stop, stop.listening():
        assert [signal.getsignal(one) for one in STOPS] != before
    assert [signal.getsignal(one) for one in STOPS] == before


def test_what_is_ignored_stays_ignored() -> None:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop, stop.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "address",
    [
        "http://[bad",
        "http://a b/",
        "http://ex:port/",
        "https://",
        "http://host:99999",
        "http://h\x07",
    ],
)
def test_a_wrong_address_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    done = CliRunner().invoke(main, ["dashboard", "--out", str(tmp_path)])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "MLFLOW_TRACKING_URI: uri: got" in done.stderr


ANSWERS = (b"[]", b'{"experiments": 3}', b'{"experiments": [{}]}', b"no json", b"\xff")


@pytest.fixture(params=ANSWERS)
def junk(request: pytest.FixtureRequest) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_is_none_of_mlflow_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junk: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", junk)
    done = CliRunner().invoke(main, ["dashboard", "--out", str(tmp_path)])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "expected a tracking server that answers" in done.stderr
