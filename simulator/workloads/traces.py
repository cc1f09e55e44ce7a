"""Reads published traces of real services, which give lengths and times but no tokens.

| format | file | arrivals | shared prefixes |
|---|---|---|---|
| azure | CSV TIMESTAMP, ContextTokens, GeneratedTokens | wall clock | none |
| burstgpt | CSV Timestamp, Request tokens, Response tokens, ... | seconds | none |
| mooncake | JSONL timestamp, input_length, output_length, hash_ids | ms | by 512 prompt tokens |

CSV arrivals count from the earliest row. Such files hold rows of requests that failed, without
tokens; they are refused unless `drop_empty` leaves them out, because they change the load.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from profiles.errors import MISSING, InputError
from simulator.workloads.columns import Columns
from simulator.workloads.lines import (
    Line,
    check_fields,
    json_lines,
    opened,
    required_integer,
)
from simulator.workloads.store import cached
from simulator.workloads.workload import MAX_INT32, MAX_NS, Workload

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
DROP_HINT = "at least 1; drop_empty: true leaves such rows out"
MOONCAKE_FIELDS = {"timestamp", "input_length", "output_length", "hash_ids"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True)
class CsvFormat:
    """Where a CSV trace keeps what."""

    time: str
    prompt: str
    output: str
    time_ns: Callable[[str], int]  # raises ValueError
    time_expected: str


def wall_clock_ns(text: str) -> int:
    """'2023-11-16 18:17:03.9799600' -> ns since 1970 (datetime alone would drop the last digit)."""
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, time, fraction, zone = match.groups()
    whole = _whole_seconds(f"{day}T{time}{zone or '+00:00'}")
    return whole * NS_PER_S + int((fraction or "").ljust(9, "0"))


@lru_cache(maxsize=1024)  # many requests of a trace arrive in the same second
def _whole_seconds(text: str) -> int:
    seconds = (datetime.fromisoformat(text) - _EPOCH) // timedelta(seconds=1)
    if abs(seconds) > 2 * MAX_NS // NS_PER_S:
        raise ValueError(text)
    return seconds


def seconds_ns(text: str) -> int:
    seconds = float(text)
    if not 0 <= seconds <= MAX_NS / NS_PER_S:
        raise ValueError(text)
    return round(seconds * NS_PER_S)


CSV_FORMATS = {
    "azure": CsvFormat(
        "TIMESTAMP",
        "ContextTokens",
        "GeneratedTokens",
        wall_clock_ns,
        "a time like 2023-11-16 18:17:03.9799600",
    ),
    "burstgpt": CsvFormat(
        "Timestamp", "Request tokens", "Response tokens", seconds_ns, "seconds, at least 0"
    ),
}


def load_csv(path: Path, name: str = "auto", *, drop_empty: bool = False) -> Workload:
    """Read a CSV trace; `name` is one of CSV_FORMATS, or auto to go by the header."""
    kind = f"csv {name} drop_empty={drop_empty}"
    return cached(path, kind, partial(read_csv, name=name, drop_empty=drop_empty))


def load_mooncake(path: Path, *, chunk_size: int = 512, drop_empty: bool = False) -> Workload:
    kind = f"mooncake {chunk_size} drop_empty={drop_empty}"
    read = partial(read_mooncake, chunk_size=chunk_size, drop_empty=drop_empty)
    return cached(path, kind, read)


def read_csv(path: Path, name: str = "auto", *, drop_empty: bool = False) -> Workload:
    columns = Columns(path)
    with opened(path) as file:
        rows = _csv_rows(path, file)
        _, header = next(rows, (0, []))
        layout = _layout(path, header, name)
        at = [header.index(field) for field in (layout.time, layout.prompt, layout.output)]
        for line, row in rows:
            if len(row) != len(header):
                got = f"{len(row)} fields"
                raise InputError(path, f"line {line}", got, f"{len(header)}, as the header has")
            time, prompt, output = (row[i] for i in at)
            try:
                arrival = layout.time_ns(time)
            except ValueError:
                field = f"line {line}: {layout.time}"
                raise InputError(path, field, time, layout.time_expected) from None
            num_prompt = _tokens(path, line, layout.prompt, prompt)
            num_output = _tokens(path, line, layout.output, output)
            if 0 in (num_prompt, num_output):
                if drop_empty:
                    continue
                empty = layout.output if num_prompt else layout.prompt
                raise InputError(path, f"line {line}: {empty}", 0, DROP_HINT)
            _check_sum(path, line, num_prompt, num_output)
            columns.end_request(
                str(len(columns)), arrival=arrival, prompt=num_prompt, output=num_output
            )
    columns.count_from_earliest()
    return columns.workload()


def _csv_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line they end on; empty lines are passed over."""
    rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        where = f"line {rows.line_num + 1}"
        raise InputError(path, where, str(error), "CSV in UTF-8") from None


def _layout(path: Path, header: list[str], name: str) -> CsvFormat:
    if not header:
        raise InputError(path, "file", "no header", "a line that names the columns")
    candidates = CSV_FORMATS.values() if name == "auto" else [CSV_FORMATS[name]]
    for layout in candidates:
        if {layout.time, layout.prompt, layout.output} <= set(header):
            return layout
    needed = " or ".join(f"{x.time}, {x.prompt}, {x.output}" for x in candidates)
    raise InputError(path, "line 1", ",".join(header), f"the columns {needed}")


def _tokens(path: Path, line: int, field: str, text: str) -> int:
    # int() alone would take '1_000' and ' 5 ', and refuse thousands of digits in its own words.
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > MAX_INT32:
        raise InputError(path, f"line {line}: {field}", text, f"an integer from 0 to {MAX_INT32}")
    return int(text)


def _check_sum(path: Path, line: int, prompt: int, output: int) -> None:
    if prompt + output > MAX_INT32:
        field = f"line {line}: prompt and output tokens"
        raise InputError(path, field, prompt + output, f"at most {MAX_INT32}")


def read_mooncake(path: Path, *, chunk_size: int = 512, drop_empty: bool = False) -> Workload:
    """A Mooncake trace; what a request generated is unknown, so only prompts share blocks."""
    columns = Columns(path, chunk_size)
    hash_ids = array("q")
    for line in json_lines(path):
        row = line.row
        check_fields(line, row, MOONCAKE_FIELDS)
        prompt = required_integer(line, row, "input_length", least=0, most=MAX_INT32)
        output = required_integer(line, row, "output_length", least=0, most=MAX_INT32)
        if 0 in (prompt, output):
            if drop_empty:
                continue
            raise line.error("output_length" if prompt else "input_length", 0, DROP_HINT)
        _check_sum(path, line.number, prompt, output)
        span = _hash_ids(line, prompt, chunk_size)
        hash_ids.extend(span)
        columns.token_ids.extend(array("i", bytes(4 * len(span))))
        arrival = _milliseconds(line)
        columns.end_request(str(len(columns)), arrival=arrival, prompt=prompt, output=output)
    # The ids can be any 64-bit numbers; what matters is which are equal.
    _, small = np.unique(np.frombuffer(hash_ids, np.int64), return_inverse=True)
    columns.token_ids = array("i", small.astype(np.int32).tobytes())
    return columns.workload()


def _hash_ids(line: Line, prompt: int, chunk_size: int) -> array[int]:
    given = line.row.get("hash_ids", MISSING)
    if not isinstance(given, list):
        raise line.error("hash_ids", given, "a list of integers")
    # Some writers leave out the id of a last chunk that isn't full.
    least, most = prompt // chunk_size, -(-prompt // chunk_size)
    if not least <= len(given) <= most:
        expected = f"{most} for {prompt} prompt tokens in chunks of {chunk_size}"
        raise line.error("hash_ids", f"{len(given)} ids", expected)
    for i, hash_id in enumerate(given):
        if type(hash_id) is not int or not -(1 << 63) <= hash_id < 1 << 63:
            raise line.error(f"hash_ids[{i}]", hash_id, "a 64-bit integer")
    return array("q", given)


def _milliseconds(line: Line) -> int:
    value = line.row.get("timestamp", MISSING)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= MAX_NS // NS_PER_MS
    ):
        raise line.error("timestamp", value, "milliseconds, at least 0")
    return round(value * NS_PER_MS)
