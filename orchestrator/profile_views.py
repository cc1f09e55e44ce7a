"""What `servesweep profiles` shows: measured tables as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from profiles.aiconfigurator.check import system_errors
from profiles.aiconfigurator.compose import RECIPE, check_covered, load_bundle
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import (
    DISTRIBUTION,
    Place,
    System,
    find_system,
    known_systems,
    package_version,
    versions_of,
)
from profiles.bundle import Bundle, LayerTable
from profiles.errors import MISSING, InputError, read_yaml
from profiles.leave_one_out import Errors, bundle_errors
from profiles.llmservingsim import load_bundle as read_bundle
from profiles.llmservingsim import measured_tps
from profiles.lookup import attention_ns, layer_ns, source_below
from profiles.model import ModelConfig
from profiles.provenance import NAMES
from profiles.writer import write_bundles

COUNTS = (1, 8, 64, 512, 2048, 8192)
DECODES, LENGTHS = (1, 8, 64, 256), (128, 1024, 8192, 32768)
CHUNKS, HISTORIES = (128, 512, 2048, 8192), (0, 1024, 16384)
MARKS = ("", "i", "d", "a")  # beside a time that was not measured
LEGEND = "us; i interpolated, d derived, a assumed, x beyond the last sample, others measured"


@dataclass(frozen=True)
class Named:
    """A profile as the command line names it; system and shape where it is the package's."""

    bundle: Bundle
    system: System | None = None
    shape: Shape | None = None


def find_profile(
    profile: str,
    model: Path | None = None,
    tp: int = 1,
    kv_cache_dtype: str = "bfloat16",
    quantization: str | None = None,
    vllm_version: str | None = None,
) -> Named:
    """A folder of tables, or a system with a model. Raises InputError."""
    folder = Path(profile)
    if (folder / "meta.yaml").is_file() or "/" in profile or folder.is_dir():
        return Named(read_bundle(folder, tp))
    place = Place("profiles", "")
    if profile not in known_systems(place):
        expected = f"the folder of a variant, or one of {', '.join(known_systems(place))}"
        raise InputError("profiles", "PROFILE", profile, expected)
    system = find_system(profile, vllm_version, place)
    if model is None:
        expected = f"the config.json of a model, as {profile} is a system of {DISTRIBUTION}"
        raise InputError("profiles", "--model", MISSING, expected)
    config = ModelConfig.from_hf(model)
    shape = Shape.of(config, config.torch_dtype, kv_cache_dtype, tp, place, quantization)
    bundle = replace(load_bundle(profile, vllm_version, shape, place), model=config.name)
    return Named(bundle, system, shape)


def system_lines(model: Path | None) -> list[str]:
    """A line a system of the package."""
    config = ModelConfig.from_hf(model) if model else None
    lines = [
        f"{DISTRIBUTION} {package_version()}, measured kernels; profile: {{aiconfigurator: ...}}"
    ]
    lines.append(f"{'system':21s}{'GiB':>6s}{'GB/s':>7s}{'TFLOP/s':>9s}  vLLM")
    for name in known_systems():
        card = find_system(name, None).card
        line = f"{name:21s}{card.memory_bytes / 2**30:6.0f}{card.memory_bandwidth_gbps or 0:7.0f}"
        line += f"{card.bfloat16_tflops or 0:9.0f}  {', '.join(versions_of(name))}"
        lines.append(line + (f"  {config.name}: {covered(name, config)}" if config else ""))
    return lines


def covered(system: str, config: ModelConfig) -> str:
    """The TP degrees at which a system has tables for a model, or why it has none."""
    degrees, reason = [], ""
    for tp in (1, 2, 4, 8, 16):
        try:
            shape = Shape.of(config, config.torch_dtype, "bfloat16", tp, Place())
            check_covered(find_system(system, None), shape)
        except InputError as error:
            reason = reason or f"{error.value} is not measured"
        else:
            degrees.append(str(tp))
    return f"TP {', '.join(degrees)}" if degrees else reason


def bundle_lines(root: Path) -> list[str]:
    """A line a variant below `root`."""
    if not root.is_dir():
        raise InputError(root, "folder", MISSING, "a folder of <card>/<model>/<variant>")
    lines = [f"{root}; profile: {{bundles: ...}}"]
    for path in sorted(root.glob("*/**/meta.yaml")):
        meta = read_yaml(path)
        degrees = ", ".join(map(str, measured_tps(path.parent)))
        origin = meta.get("origin") or {"vllm": meta.get("vllm_version", "unknown")}
        said = ", ".join(f"{key} {value}" for key, value in origin.items())
        lines.append(f"{path.parent.relative_to(root).as_posix()}  TP {degrees}  {said}")
    return lines if len(lines) > 1 else [*lines, "nothing there"]


def show_lines(named: Named) -> list[str]:
    bundle = named.bundle
    lines = [
        f"{bundle.card} {bundle.model} {bundle.variant} TP {bundle.tp}, from {bundle.source}",
        f"content {bundle.content_id[:16]}; rows: {_row_counts(bundle)}",
        LEGEND,
        "",
    ]
    lines += _layer_block("layer by tokens", bundle.dense)
    lines += _layer_block("layer by sequences", bundle.per_sequence)
    if bundle.moe is not None:
        experts = np.unique(bundle.moe.activated_experts)
        columns = {
            f"{count} awake": LayerTable(
                *(
                    getattr(bundle.moe, field)[bundle.moe.activated_experts == count]
                    for field in ("tokens", "ns", "source")
                )
            )
            for count in experts.tolist()
        }
        lines += _layer_block("experts by tokens", columns)
    lines += _grid_block(bundle, "decode: requests x tokens held", DECODES, LENGTHS, decode=True)
    lines += _grid_block(bundle, "prefill: chunk x history", CHUNKS, HISTORIES, decode=False)
    return lines


def _row_counts(bundle: Bundle) -> str:
    codes = [table.source for table in (*bundle.dense.values(), *bundle.per_sequence.values())]
    codes.append(bundle.attention.source)
    if bundle.moe is not None:
        codes.append(bundle.moe.source)
    counts = np.bincount(np.concatenate(codes), minlength=len(NAMES)).tolist()
    return ", ".join(f"{n} {name}" for n, name in zip(counts, NAMES, strict=True) if n)


def _layer_block(title: str, tables: dict[str, LayerTable]) -> list[str]:
    lines = [f"{title:22s}" + "".join(f"{count:>11d}" for count in COUNTS)]
    for layer, table in tables.items():
        cells = (_cell(layer_ns(table, count), _mark(table, count)) for count in COUNTS)
        lines.append(f"{layer:22s}" + "".join(cells))
    return [*lines, ""]


def _mark(table: LayerTable, count: int) -> str:
    if count > table.keys[-1]:
        return "x"
    return MARKS[source_below(table.keys, table.source, count)]


def _cell(ns: float, mark: str) -> str:
    return f"{ns / 1e3:>10.1f}{mark:1s}" if np.isfinite(ns) else f"{'-':>10s} "


def _grid_block(
    bundle: Bundle, title: str, rows: Sequence[int], columns: Sequence[int], *, decode: bool
) -> list[str]:
    grid = bundle.attention
    own = (grid.prefill_chunk == 0) if decode else (grid.n_decode == 0)
    last_row = int((grid.n_decode if decode else grid.prefill_chunk)[own].max(initial=0))
    last_column = int((grid.kv_decode if decode else grid.kv_prefill)[own].max(initial=0))
    lines = [f"{title:32s}" + "".join(f"{column:>11d}" for column in columns)]
    for row in rows:
        cells = []
        for column in columns:
            query = (0, row, 0, column) if decode else (row, 0, column, 0)
            outside = row > last_row or column > last_column
            cells.append(_cell(attention_ns(grid, *query), "x" if outside else ""))
        lines.append(f"{row:>32d}" + "".join(cells))
    return [*lines, ""]


def check_lines(named: Named) -> list[str]:
    """Loading has checked it; the rest is how well it interpolates."""
    bundle = named.bundle
    lines = [
        f"{bundle.card} {bundle.model} {bundle.variant} TP {bundle.tp}: complete and well-formed"
    ]
    errors: Iterable[Errors] = bundle_errors(bundle)
    if named.system is not None and named.shape is not None:
        errors = system_errors(named.system, named.shape)
        lines[0] += f", vLLM {named.system.version}"
    lines.append("every inner sample left out and read from its neighbours, error in %:")
    lines.append(f"{'table':22s}{'axis':15s}{'samples':>8s}{'mean':>8s}{'median':>8s}{'p95':>8s}")
    for found in errors:
        numbers = (found.mean, found.median, found.p95)
        shown = "".join(f"{100 * value:8.2f}" for value in numbers) if found.samples else ""
        lines.append(f"{found.table:22s}{found.axis:15s}{found.samples:8d}{shown}")
    return lines


def import_system(
    system: str,
    model: Path,
    name: str | None,
    degrees: Sequence[int],
    stored: tuple[str, str | None],
    vllm_version: str | None,
    out: Path,
) -> list[Path]:
    """Write the bundles of a system for a model; `stored` is KV cache and quantization.

    Raises InputError.
    """
    place = Place("profiles", "")
    found = find_system(system, vllm_version, place)
    config = ModelConfig.from_hf(model, name)
    bundles = []
    for tp in sorted({1, *degrees}):
        shape = Shape.of(config, config.torch_dtype, stored[0], tp, place, stored[1])
        bundles.append(replace(load_bundle(system, vllm_version, shape, place), model=config.name))
    origin: dict[str, Any] = {
        DISTRIBUTION: package_version(),
        "system": system,
        "vllm": found.version,
        "recipe": RECIPE,
    }
    return write_bundles(bundles, out, origin)


def compare_lines(first: Named, second: Named) -> list[str]:
    """second / first: the range over the samples that both measured."""
    ours, theirs = first.bundle, second.bundle
    lines = [f"{b.card} {b.model} {b.variant} TP {b.tp}" for b in (theirs, ours)]
    lines = [
        f"{lines[0]} / {lines[1]}",
        f"{'':34s}{'samples':>8s}{'least':>8s}{'median':>8s}{'most':>8s}",
    ]
    for name in ("dense", "per_sequence"):
        ones, others = getattr(ours, name), getattr(theirs, name)
        for layer in ones:
            if layer in others:
                lines.append(_ratio_line(layer, _layer_ratios(ones[layer], others[layer])))
    for region, queries in regions(ours, theirs).items():
        ratios = [
            attention_ns(theirs.attention, *q) / attention_ns(ours.attention, *q) for q in queries
        ]
        lines.append(_ratio_line(region, [ratio for ratio in ratios if np.isfinite(ratio)]))
    missing = sorted({*ours.dense} ^ {*theirs.dense})
    return [*lines, *([f"in one of them only: {', '.join(missing)}"] if missing else [])]


def _layer_ratios(ours: LayerTable, theirs: LayerTable) -> list[float]:
    first, last = (f(t.keys[i] for t in (ours, theirs)) for f, i in ((max, 0), (min, -1)))
    counts = ours.keys[(ours.keys >= first) & (ours.keys <= last)]
    return [layer_ns(theirs, n) / layer_ns(ours, n) for n in counts.tolist()]


def _ratio_line(name: str, ratios: Sequence[float]) -> str:
    if not len(ratios):
        return f"{name:34s}{0:8d}"
    least, median, most = min(ratios), float(np.median(ratios)), max(ratios)
    return f"{name:34s}{len(ratios):8d}{least:8.2f}{median:8.2f}{most:8.2f}"


def regions(ours: Bundle, theirs: Bundle) -> dict[str, list[tuple[int, int, int, int]]]:
    """Points (chunk, n_decode, kv_prefill, kv_decode) within both grids, by what a batch is."""
    ends = [
        min(int(getattr(b.attention, axis).max()) for b in (ours, theirs))
        for axis in ("prefill_chunk", "n_decode", "kv_prefill", "kv_decode")
    ]
    chunks = [c for c in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if c <= ends[0]]
    decodes = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= ends[1]]
    before = [h for h in (512, 1024, 4096, 16384) if h <= ends[2]]
    held = [k for k in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384) if k <= ends[3]]
    few, many = [n for n in decodes if n <= 8], [n for n in decodes if n > 8]
    return {
        "decode, up to 8 requests": [(0, n, 0, k) for n in few for k in held],
        "decode, more requests": [(0, n, 0, k) for n in many for k in held],
        "prefill": [(c, 0, 0, 0) for c in chunks],
        "prefill after a history": [(c, 0, h, 0) for c in chunks for h in before],
        "prefill with decodes": [(c, n, 0, k) for c in chunks for n in decodes for k in held],
    }
