"""`servesweep calibrate`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click


def calibrate_study(
    path: Path, out: Path, address: str | None, serial: bool, no_track: bool, card: Path | None
) -> None:
    """Fit, judge, and tell. Exits with 1 if candidates failed."""
    from orchestrator.calibration.study import load_study

    study = load_study(path)
    from orchestrator.calibration.report import check_writable, judged_table, write_card
    from orchestrator.calibration.session import calibrate
    from orchestrator.terminal import TerminalProgress

    if card is not None:
        check_writable(card)
    # A scheduler that ends a job sends SIGTERM: it stops the study as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = calibrate(
        study,
        path,
        out,
        address=address,
        serial=serial,
        track=not no_track,
        make_progress=TerminalProgress,
        tell=lambda said: click.echo(f"servesweep: {said}", err=True),
    )
    percent = f"{study.bootstrap.confidence:.0%}"
    for name, estimate in found.card.parameters.items():
        click.echo(
            f"{name} {estimate.value:g} ({percent} interval {estimate.low:g} .. "
            f"{estimate.high:g}): {', '.join(estimate.fields)}"
        )
    click.echo("\n".join(judged_table(found.judged, percent)))
    for warning in found.card.warnings:
        click.echo(f"warning: {warning}")
    if card is not None:
        write_card(found.card, card)
        click.echo(f"wrote {card}")
    click.echo(f"report and card in {found.folder}")
    if found.report is not None:
        click.echo(str(found.report))
    if found.failed:
        click.echo(f"servesweep: {found.failed} candidates failed", err=True)
        sys.exit(1)
