"""What all commands share: how errors are told, and the types of their arguments.

Exit codes: 0 all fine, 1 something ran and failed, 2 wrong input. A user's mistake is one line on
stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click

EXISTING_FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

ASKS_HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.1 has none


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a wrong input into one line and exit code 2, a run without progress into exit code 1."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from profiles.errors import InputError

        try:
            command(*args, **kwargs)
        except InputError as error:
            fail(str(error), 2)
        except KeyboardInterrupt:
            fail("stopped", 130)
        except BrokenPipeError:
            raise  # click ends quietly: whoever read has what they wanted
        except OSError as error:
            fail(f"{error.filename or 'file'}: {error.strerror or error}", 2)
        except Exception as error:
            from simulator.progress import SimulationError

            if not isinstance(error, SimulationError):
                raise
            fail(str(error), 1)

    return wrapped


class OneLine(click.Group):
    """A wrong command line is told as any other mistake: in one line."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _told():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _told():
            return super().invoke(ctx)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ASKS_HELP:
        raise
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "servesweep"
        message = " ".join(error.format_message().split()).rstrip(".")
        fail(f"{message}; `{path} --help` tells more", 2)


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"servesweep: {message}", err=True)
    sys.exit(code)
