"""The `servesweep truth` commands: record the real vLLM, check the simulator against it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from orchestrator.cli_engine import ENGINE_ARGUMENTS, PYTHON, TIMEOUT, parsed, shown_command
from orchestrator.cli_errors import EXISTING_FILE, FOLDER, fail, reports_errors


@click.group()
def truth() -> None:
    """Ground truth: recorded runs of the real vLLM."""


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
    for recorded in [load_recorded(folder) for folder in folders]:
        steps = check_steps(recorded)
        comparison, result = end_to_end(recorded, overhead)
        click.echo("\n".join(check_lines(recorded, steps, comparison, result)))
        differs = differs or steps.first_difference is not None
    if differs:
        sys.exit(1)
