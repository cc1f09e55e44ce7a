"""Runs a module of `inside` in vLLM's environment.

Only `inside` and the core's step law are copied to where that Python finds them: a PYTHONPATH to
this installation would show vLLM every other package of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from profiles.errors import InputError

ROOT = Path(__file__).parents[2]
EMPTY = (
    "orchestrator/__init__.py",
    "orchestrator/recording/__init__.py",
    "simulator/__init__.py",
    "simulator/core/__init__.py",
)
COPIED = (
    "simulator/core/latency.py",
    "simulator/core/jit.py",
    "orchestrator/recording/inside/*.py",
)
# No network, no usage reports, the same block hashes in every process, the core uncompiled.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONHASHSEED": "0",
    "SERVESWEEP_JIT": "0",
}
DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
LAST_LINES = 12


class RecordingError(RuntimeError):
    """vLLM did not come to the end of a recording; the message says why."""


def check_python(python: Path) -> None:
    """Raises InputError unless `python` runs and finds vLLM."""
    expected = "the Python of an environment that holds vLLM"
    if not python.is_file():
        raise InputError("--python", "file", str(python), expected)
    asked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run(
            [str(python.absolute()), "-c", asked],
            cwd="/",
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError("--python", "file", f"{python} ({error})", expected) from None
    if found.returncode:
        raise InputError("--python", "file", str(python), expected)


def stage(folder: Path) -> None:
    """Copy what runs inside vLLM's environment to `folder`."""
    for name in EMPTY:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    for pattern in COPIED:
        for path in sorted(ROOT.glob(pattern)):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def run_inside(
    python: Path, module: str, job: Path, environment: dict[str, str], timeout_s: float
) -> None:
    """Run `module` with `job` as its argument; what it prints goes to vllm.log beside the job.

    Raises RecordingError if it fails or takes longer than `timeout_s`. No process of it is left.
    """
    code = job.parent / "code"
    stage(code)
    kept = {k: v for k, v in os.environ.items() if k not in DROPPED}
    kept.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # Not resolved: a virtual environment's python is a link, and knows its packages by its place.
    command = [str(python.absolute()), "-m", f"orchestrator.recording.inside.{module}", str(job)]
    log = job.parent / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=code,
            env={**kept, **ENVIRONMENT, "PYTHONPATH": str(code), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code_of_exit = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RecordingError(f"vLLM was not done after {timeout_s:g} s") from None
        finally:
            _end_group(process)
    if code_of_exit:
        raise RecordingError(_what_failed(job.parent, log))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything it started, which has its session to itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _what_failed(folder: Path, log: Path) -> str:
    told = folder / "failure.txt"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    reason = told.read_text() if told.is_file() else (lines[-1] if lines else "no output")
    errors = [line for line in lines if "Error" in line and "Traceback" not in line]
    shown = "\n  ".join(dict.fromkeys([*errors[-LAST_LINES // 2 :], *lines[-LAST_LINES // 2 :]]))
    return f"vLLM failed: {reason}\n  {shown}"
