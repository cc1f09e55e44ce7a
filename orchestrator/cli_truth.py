"""The `servesweep truth` commands: record the real vLLM, check the simulator against it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from orchestrator.cli_errors import EXISTING_FILE, FOLDER, fail, reports_errors


@click.group()
def truth() -> None:
    """Ground truth: recorded runs of the real vLLM."""


PYTHON = click.option(
    "--python",
    type=EXISTING_FILE,
    required=True,
    help="The Python of an environment that holds vLLM.",
)
TIMEOUT = click.option(
    "--timeout", type=click.FloatRange(min=1), default=3600.0, show_default=True, help="Seconds."
)
ENGINE_ARGUMENTS = click.option(
    "--engine-arg",
    "engine_args",
    multiple=True,
    metavar="NAME=JSON",
    help="One more argument of vLLM's engine.",
)


def parsed(engine_args: tuple[str, ...]) -> dict[str, Any]:
    from profiles.errors import InputError

    found: dict[str, Any] = {}
    for text in engine_args:
        name, equals, value = text.partition("=")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            equals = ""
        if not equals or not name.isidentifier():
            expected = 'NAME=JSON, as in swap_space=4 or quantization="fp8"'
            raise InputError("command line", "--engine-arg", text, expected)
    return found


def shown_command() -> str:
    """The command as it was given; the program by its name."""
    return shlex.join(["servesweep", *sys.argv[1:]])


@truth.command()
@click.argument("point", type=EXISTING_FILE, metavar="POINT.yaml")
@PYTHON
@click.option("--out", type=FOLDER, required=True, help="Folder of the recording.")
@click.option(
    "--device-model",
    is_flag=True,
    help="Run no kernels: every step takes as long as the point's profile says.",
)
@click.option("--enforce-eager", is_flag=True, help="Neither compile nor capture graphs.")
@ENGINE_ARGUMENTS
@TIMEOUT
@reports_errors
def record(
    point: Path,
    python: Path,
    out: Path,
    device_model: bool,
    enforce_eager: bool,
    engine_args: tuple[str, ...],
    timeout: float,
) -> None:
    """Run a point's workload on the real vLLM and record requests, series and steps."""
    from orchestrator.recording.record import record as record_point
    from orchestrator.recording.spec import load_recording
    from orchestrator.recording.stage import RecordingError

    recording = load_recording(
        point,
        device_model=device_model,
        enforce_eager=enforce_eager,
        extra=parsed(engine_args),
    )
    try:
        recorded = record_point(recording, python, out, command=shown_command(), timeout_s=timeout)
    except RecordingError as error:
        fail(str(error), 1)
    click.echo(recorded.overview())
    click.echo(f"recorded in {out}")


@truth.command()
@click.argument("folders", type=FOLDER, nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "--host-from",
    type=FOLDER,
    help="Another recording: its host time per step and request is given to the simulator.",
)
@reports_errors
def check(folders: tuple[Path, ...], host_from: Path | None) -> None:
    """Compare the simulator with recordings: every step, then latencies end to end.

    Exits with 1 if a step differs.
    """
    from orchestrator.recording.check import check_steps, end_to_end, host_time, load_recorded
    from orchestrator.recording.report import check_lines, host_line

    overhead: dict[str, Any] = {}
    if host_from is not None:
        host = host_time(load_recorded(host_from))
        overhead = host.overhead()
        click.echo(host_line(host_from, host))
    differs = False
    for folder in folders:
        recorded = load_recorded(folder)
        steps = check_steps(recorded)
        comparison, result = end_to_end(recorded, overhead)
        click.echo("\n".join(check_lines(recorded, steps, comparison, result)))
        differs = differs or steps.first_difference is not None
    if differs:
        sys.exit(1)


@truth.command()
@click.argument("point", type=EXISTING_FILE, metavar="POINT.yaml")
@PYTHON
@click.option("--out", type=FOLDER, required=True, help="Folder of the profile.")
@click.option("--repeats", type=click.IntRange(min=3), default=7, show_default=True)
@click.option("--enforce-eager", is_flag=True, help="Neither compile nor capture graphs.")
@click.option("--device-model", is_flag=True, help="Measure the device model, to try the command.")
@ENGINE_ARGUMENTS
@TIMEOUT
@reports_errors
def measure(
    point: Path,
    python: Path,
    out: Path,
    repeats: int,
    enforce_eager: bool,
    device_model: bool,
    engine_args: tuple[str, ...],
    timeout: float,
) -> None:
    """Measure whole steps of the real vLLM over crafted batches: a profile for the simulator.

    The point's own profile is not used; `profile: {bundle: DIR}` reads the result.
    """
    from orchestrator.recording.measure import measure as measure_steps
    from orchestrator.recording.spec import load_recording
    from orchestrator.recording.stage import RecordingError

    recording = load_recording(
        point,
        device_model=device_model,
        enforce_eager=enforce_eager,
        extra=parsed(engine_args),
    )
    try:
        measured = measure_steps(
            recording, python, out, repeats=repeats, command=shown_command(), timeout_s=timeout
        )
    except RecordingError as error:
        fail(str(error), 1)
    click.echo(measured.overview())
    click.echo(f"profile in {out}")
