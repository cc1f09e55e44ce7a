"""A truth in a sweep's folder, whole, so that whoever shows the sweep needs nothing but the folder.

truth/<key>/truth.json         everything but tables; written last
truth/<key>/requests.parquet   a row a measured request, where there are such rows
truth/<key>/series.parquet     a row a second, where there is a series
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.stored import (
    NUMBERS,
    TEXT,
    WHOLE,
    StoredTruth,
    check_columns,
    read_json,
    read_table,
)
from orchestrator.truth_data import HEADLINE, Truth, TruthRequests
from profiles.bundle import Floats
from profiles.whole import write_whole

LENGTHS = ("num_prompt_tokens", "num_output_tokens")
PLAIN = tuple(StoredTruth.model_fields)


def truth_key(truth: Truth) -> str:
    """How a sweep's folder calls it."""
    return truth.content_id[:16]


def truth_label(truth: Truth) -> str:
    """Where it was measured, in short: a file's name, or the two folders above a recorded run's."""
    source = Path(truth.source)
    if truth.kind == "recorded":
        return "/".join(source.parts[-3:-1]).lstrip("/") or source.name
    return source.name or truth.kind


def write_truth(folder: Path, truth: Truth) -> None:
    """Into a sweep's folder; equal truths give equal bytes."""
    own = folder / "truth" / truth_key(truth)
    own.mkdir(parents=True, exist_ok=True)
    if truth.requests is not None:
        _write(own / "requests.parquet", _requests_table(truth.requests))
    if truth.series:
        _write(own / "series.parquet", pa.table(dict(truth.series)))
    plain = {name: getattr(truth, name) for name in PLAIN}
    text = json.dumps(plain, indent=1, sort_keys=True, default=_plain) + "\n"
    write_whole(own / "truth.json", lambda path: path.write_text(text, encoding="utf-8"))


def read_truth(folder: Path, key: str) -> Truth:
    """What `write_truth` wrote. Raises InputError."""
    own = folder / "truth" / key
    plain = read_json(own / "truth.json", StoredTruth)
    return Truth(
        **{name: getattr(plain, name) for name in PLAIN} | {"notes": tuple(plain.notes)},
        requests=_requests(own / "requests.parquet"),
        series=_series(own / "series.parquet"),
    )


def _requests_table(requests: TruthRequests) -> pa.Table:
    ids = requests.ids if requests.ids is not None else pa.nulls(len(requests), pa.string())
    columns = {name: getattr(requests, name) for name in (*LENGTHS, *HEADLINE)}
    return pa.table({"request_id": ids} | columns)


def _requests(path: Path) -> TruthRequests | None:
    if not path.is_file():
        return None
    columns = dict.fromkeys(LENGTHS, WHOLE) | dict.fromkeys(HEADLINE, NUMBERS)
    table = read_table(path, {"request_id": TEXT} | columns)
    ids = table["request_id"].combine_chunks()
    return TruthRequests(
        ids=None if len(ids) and ids.null_count == len(ids) else ids,
        **{name: table[name].to_numpy() for name in columns},
    )


def _series(path: Path) -> dict[str, Floats]:
    if not path.is_file():
        return {}
    table = read_table(path, {"t_s": NUMBERS})
    check_columns(path, table, dict.fromkeys(table.column_names, NUMBERS))
    return {name: table[name].to_numpy() for name in table.column_names}


def _write(path: Path, table: pa.Table) -> None:
    write_whole(path, partial(pq.write_table, table, compression="zstd"))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return dict(value) if hasattr(value, "items") else str(value)
