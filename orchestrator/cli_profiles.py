"""`servesweep profiles`: which measured cards there are, and what is in their tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli_measure import measure

if TYPE_CHECKING:
    from orchestrator.profile_views import Named

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)

OPTIONS = (
    click.option("--model", type=click.Path(path_type=Path), metavar="CONFIG.json",
                 help="Hugging Face configuration; needed for a system of the package."),
    click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True,
                 help="Tensor-parallel degree."),
    click.option("--kv-cache-dtype", type=click.Choice(["bfloat16", "fp8"]), default="bfloat16",
                 show_default=True, help="Of a system of the package."),
    click.option("--quantization", type=click.Choice(["fp8"]), help="Of the weights of a system."),
    click.option("--version", "vllm_version", help="vLLM version; default the newest measured."),
)  # fmt: skip


def of_a_profile(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def add_to(main: click.Group, reports_errors: Callable[..., Any]) -> None:
    """Register the group; `reports_errors` is what every command of ours is wrapped in."""

    @main.group()
    def profiles() -> None:
        """Measured cards: what there is, what it holds, how well it interpolates.

        A PROFILE is a folder of measured tables (.../<card>/<model>/<variant>) or a system of the
        package aiconfigurator-core (h100_sxm, ...) together with --model.
        """

    for name, command in (
        ("list", list_profiles),
        ("show", show),
        ("check", check),
        ("import", import_profile),
        ("compare", compare),
    ):
        command.callback = reports_errors(command.callback)
        profiles.add_command(command, name)
    profiles.add_command(measure)


@click.command()
@click.option(
    "--bundles", type=FOLDER, help="Also the tables in a folder of <card>/<model>/<variant>."
)
@click.option("--model", type=click.Path(path_type=Path), metavar="CONFIG.json",
              help="Also say which systems have tables for this model.")  # fmt: skip
def list_profiles(bundles: Path | None, model: Path | None) -> None:
    """List cards and models, with versions and where their times come from."""
    from orchestrator.profile_views import bundle_lines, system_lines

    lines = system_lines(model)
    if bundles is not None:
        lines += ["", *bundle_lines(bundles)]
    click.echo("\n".join(lines))


@click.command()
@click.argument("profile")
@of_a_profile
@click.option("--plot", type=FILE, metavar="FILE.png", help="Also draw its curves.")
def show(profile: str, plot: Path | None, **options: Any) -> None:
    """Show the times of a profile, in us, with the source of each."""
    from orchestrator.profile_views import show_lines

    found = _named(profile, options)
    click.echo("\n".join(show_lines(found)))
    if plot is not None:
        from orchestrator.profile_plots import draw
        from profiles.errors import InputError

        if plot.suffix != ".png":
            raise InputError("profiles show", "--plot", str(plot), "a name that ends in .png")

        click.echo(f"wrote {draw(found, plot)}")


@click.command()
@click.argument("profile")
@of_a_profile
def check(profile: str, **options: Any) -> None:
    """Check every table, and how well it interpolates where samples are left out in turn."""
    from orchestrator.profile_views import check_lines

    click.echo("\n".join(check_lines(_named(profile, options))))


@click.command("import")
@click.argument("system")
@click.option("--model", type=click.Path(path_type=Path), required=True, metavar="CONFIG.json")
@click.option("--name", help="The model's name, as points call it; default the file's.")
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1,),
    show_default=True,
    help="A degree; may be given again. 1 is always written.",
)
@click.option("--kv-cache-dtype", type=click.Choice(["bfloat16", "fp8"]), default="bfloat16")
@click.option("--quantization", type=click.Choice(["fp8"]))
@click.option("--version", "vllm_version", help="vLLM version; default the newest measured.")
@click.option("--out", type=FOLDER, required=True, help="Folder above all cards.")  # fmt: skip
def import_profile(
    system: str,
    model: Path,
    name: str | None,
    tp: tuple[int, ...],
    kv_cache_dtype: str,
    quantization: str | None,
    vllm_version: str | None,
    out: Path,
) -> None:
    """Write a system's tables for a model to a folder, as CSV that can be read and changed."""
    from orchestrator.profile_views import import_system

    written = import_system(
        system, model, name, tp, (kv_cache_dtype, quantization), vllm_version, out
    )
    click.echo("wrote " + " ".join(map(str, written)))


@click.command()
@click.argument("first")
@click.argument("second")
@of_a_profile
def compare(first: str, second: str, **options: Any) -> None:
    """Compare two profiles: second / first, per layer and per region of attention."""
    from orchestrator.profile_views import compare_lines

    click.echo("\n".join(compare_lines(_named(first, options), _named(second, options))))


def _named(profile: str, options: dict[str, Any]) -> Named:
    from orchestrator.profile_views import find_profile

    return find_profile(profile, **options)
