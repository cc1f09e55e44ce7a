"""The `servesweep` command.

Exit codes: 0 all fine, 1 something ran and failed, 2 wrong input. A user's mistake is one line on
stderr. What a command needs is imported when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator import cli_profiles
from orchestrator.cli_astra import astra
from orchestrator.cli_errors import EXISTING_FILE, FOLDER, OneLine, fail, reports_errors
from orchestrator.cli_truth import truth

if TYPE_CHECKING:
    from orchestrator.session import Session


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    from importlib.metadata import PackageNotFoundError, version

    if wanted and not context.resilient_parsing:
        try:
            click.echo(f"servesweep {version('servesweep')}")
        except PackageNotFoundError:
            click.echo("servesweep, a checkout that is not installed")
        context.exit()


class WithDashboards(OneLine):
    """Has the dashboards' commands too, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *DASHBOARDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in DASHBOARDS:
            return super().get_command(ctx, cmd_name)
        from dashboards import cli

        command: click.Command = getattr(cli, cmd_name)
        return command


DASHBOARDS = ("dashboard", "report", "show", "trace")


@click.group(cls=WithDashboards, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version.",
)
def main() -> None:
    """Simulate vLLM serving: decisions as vLLM makes them, durations as cards were measured."""
    logging.basicConfig(format="servesweep: %(message)s", level=logging.WARNING)


main.add_command(astra)
main.add_command(truth)


@main.command()
@click.argument("point", type=EXISTING_FILE, metavar="POINT.yaml")
@click.option("--out", type=FOLDER, required=True, help="Folder for the results; made if missing.")
@click.option("--steps", is_flag=True, help="Also write steps.parquet: who ran in every step.")
@reports_errors
def simulate(point: Path, out: Path, steps: bool) -> None:
    """Simulate one point and write requests, timeseries and summary to a folder."""
    from simulator import load_point
    from simulator import simulate as run_point

    result = run_point(load_point(point), steps=steps, source=point)
    written = result.write(out)
    click.echo(overview(result.summary))
    click.echo("wrote " + " ".join(str(path) for path in written))


def opened(sweep: Path, out: Path) -> Session:
    """The sweep's session; a wrong file is told before the compiler is loaded."""
    from orchestrator.sweep import load_sweep

    content = load_sweep(sweep)
    from orchestrator.session import Session

    return Session.open(sweep, out, content)


def page_of(folder: Path) -> list[Path]:
    """The sweep's report, written into its folder."""
    from dashboards.report import REPORT, write_report
    from dashboards.sweep_data import read_sweep

    return [write_report(read_sweep(folder), folder / REPORT)]


def tell_tracking(said: str) -> None:
    """What a sweep's end waits for."""
    click.echo(f"servesweep: tracking: {said}", err=True)


OUT = click.option(
    "--out", type=FOLDER, default=Path("out"), show_default=True, help="Folder of the sweeps."
)


@main.command()
@click.argument("sweep", type=EXISTING_FILE, metavar="SWEEP.yaml")
@OUT
@click.option("--address", help="A running Ray cluster; default RAY_ADDRESS, else a local one.")
@click.option("--serial", is_flag=True, help="Run in this process, without Ray.")
@click.option("--no-track", is_flag=True, help="Do not track in MLflow; `track` does it later.")
@click.option("--dry-run", is_flag=True, help="The same as `plan`.")
@reports_errors
def run(
    sweep: Path, out: Path, address: str | None, serial: bool, no_track: bool, dry_run: bool
) -> None:
    """Run a sweep; a stopped one goes on where it was.

    Exits with 1 if points failed.
    """
    session = opened(sweep, out)
    from orchestrator.terminal import TerminalProgress, plan_lines, resume_line

    if dry_run:
        click.echo("\n".join(plan_lines(session)))
        return
    if session.plan.resumed or session.plan.others:
        click.echo(resume_line(session.plan))
    # A scheduler that ends a job sends SIGTERM: it stops the sweep as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = TerminalProgress()
    try:
        report, stopped = session.run(
            progress,
            address=address,
            serial=serial,
            track=not no_track,
            tell=tell_tracking,
            make_pages=page_of,
        )
    except KeyboardInterrupt:
        progress.close()
        fail(f"stopped; the same command goes on where it was ({session.store.folder})", 130)
    finally:
        progress.close()
    click.echo(session.verdict())
    click.echo(f"results in {session.store.folder}")
    if report is not None:
        click.echo(str(report))
        if not report.complete:
            click.echo(f"the results are complete; `servesweep track {sweep}` writes the rest")
    if stopped:
        fail(stopped, 1)
    if session.plan.counts()["failed"]:
        sys.exit(1)


@main.command()
@click.argument("sweep", type=EXISTING_FILE, metavar="SWEEP.yaml")
@OUT
@reports_errors
def plan(sweep: Path, out: Path) -> None:
    """Show a sweep's points: block counts, which are equal, which are done."""
    session = opened(sweep, out)
    from orchestrator.terminal import plan_lines

    click.echo("\n".join(plan_lines(session)))


@main.command()
@click.argument("sweep", type=EXISTING_FILE, metavar="SWEEP.yaml")
@OUT
@reports_errors
def track(sweep: Path, out: Path) -> None:
    """Write what a sweep's folder holds to MLflow; again gives the same runs, no others."""
    session = opened(sweep, out)
    if not session.store.journal_path.is_file():
        from profiles.errors import MISSING, InputError

        expected = f"the results of a sweep that was run; `servesweep run {sweep}` makes them"
        raise InputError(session.store.folder, "journal.jsonl", MISSING, expected)
    with session.tracker() as tracker:
        report = session.track(tracker, tell_tracking, page_of)
    click.echo(str(report))
    if not report.complete:
        sys.exit(1)


@main.command()
@click.argument("study", type=EXISTING_FILE, metavar="STUDY.yaml")
@OUT
@click.option("--address", help="A running Ray cluster; default RAY_ADDRESS, else a local one.")
@click.option("--serial", is_flag=True, help="Run in this process, without Ray.")
@click.option("--no-track", is_flag=True, help="Do not track in MLflow.")
@click.option("--card", type=EXISTING_FILE, help="Also write the calibrated card to this file.")
@reports_errors
def calibrate(
    study: Path, out: Path, address: str | None, serial: bool, no_track: bool, card: Path | None
) -> None:
    """Fit settings to recorded runs, and judge them on requests the fit never saw.

    A stopped study goes on where it was. Exits with 1 if candidates failed.
    """
    from orchestrator.cli_calibrate import calibrate_study

    calibrate_study(study, out, address, serial, no_track, card)


@main.command()
@click.argument("suite", type=EXISTING_FILE, metavar="SUITE.yaml")
@OUT
@click.option("--address", help="A running Ray cluster; default RAY_ADDRESS, else a local one.")
@click.option("--serial", is_flag=True, help="Run in this process, without Ray.")
@click.option("--no-track", is_flag=True, help="Do not track in MLflow; there is no trend then.")
@click.option("--accept", metavar="REASON", help="Make tonight's predictions the baseline.")
@click.option("--bisect", is_flag=True, help="Name the commit or input that changed a prediction.")
@reports_errors
def nightly(
    suite: Path,
    out: Path,
    address: str | None,
    serial: bool,
    no_track: bool,
    accept: str | None,
    bisect: bool,
) -> None:
    """Measure a suite and judge it: did predictions change, and are they accurate?

    Exits with 0 if all is fine, 1 for a regression, 2 if something could not be compared.
    """
    from orchestrator.cli_nightly import nightly_suite

    nightly_suite(suite, out, address, serial, no_track, accept, bisect)


cli_profiles.add_to(main, reports_errors)


def overview(summary: dict[str, Any]) -> str:
    """A run in a few lines."""
    requests, kv, cache = summary["requests"], summary["kv"], summary["prefix_cache"]
    lines = [
        f"{summary['model']} on {summary['card']['name']}: "
        f"{requests['finished']} of {summary['workload']['requests']} requests finished"
        + (f", {requests['refused']} refused" if requests["refused"] else "")
        + (f", {requests['capped_at_max_model_len']} cut off at max_model_len"
           if requests["capped_at_max_model_len"] else ""),
        f"{summary['steps']} steps, {summary['preemptions']} preemptions, "
        f"{kv['peak_blocks_in_use']} of {kv['usable_blocks']} KV blocks in use at most, "
        f"prefix hit rate {cache['hit_rate']:.1%}",
    ]  # fmt: skip
    if summary.get("throughput"):
        rate = summary["throughput"]["output_tokens_per_s"]
        lines.append(f"{summary['makespan_ms'] / 1e3:.3f} s simulated, {rate:.1f} output tokens/s")
    names = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "latency_ms": "latency"}
    if summary["latency"]:
        lines.append(
            f"{'ms':8s}" + "".join(f"{s:>12s}" for s in ("mean", "p50", "p90", "p95", "p99"))
        )
    for metric, name in names.items():
        values = summary["latency"].get(metric)
        if values:
            lines.append(f"{name:8s}" + "".join(f"{value:12.2f}" for value in values.values()))
    for axis, seen in summary["outside_measured_grid"].items():
        lines.append(f"outside the measured grid: {axis}: {outside_text(seen)}")
    for request_id, reason in list(requests["refusals"].items())[:5]:
        lines.append(f"refused {request_id}: {reason}")
    lines += [f"note: {note}" for note in summary["notes"]]
    return "\n".join(lines)


def outside_text(seen: dict[str, int]) -> str:
    parts = []
    if "above" in seen:
        parts.append(
            f"{seen['above']} steps above {seen['last_sample']}, up to {seen['highest']} (extrapolated)"
        )
    if "below" in seen:
        parts.append(
            f"{seen['below']} steps below {seen['first_sample']}, down to {seen['lowest']} (clamped)"
        )
    return ", ".join(parts)


if __name__ == "__main__":
    main()
