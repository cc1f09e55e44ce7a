"""Writes a bundle in the layout that `llmservingsim.py` reads, with the source of every row.

Times are written in us with three decimals, which is whole ns: what is read back is equal.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from profiles.bundle import Bundle, Ints, LayerTable
from profiles.errors import InputError
from profiles.provenance import NAMES, Codes


def write_bundles(bundles: Sequence[Bundle], root: Path, origin: dict[str, Any]) -> list[Path]:
    """Write bundles of one model on one card, one for each TP degree, below `root`.

    The folder is root/<card>/<model>/<variant>; `origin` says in meta.yaml where the tables come from.
    TP 1 must be among them, as layers that TP does not change are read from there. Raises InputError if
    something is there already.
    """
    first = bundles[0]
    folder = root / first.card / first.model / first.variant
    if folder.exists():
        raise InputError(folder, "folder", "a folder that exists", "a new one")
    written = []
    for bundle in bundles:
        part = folder / f"tp{bundle.tp}"
        part.mkdir(parents=True)
        for name, rows in _files(bundle).items():
            path = part / name
            path.write_text(_text(rows), encoding="utf-8")
            written.append(path)
    path = folder / "meta.yaml"  # last: without it nobody reads the folder
    path.write_text(yaml.safe_dump(_meta(bundles, origin), sort_keys=False), encoding="utf-8")
    return [*written, path]


def _meta(bundles: Sequence[Bundle], origin: dict[str, Any]) -> dict[str, Any]:
    first = bundles[0]
    return {
        "architecture": first.architecture.name,
        "hardware": first.card,
        "model": first.model,
        "variant": first.variant,
        "tp_degrees": [bundle.tp for bundle in bundles],
        "skew_fit": {"enabled": False},
        "origin": origin,
    }


def _files(bundle: Bundle) -> dict[str, Iterable[Sequence[Any]]]:
    grid = bundle.attention
    keys = (grid.prefill_chunk, grid.kv_prefill, grid.n_decode, grid.kv_decode)
    header = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us", "source")
    files: dict[str, Iterable[Sequence[Any]]] = {
        "dense.csv": _layers(bundle.dense, "tokens"),
        "per_sequence.csv": _layers(bundle.per_sequence, "sequences"),
        "attention.csv": [header, *_rows(keys, grid.ns, grid.source)],
    }
    if bundle.moe is not None and bundle.tp == 1:
        table = bundle.moe
        keys_moe = (table.tokens, table.activated_experts)
        header_moe = ("tokens", "activated_experts", "time_us", "source")
        files["moe.csv"] = [header_moe, *_rows(keys_moe, table.ns, table.source)]
    return files


def _layers(tables: dict[str, LayerTable], key: str) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = [("layer", key, "time_us", "source")]
    for layer, table in tables.items():
        rows += [(layer, *row) for row in _rows((table.keys,), table.ns, table.source)]
    return rows


def _rows(keys: Sequence[Ints], ns: Ints, source: Codes) -> Iterable[Sequence[Any]]:
    times = (f"{value // 1000}.{value % 1000:03d}" for value in ns.tolist())
    names = (NAMES[code] for code in source.tolist())
    return zip(*(key.tolist() for key in keys), times, names, strict=True)


def _text(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
