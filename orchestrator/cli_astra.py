"""The `servesweep astra` commands: steps written for ASTRA-Sim, and its answer beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.astra import PATIENCE_S
from orchestrator.cli_errors import EXISTING_FILE, FOLDER, reports_errors
from simulator.network.dialect import DIALECTS

if TYPE_CHECKING:
    from orchestrator.astra.steps import PointSteps


@click.group()
def astra() -> None:
    """ASTRA-Sim: write steps for it, and compare."""


POINT = click.argument("point", type=EXISTING_FILE, metavar="POINT.yaml")
NETWORK = click.option(
    "--network",
    type=EXISTING_FILE,
    metavar="NETWORK.yaml",
    help="The links between ranks; without it one rank runs on its own, stages and replicas as the "
    "point's links say.",
)
DIALECT = click.Choice(DIALECTS)
CHECK_HEAD = (
    f"{'step':>8} {'simulated ns':>14} {'in process ns':>14} {'ASTRA-Sim ns':>14} "
    f"{'difference':>12} {'of a rank':>12}"
)


def opened(point: Path, network: Path | None) -> PointSteps:
    """The simulated point; a wrong network is told before anything runs."""
    from simulator.network.config import load_network

    links = load_network(network) if network else None
    from orchestrator.astra.steps import PointSteps

    return PointSteps(point, links, str(network or "network"))


@astra.command()
@POINT
@click.option("--step", "steps", type=int, multiple=True, metavar="N", help="A step; repeatable.")
@click.option("--all", "all_steps", is_flag=True, help="Every step that schedules tokens.")
@click.option("--out", type=FOLDER, required=True, help="Folder for the files; made if missing.")
@NETWORK
@click.option(
    "--dialect",
    "dialects",
    type=DIALECT,
    multiple=True,
    default=DIALECTS,
    show_default=True,
    help="Whose files; repeatable.",
)
@reports_errors
def export(
    point: Path,
    steps: tuple[int, ...],
    all_steps: bool,
    out: Path,
    network: Path | None,
    dialects: tuple[str, ...],
) -> None:
    """Write steps of a point as text trace, .et files and configurations."""
    from profiles.errors import InputError

    if all_steps == bool(steps):
        value = "--all and --step" if steps else None
        raise InputError("command line", "--step", value, "--step N, or --all for every step")
    opened_point = opened(point, network)
    from orchestrator.astra.export import export as write

    numbers = opened_point.numbers() if all_steps else list(dict.fromkeys(steps))
    manifest = write(opened_point, numbers, dict.fromkeys(dialects), out)  # type: ignore[arg-type]
    ranks = manifest["ranks"]
    click.echo(f"wrote {len(numbers)} steps of {ranks} rank{'s' if ranks > 1 else ''} to {out}")


@astra.command()
@POINT
@click.option("--step", "steps", type=int, multiple=True, required=True, metavar="N")
@NETWORK
@click.option(
    "--binary", type=EXISTING_FILE, help="ASTRA-Sim's program; else ASTRA_SIM_BIN names it."
)
@click.option(
    "--dialect",
    type=DIALECT,
    default=DIALECTS[0],
    show_default=True,
    envvar="ASTRA_SIM_DIALECT",
    show_envvar=True,
    help="Which program it is.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=86400),
    default=PATIENCE_S,
    show_default=True,
    help="Seconds without a rank coming to its end.",
)
@reports_errors
def check(
    point: Path,
    steps: tuple[int, ...],
    network: Path | None,
    binary: Path | None,
    dialect: str,
    timeout: float,
) -> None:
    """Run steps in process and with ASTRA-Sim, and print the differences.

    Times are of the rank that ends last; the last column is the rank that differs most. Exits with 1
    if a step differs.
    """
    from orchestrator.astra.program import find_program

    program = find_program(binary)
    opened_point = opened(point, network)
    from orchestrator.astra.check import check as compare

    differ = 0
    click.echo(CHECK_HEAD)
    for done in compare(opened_point, steps, dialect, program, timeout):  # type: ignore[arg-type]
        differ += done.difference_ns != 0
        ours, theirs = max(done.expected_ns), max(done.found_ns)
        line = (
            f"{done.step:8d} {done.device_ns:14d} {ours:14d} {theirs:14d} {done.difference_ns:+12d}"
        )
        click.echo(f"{line} {done.rank_difference_ns:+12d}")
    if differ:
        click.echo(f"{differ} of {len(steps)} steps differ")
        sys.exit(1)
    click.echo(f"{len(steps)} steps are equal; ranks: {opened_point.network.ranks}")
