"""What is read back from a sweep's folder is checked here: JSON against models, tables against columns.

A folder may be damaged, edited, or of another version. Whatever does not fit is one InputError that
names the file and the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.truth_data import Kind
from profiles.errors import MISSING, InputError, parse_model

FORMAT: Literal[1] = 1  # of the folder; raised when another version could misread it
Blocks = Annotated[int, Field(ge=0, lt=1 << 31)]
Model = TypeVar("Model", bound=BaseModel)


class Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StoredPoint(Stored):
    index: int
    point_id: str
    run_id: str
    axes: dict[str, Any]
    truth: Annotated[str, Field(pattern=r"^[0-9a-f]+$")] | None
    """The folder of its truth, below truth/."""
    num_gpu_blocks: Blocks | None
    """Of an instance, in a cluster."""


class StoredSweep(BaseModel):
    """Of the sweep's file, what those who show the results ask."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: str
    base: dict[str, Any] = {}


class Manifest(Stored):
    format: Literal[1] = FORMAT
    sweep_id: str
    servesweep: str | None
    commit: str | None
    sweep: StoredSweep
    points: list[StoredPoint]


class StoredTruth(Stored):
    """A truth without its tables; fields as in truth_data.Truth."""

    source: str
    kind: Kind
    content_id: str
    num_requests: int | None
    metrics: dict[str, dict[str, float]]
    makespan_ms: float | None
    throughput: dict[str, float]
    num_gpu_blocks: Blocks | None
    settings: dict[str, Any]
    start: Literal["arrival_ns", "queued_ns"]
    single_tokens_in_tpot: bool
    notes: list[str]


def read_json(path: Path, model: type[Model]) -> Model:
    """Raises InputError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "file", MISSING, "a file that `servesweep run` writes") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(path, "file", str(error), "JSON, as `servesweep run` writes it") from None
    return parse_model(model, data, path)


@dataclass(frozen=True)
class Column:
    """What a column must hold."""

    said: str
    fits: Callable[[pa.DataType], bool]
    nulls: bool


def _number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _value(kind: pa.DataType) -> bool:
    return _number(kind) or _text(kind) or bool(pa.types.is_boolean(kind))


NUMBERS = Column("numbers", _number, nulls=True)
WHOLE = Column("whole numbers", pa.types.is_integer, nulls=False)
FLAGS = Column("true and false", pa.types.is_boolean, nulls=False)
TEXT = Column("texts", _text, nulls=True)
NAMES = Column("texts, none missing", _text, nulls=False)
VALUES = Column("numbers, texts, or true and false", _value, nulls=True)


def read_table(path: Path, columns: Mapping[str, Column]) -> pa.Table:
    """A Parquet file that has these columns. Raises InputError."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "file", str(error), "a readable Parquet file") from None
    check_columns(path, table, columns)
    return table


def check_columns(path: Path, table: pa.Table, columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if name not in table.column_names:
            raise InputError(path, f"column {name}", MISSING, f"a column of {column.said}")
        kind = table.schema.field(name).type
        if not column.fits(kind):
            raise InputError(path, f"column {name}", str(kind), column.said)
        if not column.nulls and table[name].null_count:
            raise InputError(path, f"column {name}", f"{table[name].null_count} null", column.said)
