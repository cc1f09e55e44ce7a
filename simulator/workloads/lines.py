"""Lines of a JSONL file and their fields, checked; every error names file, line and field."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from profiles.errors import MISSING, InputError


@dataclass(frozen=True, slots=True)
class Line:
    """One object of a JSONL file."""

    path: Path
    number: int  # from 1
    row: dict[str, Any]
    has_true_or_false: bool  # a bool would pass for an integer in a list of token ids

    def error(self, field: str, value: Any, expected: str) -> InputError:
        return InputError(self.path, f"line {self.number}: {field}", value, expected)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """`path` for reading bytes, unpacked if its name ends in .gz; failures as InputError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except FileNotFoundError:
        raise InputError(path, "file", MISSING, "an existing file") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(path, "file", str(error), "a complete gzip file") from None
    except OSError as error:
        raise InputError(path, "file", str(error), "a readable file") from None


def json_lines(path: Path) -> Iterator[Line]:
    """The objects of `path`; empty lines are passed over."""
    with opened(path) as file:
        for number, text in enumerate(file, start=1):
            if text.isspace():
                continue
            try:
                row = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                expected = "a JSON object on one line"
                if not text.endswith(b"\n"):
                    expected += "; it is the last line, the file may have been cut off"
                got = f"{error.msg} at column {error.colno}"
                raise InputError(path, f"line {number}", got, expected) from None
            if not isinstance(row, dict):
                raise InputError(path, f"line {number}", row, "a JSON object")
            yield Line(path, number, row, b"true" in text or b"false" in text)


def check_fields(line: Line, row: dict[str, Any], known: set[str], where: str = "") -> None:
    """Refuse a field nobody would read."""
    if row.keys() <= known:
        return
    name = next(name for name in row if name not in known)
    expected = f"no such field; known fields: {', '.join(sorted(known))}"
    raise line.error(where + name, row[name], expected)


def required_integer(
    line: Line,
    row: dict[str, Any],
    name: str,
    *,
    least: int,
    most: int,
    where: str = "",
) -> int:
    if name not in row:
        raise line.error(where + name, MISSING, "an integer, it is required")
    return integer(line, row, name, least=least, most=most, where=where)


def integer(
    line: Line,
    row: dict[str, Any],
    name: str,
    *,
    least: int,
    most: int,
    where: str = "",
    default: int = 0,
) -> int:
    """The integer `row[name]`, or `default` if there is none."""
    value = row.get(name, default)
    if type(value) is not int:
        raise line.error(where + name, value, "an integer")
    if value < least:
        raise line.error(where + name, value, f"at least {least}")
    if value > most:
        raise line.error(where + name, value, f"at most {most}")
    return value


def id_of(line: Line, name: str) -> str:
    """A string that isn't empty, or an integer."""
    value = line.row.get(name, MISSING)
    if type(value) is int:
        return str(value)
    if type(value) is not str or not value:
        raise line.error(name, value, "a string that is not empty, or an integer")
    return value
