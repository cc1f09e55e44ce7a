"""`servesweep profiles measure`: whole steps of the real vLLM as a profile."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli_engine import ENGINE_ARGUMENTS, PYTHON, TIMEOUT, parsed, shown_command
from orchestrator.cli_errors import EXISTING_FILE, FOLDER, fail, reports_errors


@click.command()
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
