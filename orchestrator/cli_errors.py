"""What all commands share: how errors are told, and the types of their arguments.

Exit codes: 0 all fine, 1 something ran and failed, 2 wrong input. A user's mistake is one line on
stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click

EXISTING_FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


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


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"servesweep: {message}", err=True)
    sys.exit(code)
