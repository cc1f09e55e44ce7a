"""Options of the commands that run the real vLLM, and what becomes of them."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import click

from orchestrator.cli_errors import EXISTING_FILE

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
