"""Reads LLMServingSim 2.0's table layout in place.

`perf/<card>/<model>/<variant>/meta.yaml` and `tp<N>/*.csv`. Layers that TP does not change, and
the expert table, come from `tp1`. Skew shares are used only where meta.yaml says that they were
fitted for this TP degree: a skew_fit.csv alone is not enough.

Beside the layout, tables may have a column `source` (provenance.py), dense.csv a layer all_reduce at
TP above 1, and, where there is no moe.csv, a layer moe that was measured over tokens. `writer.py` writes
these.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from profiles import store
from profiles.architecture import (
    ALL_REDUCE,
    FOLDER,
    Architecture,
    Table,
    architecture_path,
    load_architecture,
)
from profiles.bundle import AttentionGrid, Bundle, LayerTable, MoeTable, SkewFit
from profiles.checks import CsvTable, check_edges, check_layers
from profiles.errors import MISSING, InputError, parse_model, read_yaml
from profiles.foreign import Foreign

ATTENTION_KEYS = ("prefill_chunk", "n_decode", "kv_prefill", "kv_decode")
SKEW_LABELS = ("n_label", "skew_rate_label", "kv_big_label", "kp_label")


class BucketAxes(Foreign):
    n_bins: tuple[int, ...]
    n_labels: tuple[str, ...]
    skew_rate_bins: tuple[float, ...]
    skew_rate_labels: tuple[str, ...]
    kv_big_bins: tuple[int, ...]
    kv_big_labels: tuple[str, ...]
    kp_bins: tuple[int, ...]
    kp_labels: tuple[str, ...]


class TpFit(Foreign):
    alpha_default: float


class SkewMeta(Foreign):
    enabled: bool = False
    bucket_axes: BucketAxes | None = None
    per_tp: dict[int, TpFit] = Field(default_factory=dict)


class Meta(Foreign):
    architecture: str
    hardware: str
    model: str
    variant: str
    skew_fit: SkewMeta = SkewMeta()


class Files:
    """The files of one variant: each read once, and remembered for the content id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[str, bytes] = {}
        self._layers: dict[str, dict[str, LayerTable]] = {}
        self.used: set[str] = set()

    def peek(self, name: str) -> bytes | None:
        if name not in self._contents:
            try:
                self._contents[name] = (self.root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise InputError(self.root / name, "file", str(error), "a readable file") from None
        return self._contents[name]

    def use(self, name: str) -> bytes:
        content = self.peek(name)
        if content is None:
            raise InputError(self.root / name, "file", MISSING, "an existing file")
        self.used.add(name)
        return content

    def table(self, name: str, columns: tuple[str, ...]) -> CsvTable:
        return CsvTable(self.root / name, self.use(name), columns, optional=("source",))

    def layers(self, name: str, key: str) -> dict[str, LayerTable]:
        """The layers of a dense.csv or per_sequence.csv."""
        if name not in self._layers:
            csv = self.table(name, ("layer", key, "time_us"))
            self._layers[name] = _layer_tables(csv, key)
        return self._layers[name]

    def digest(self, names: set[str], *extra: bytes) -> str:
        """sha256 over the named files, those that are missing left out."""
        total = hashlib.sha256()
        for name in sorted(names):
            content = self.peek(name)
            if content is not None:
                total.update(f"{name}\0{len(content)}\0".encode() + content)
        for part in extra:
            total.update(b"\0" + part)
        return total.hexdigest()


def load_bundle(root: Path, tp: int = 1) -> Bundle:
    """The bundle of `root` (perf/<card>/<model>/<variant>) at TP degree `tp`.

    A bundle that was read before comes from the store, found by the content of its files.
    """
    root = Path(root)
    if not (root / "meta.yaml").is_file():
        raise InputError(root / "meta.yaml", "file", MISSING, f"a measured variant{beside(root)}")
    if not (root / f"tp{tp}").is_dir():
        expected = f"one of {', '.join(map(str, measured_tps(root)))}"
        raise InputError(root, "tp", tp, expected)
    files = Files(root)
    key = files.digest(candidates(tp), str(tp).encode(), architectures_digest())
    bundle = store.read(key, root)
    if bundle is None:
        bundle = _parse(files, tp)
        store.write(key, bundle)
    return bundle


def candidates(tp: int) -> set[str]:
    """Every file that can have a part in the bundle."""
    own = ("dense.csv", "per_sequence.csv", "attention.csv", "skew_fit.csv")
    shared = ("dense.csv", "per_sequence.csv", "moe.csv")
    return {"meta.yaml", *(f"tp{tp}/{name}" for name in own), *(f"tp1/{name}" for name in shared)}


def architectures_digest() -> bytes:
    total = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.yaml")):
        total.update(path.read_bytes() + b"\0")
    return total.digest()


def measured_tps(root: Path) -> list[int]:
    folders = (path.name.removeprefix("tp") for path in root.glob("tp*") if path.is_dir())
    return sorted(int(name) for name in folders if name.isdigit())


def beside(root: Path, limit: int = 12) -> str:
    """What could have been meant instead of `root`: the variants below its nearest parent."""
    parent = next((path for path in root.parents if path.is_dir()), None)
    if parent is None or len(parent.parts) <= 2:  # not through a whole machine
        return ""
    patterns = ("/".join([*["*"] * depth, "meta.yaml"]) for depth in range(5))
    found = sorted(
        path.parent.relative_to(parent).as_posix()
        for pattern in patterns
        for path in parent.glob(pattern)
    )
    shown = ", ".join(found[:limit]) + (", ..." if len(found) > limit else "")
    return f"; below {parent} there are: {shown or 'none'}"


def _parse(files: Files, tp: int) -> Bundle:
    meta = _meta(files)
    meta_path = files.root / "meta.yaml"
    architecture = load_architecture(meta.architecture, meta_path)
    measured = {} if architecture.is_whole_step else files.layers(f"tp{tp}/dense.csv", "tokens")
    if files.peek("tp1/moe.csv") is None and set(architecture.layers("moe")) & set(measured):
        architecture = architecture.with_experts_by_tokens()
    if tp > 1 and ALL_REDUCE in measured:
        architecture = architecture.with_all_reduce()
    dense = _layers(files, tp, "dense", "tokens", architecture)
    per_sequence = _layers(files, tp, "per_sequence", "sequences", architecture)
    attention = _attention(files, tp)
    moe = _moe(files) if architecture.layers("moe") else None
    skew = _skew(files, tp, meta.skew_fit)
    recipe = architecture_path(meta.architecture).read_bytes()
    return Bundle(
        source=files.root,
        content_id=files.digest(files.used, str(tp).encode(), recipe),
        card=meta.hardware,
        model=meta.model,
        variant=meta.variant,
        tp=tp,
        architecture=architecture,
        dense=dense,
        per_sequence=per_sequence,
        attention=attention,
        moe=moe,
        skew=skew,
    )


def _meta(files: Files) -> Meta:
    files.use("meta.yaml")
    path = files.root / "meta.yaml"
    return parse_model(Meta, read_yaml(path), path)


def _layers(
    files: Files, tp: int, table: Table, key: str, architecture: Architecture
) -> dict[str, LayerTable]:
    """The layers of dense.csv or per_sequence.csv that the architecture runs."""
    needed = architecture.layers(table)
    by_degree: dict[int, list[str]] = {}
    for layer in needed:
        degree = 1 if layer in architecture.tp_stable else tp
        by_degree.setdefault(degree, []).append(layer)
    tables: dict[str, LayerTable] = {}
    for degree, layers in by_degree.items():
        name = f"tp{degree}/{table}.csv"
        found = files.layers(name, key)
        check_layers(files.root / name, list(found), layers)
        tables |= {layer: found[layer] for layer in layers}
    return {layer: tables[layer] for layer in needed}


def _layer_tables(csv: CsvTable, key: str) -> dict[str, LayerTable]:
    keys, ns = csv.keys(key, at_least=1), csv.times_ns()
    names, index = np.unique(np.array(csv.text("layer"), dtype=str), return_inverse=True)
    order = csv.sorted_rows(("layer", key), (np.array(csv.text("layer"), dtype=str), keys))
    columns = (keys[order], ns[order], csv.sources()[order])
    index = index[order]
    return {
        str(name): LayerTable(*(column[index == number] for column in columns))
        for number, name in enumerate(names)
    }


def _attention(files: Files, tp: int) -> AttentionGrid:
    csv = files.table(f"tp{tp}/attention.csv", (*ATTENTION_KEYS, "time_us"))
    keys = [csv.keys(name) for name in ATTENTION_KEYS]
    ns = csv.times_ns()
    order = csv.sorted_rows(ATTENTION_KEYS, keys)
    chunk, n_decode, kv_prefill, kv_decode = (column[order] for column in keys)
    return AttentionGrid(chunk, n_decode, kv_prefill, kv_decode, ns[order], csv.sources()[order])


def _moe(files: Files) -> MoeTable:
    csv = files.table("tp1/moe.csv", ("tokens", "activated_experts", "time_us"))
    experts, tokens = csv.keys("activated_experts", 1), csv.keys("tokens", 1)
    ns = csv.times_ns()
    order = csv.sorted_rows(("activated_experts", "tokens"), (experts, tokens))
    return MoeTable(experts[order], tokens[order], ns[order], csv.sources()[order])


def _skew(files: Files, tp: int, meta: SkewMeta) -> SkewFit | None:
    if not meta.enabled or tp not in meta.per_tp:
        return None
    meta_path, field = files.root / "meta.yaml", "skew_fit.bucket_axes"
    axes = meta.bucket_axes
    if axes is None:
        raise InputError(meta_path, field, MISSING, "the bucket edges of the enabled fit")
    csv = files.table(f"tp{tp}/skew_fit.csv", ("pc", *SKEW_LABELS, "alpha", "n_samples"))
    chunk, alpha = csv.keys("pc"), csv.floats("alpha")
    csv.keys("n_samples")
    columns = (
        ("n_label", "n_bins", axes.n_bins, axes.n_labels),
        ("skew_rate_label", "skew_rate_bins", axes.skew_rate_bins, axes.skew_rate_labels),
        ("kv_big_label", "kv_big_bins", axes.kv_big_bins, axes.kv_big_labels),
        ("kp_label", "kp_bins", axes.kp_bins, axes.kp_labels),
    )
    buckets = []
    for column, bins, edges, labels in columns:
        check_edges(meta_path, f"{field}.{bins}", edges, labels)
        buckets.append(_buckets(csv, column, labels))
    order = csv.sorted_rows(("pc", *SKEW_LABELS), (chunk, *buckets))
    return SkewFit(
        n_decode_edges=np.array(axes.n_bins[1:], np.int64),
        skew_rate_edges=np.array(axes.skew_rate_bins[1:], np.float64),
        kv_max_edges=np.array(axes.kv_big_bins[1:], np.int64),
        kv_prefill_edges=np.array(axes.kp_bins[1:], np.int64),
        pooled_alpha=meta.per_tp[tp].alpha_default,
        chunk=chunk[order],
        n_decode_bucket=buckets[0][order],
        skew_rate_bucket=buckets[1][order],
        kv_max_bucket=buckets[2][order],
        kv_prefill_bucket=buckets[3][order],
        alpha=alpha[order],
    )


def _buckets(csv: CsvTable, column: str, labels: tuple[str, ...]) -> Any:
    """The number of every row's bucket."""
    numbers = {label: number for number, label in enumerate(labels)}
    found = [numbers.get(label, -1) for label in csv.text(column)]
    if -1 in found:
        index = found.index(-1)
        raise csv.error(index, column, csv.text(column)[index], f"one of {', '.join(labels)}")
    return np.array(found, np.int64)
