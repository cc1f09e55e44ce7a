"""What every measured table must satisfy; a mistake names the file, the row and the value.

Files are read strictly: the expected columns and no others, whole lines (the last one ends with a
newline, or the file was cut short), whole numbers where keys are whole, times finite and positive,
every key once. Rows may come in any order.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.bundle import Floats, Ints
from profiles.errors import MISSING, InputError
from profiles.provenance import MEASURED, NAMES, Codes

NS_PER_US = 1000


class CsvTable:
    """The columns of one CSV file as text; row i of a column is line i + 2 of the file.

    `optional` columns may be missing.
    """

    def __init__(
        self, path: Path, content: bytes, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        self.path = path
        self._optional = optional
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(path, "file", str(error), "a readable UTF-8 file") from None
        lines = list(csv.reader(text.splitlines()))
        if not lines:
            raise InputError(path, "file", MISSING, f"a header {','.join(columns)} and rows")
        self._check_header(lines[0], columns)
        rows = lines[1:]
        if not rows:
            raise InputError(path, "file", "a header only", "at least one row")
        for index, row in enumerate(rows):
            if len(row) != len(lines[0]):
                expected = f"{len(lines[0])} values ({','.join(lines[0])})"
                raise self.error(index, "row", ",".join(row), expected)
        if not text.endswith("\n"):
            expected = "a newline at the end of the last row (is the file cut short?)"
            raise self.error(len(rows) - 1, "row", ",".join(rows[-1]), expected)
        self._columns = dict(zip(lines[0], zip(*rows, strict=True), strict=True))

    def _check_header(self, header: list[str], columns: Sequence[str]) -> None:
        for column in columns:
            if header.count(column) != 1:
                found = ",".join(header)
                expected = f"a header with column {column} once"
                raise InputError(self.path, "line 1", found, expected)
        for column in header:
            if column not in columns and not (
                column in self._optional and header.count(column) == 1
            ):
                expected = f"no columns but {','.join((*columns, *self._optional))}"
                raise InputError(self.path, "line 1", column, expected)

    def error(self, index: int, field: str, value: Any, expected: str) -> InputError:
        return InputError(self.path, f"line {index + 2}, {field}", value, expected)

    def text(self, column: str) -> tuple[str, ...]:
        return self._columns[column]

    def _numbers(self, column: str, kind: Callable[[str], Any], expected: str) -> list[Any]:
        cells = self._columns[column]
        if "_" not in "".join(cells):  # Python reads 1_000 as a number, nobody else does
            try:
                return list(map(kind, cells))
            except ValueError:
                pass
        for index, cell in enumerate(cells):
            try:
                wrong = "_" in cell or kind(cell) is None
            except ValueError:
                wrong = True
            if wrong:
                raise self.error(index, column, cell, expected)
        raise AssertionError("a cell that cannot be read was not found again")

    def keys(self, column: str, at_least: int = 0) -> Ints:
        """A column of whole numbers."""
        expected = f"a whole number of at least {at_least}"
        try:
            values = np.array(self._numbers(column, int, expected), dtype=np.int64)
        except OverflowError:
            raise InputError(self.path, column, "a number beyond 64 bits", expected) from None
        wrong = np.flatnonzero(values < at_least)
        if len(wrong):
            raise self.error(int(wrong[0]), column, int(values[wrong[0]]), expected)
        return values

    def floats(self, column: str) -> Floats:
        """A column of finite numbers."""
        values = np.array(self._numbers(column, float, "a finite number"), dtype=np.float64)
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise self.error(int(wrong[0]), column, float(values[wrong[0]]), "a finite number")
        return values

    def times_ns(self, column: str = "time_us") -> Ints:
        """A column of positive times in us as ns, rounded, at least 1."""
        expected = "a finite time above 0"
        values = np.array(self._numbers(column, float, expected), dtype=np.float64)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(wrong):
            raise self.error(int(wrong[0]), column, float(values[wrong[0]]), expected)
        return np.maximum(1, np.round(values * NS_PER_US)).astype(np.int64)

    def sources(self, column: str = "source") -> Codes:
        """Where each row comes from; a table without the column was measured as a whole."""
        if column not in self._columns:
            return np.full(len(self), MEASURED, np.uint8)
        codes = {name: code for code, name in enumerate(NAMES)}
        found = [codes.get(cell, -1) for cell in self._columns[column]]
        if -1 in found:
            index = found.index(-1)
            raise self.error(
                index, column, self._columns[column][index], f"one of {', '.join(NAMES)}"
            )
        return np.array(found, np.uint8)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def sorted_rows(self, names: Sequence[str], keys: Sequence[npt.NDArray[Any]]) -> Ints:
        """The order that sorts the rows by `keys`; two rows with equal keys are an error."""
        order = np.lexsort(tuple(reversed(keys)))
        same = np.ones(len(order) - 1, bool)
        for key in keys:
            ordered = key[order]
            same &= ordered[1:] == ordered[:-1]
        repeated = np.flatnonzero(same)
        if len(repeated):
            first, second = sorted(int(order[repeated[0] + i]) for i in (0, 1))
            shown = ", ".join(
                f"{name}={key[second]}" for name, key in zip(names, keys, strict=True)
            )
            expected = f"every key once; line {first + 2} has it already"
            raise self.error(second, "key", shown, expected)
        return order


def check_layers(path: Path, found: Sequence[str], needed: Sequence[str]) -> None:
    """Every layer that the architecture runs is measured."""
    for layer in needed:
        if layer not in found:
            expected = f"layer {layer}, which the architecture runs"
            raise InputError(path, "layer", f"only {', '.join(sorted(found))}", expected)


def check_edges(path: Path, field: str, edges: Sequence[float], labels: Sequence[str]) -> None:
    """Bucket edges increase and enclose one bucket per label."""
    if len(edges) != len(labels) + 1 or not labels:
        expected = f"{len(labels) + 1} edges, one more than the {len(labels)} labels"
        raise InputError(path, field, list(edges), expected)
    if len(set(labels)) != len(labels):
        raise InputError(path, field, list(labels), "labels that differ")
    increasing = all(low < high for low, high in itertools.pairwise(edges))
    if not increasing or not all(map(math.isfinite, edges)):
        raise InputError(path, field, list(edges), "finite, increasing edges")
