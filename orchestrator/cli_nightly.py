"""`servesweep nightly`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click


def nightly_suite(
    path: Path,
    out: Path,
    address: str | None,
    serial: bool,
    no_track: bool,
    accept: str | None,
    bisected: bool,
) -> None:
    """Measure, write down, judge. Exits with the verdict: 0 fine, 1 regression, 2 not comparable."""
    from orchestrator.nightly.suite import load_suite

    suite = load_suite(path)
    from orchestrator.nightly.report import headline
    from orchestrator.nightly.session import REPORT, run_night
    from orchestrator.terminal import TerminalProgress

    # A scheduler that ends a job sends SIGTERM: it stops the night as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    night = run_night(
        suite,
        path,
        out,
        address=address,
        serial=serial,
        track=not no_track,
        accept=accept,
        bisected=bisected,
        make_progress=TerminalProgress,
        tell=lambda said: click.echo(f"servesweep: {said}", err=True),
    )
    click.echo((night.folder / REPORT).read_text(encoding="utf-8"))
    if night.tracking is not None:
        click.echo(str(night.tracking))
    click.echo(headline(night.judgement, night.cases))
    if night.accepted is not None:
        shown = ", ".join(night.accepted[:5]) or "nothing"
        more = f" and {len(night.accepted) - 5} more" if len(night.accepted) > 5 else ""
        click.echo(f"accepted as the new baseline; changed: {shown}{more}")
        return
    sys.exit(night.judgement.exit_code)
