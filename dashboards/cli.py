"""The commands that show results. What a command needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli_errors import EXISTING_FILE, FOLDER, reports_errors

SWEEP = click.Path(path_type=Path)
SWEEPS = click.option(
    "--sweeps",
    type=FOLDER,
    default=Path("out"),
    show_default=True,
    help="Folder of the sweeps, where SWEEP is a file.",
)


@click.command()
@click.argument("sweeps_given", nargs=-1, required=True, type=SWEEP, metavar="SWEEP [OTHER]")
@SWEEPS
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page; default report.html in the sweep's folder, comparison.html here for two.",
)
@click.option("--ignore", multiple=True, metavar="AXIS", help="Of two: match without this axis.")
@reports_errors
def report(
    sweeps_given: tuple[Path, ...], sweeps: Path, out: Path | None, ignore: tuple[str, ...]
) -> None:
    """Write what a sweep found as one HTML page; of two, how they differ.

    SWEEP is a sweep's file or folder. Two may also be folders of sweeps, such as two nights.
    """
    if len(sweeps_given) > 2:
        raise click.UsageError(f"one sweep, or two to compare; got {len(sweeps_given)}")
    if len(sweeps_given) == 1:
        if ignore:
            raise click.UsageError("--ignore is for two sweeps")
        from dashboards.report import REPORT, write_report
        from dashboards.sweep_data import find_sweep, read_sweep
        from dashboards.wording import verdict

        data = read_sweep(find_sweep(sweeps_given[0], sweeps))
        click.echo(verdict(data))
        click.echo(f"wrote {write_report(data, out or data.folder / REPORT)}")
        return
    from dashboards.comparison import compare_folders, summary_lines
    from dashboards.report import write_comparison
    from dashboards.sweep_data import find_sweep

    a, b = (find_sweep(given, sweeps) for given in sweeps_given)
    comparison = compare_folders(a, b, ignore)
    click.echo("\n".join(summary_lines(comparison)))
    click.echo(f"wrote {write_comparison(comparison, out or Path('comparison.html'))}")


@click.command()
@click.argument("sweep", type=SWEEP, metavar="SWEEP")
@SWEEPS
@click.option(
    "--rows", type=click.IntRange(1), default=5, show_default=True, help="Best and worst."
)
@click.option("--metric", help="Of the heat map; default what ranks the points.")
@click.option("--json", is_flag=True, help="Everything, as JSON.")
@click.option("--csv", is_flag=True, help="A row a point, best first, as CSV.")
@reports_errors
def show(sweep: Path, sweeps: Path, rows: int, metric: str | None, json: bool, csv: bool) -> None:
    """Show what a sweep found in the terminal: best and worst points, a heat map, the truth.

    SWEEP is a sweep's file or folder.
    """
    from dashboards.sweep_data import find_sweep, read_sweep
    from dashboards.terminal import as_csv, as_json, as_text

    if json and csv:
        raise click.UsageError("--json or --csv, not both")
    data = read_sweep(find_sweep(sweep, sweeps))
    if json:
        click.echo(as_json(data))
    elif csv:
        click.echo(as_csv(data), nl=False)
    else:
        click.echo(as_text(data, rows, metric))


@click.command()
@click.option(
    "--out", type=FOLDER, default=Path("out"), show_default=True, help="Folder of the sweeps."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Who may connect.")
@click.option("--port", type=click.IntRange(0, 65535), default=5000, show_default=True)
@reports_errors
def dashboard(out: Path, host: str, port: int) -> None:
    """Serve MLflow's pages of the sweeps, with views ready, until Ctrl-C."""
    from dashboards.mlflow_ui import serve

    serve(out, host, port, click.echo)


@click.command()
@click.argument("point", type=EXISTING_FILE, metavar="POINT.yaml")
@click.option("--out", type=FOLDER, required=True, help="Folder for the trace; made if missing.")
@click.option("--from-s", type=click.FloatRange(0), default=0.0, help="From this simulated second.")
@click.option("--until-s", type=click.FloatRange(0), help="Until this simulated second.")
@click.option("--request", multiple=True, metavar="ID", help="Only tracks of these requests.")
@click.option("--max-events", type=click.IntRange(1), default=500_000, show_default=True)
@reports_errors
def trace(
    point: Path,
    out: Path,
    from_s: float,
    until_s: float | None,
    request: tuple[str, ...],
    max_events: int,
) -> None:
    """Show one simulation step by step: trace.json for Perfetto, and a plot.

    trace.json opens in ui.perfetto.dev or chrome://tracing.
    """
    from dashboards.trace import Window, trace_point
    from simulator import load_point

    window = Window(from_s, until_s, request, max_events)
    for line in trace_point(load_point(point), window, out, point):
        click.echo(line)
