"""A sweep in the terminal: best and worst points beside the truth, a small heat map; JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.sweep_data import SweepData, distinct, short_names, truth_metrics
from dashboards.wording import blocks_title, number, title, verdict
from orchestrator.shortened import cut, told_apart
from orchestrator.store import AXIS, TEXTS
from orchestrator.store_truth import truth_label
from profiles.errors import InputError

SHOWN = (
    *("ttft_ms/mean", "ttft_ms/p99", "tpot_ms/mean", "latency_ms/mean"),
    "throughput/output_tokens_per_s",
)
ERRORS = ("err_pct/ttft_ms/mean", "err_pct/tpot_ms/mean")  # where there are several truths
FORMULA = ("=", "+", "-", "@")  # how one begins
CELL = 8
MAX_TEXT = 24
MOST_TRUTHS = 4  # told; where points have truths of their own, errors say it
MAX_LINES = 24  # of a heat map


def as_text(data: SweepData, rows: int, metric: str | None) -> str:
    """What a person reads. Raises InputError if there is no such metric."""
    metric = metric or data.measure
    parts = [clean(data.name), clean(verdict(data)), ""]
    if data.ranked:
        parts += _table(data, rows)
        if metric not in data.metrics:
            known = ", ".join(sorted(data.metrics))
            raise InputError(data.folder, "metric", metric, f"a metric of the sweep: {known}")
        parts += _heat_map(data, metric, _width())
    for row in data.failed[:rows]:
        reason = f"{data.texts['status'][row]}: {data.texts['reason'][row]}"
        parts.append(
            clean(f"failed {data.texts['point_id'][row]} ({data.point_name(row)}): {reason}")
        )
    if len(data.failed) > rows:
        parts.append(f"{len(data.failed) - rows} more failed")
    return "\n".join(parts).rstrip("\n")


def _width() -> int:
    """Of the terminal; what is piped is not cut to one."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 160


def _table(data: SweepData, rows: int) -> list[str]:
    short = short_names(list(data.axes))
    axes = data.leading_axes
    values = {a: told_apart([shown(v) for v in data.axes[a]], MAX_TEXT) for a in axes}
    wanted = (data.measure, *(ERRORS if len(data.truths) > 1 else ()), *SHOWN)
    metrics = [m for m in dict.fromkeys(wanted) if m in data.metrics]
    lines = [["", "rank", *(short[a] for a in axes), blocks_title(data), *map(title, metrics)]]
    few = data.truths if len(data.truths) <= MOST_TRUTHS else {}
    labels = [truth_label(truth) for truth in few.values()]
    if len(set(labels)) < len(labels):
        labels = [
            f"{Path(t.source).parent.name}/{n}" for t, n in zip(few.values(), labels, strict=True)
        ]
    for truth, label in zip(few.values(), labels, strict=True):
        measured = truth_metrics(truth)
        told = [number(measured.get(m)) if m in measured else "" for m in metrics]
        blocks = "" if truth.num_gpu_blocks is None else str(truth.num_gpu_blocks)
        lines.append([f"truth {label}", "", *[""] * len(axes), blocks, *told])
    groups = data.ranked
    worst = groups[max(rows, len(groups) - rows) :]
    for said, some, first in (
        ("best", groups[:rows], 1),
        ("worst", worst, len(groups) - len(worst) + 1),
    ):
        for place, group in enumerate(some):
            row = group[0]
            own = data.metrics_of(row) | {data.measure: float(data.scores[row])}
            more = f" (+{len(group) - 1} equal)" if len(group) > 1 else ""
            has = data.blocks[row]
            lines.append(
                [
                    (said if place == 0 else "") + more,
                    str(first + place),
                    *(values[axis][row] for axis in axes),
                    "-" if has is None else str(has),
                    *(_signed(metric, number(own.get(metric))) for metric in metrics),
                ]
            )
    return [*_aligned(lines, left=2 + len(axes)), ""]


def _signed(metric: str, value: str) -> str:
    return f"+{value}" if metric in ERRORS and value[0].isdigit() else value


def _aligned(lines: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns under their titles, which break at spaces and underscores; the first ones to the left."""
    heads = [_broken(text) for text in lines[0]]
    high = max(map(len, heads))
    above = [[*[""] * (high - len(head)), *head] for head in heads]
    rows = [list(row) for row in zip(*above, strict=True)] + [
        [clean(t, MAX_TEXT) for t in one] for one in lines[1:]
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return [
        "  ".join(
            text.ljust(width) if i < left and i != 1 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _broken(text: str, width: int = 12) -> list[str]:
    lines = [""]
    for word in clean(text).replace("_", "_ ").split(" "):
        joint = "" if not lines[-1] or lines[-1].endswith("_") else " "
        if lines[-1] and len(lines[-1]) + len(joint) + len(word) > width:
            lines.append(word[:MAX_TEXT])
        else:
            lines[-1] += joint + word[:MAX_TEXT]
    return lines


def _heat_map(data: SweepData, metric: str, width: int) -> list[str]:
    """Over the two axes with the most values; a cell is the best of its points by the measure."""
    values = {axis: distinct(data.axes[axis]) for axis in data.leading_axes}
    axes = sorted(values, key=lambda axis: -len(values[axis]))[:2]
    if not axes:
        return []
    across, down = axes[0], axes[1] if len(axes) > 1 else None
    names = told_apart([shown(value) for value in values[down]], 12) if down else [""]
    heads = told_apart([shown(value) for value in values[across]], CELL)
    margin = max(map(len, names)) + 1
    columns = _parts(len(values[across]), max(2, (width - margin) // (CELL + 1)))
    lines = _parts(len(names), MAX_LINES)
    best = np.full((len(lines), len(columns)), np.inf)
    cells = np.full(best.shape, np.nan)
    place_x = {value: i for i, part in enumerate(columns) for value in _of(values[across], part)}
    place_y = (
        {value: i for i, part in enumerate(lines) for value in _of(values[down], part)}
        if down
        else {}
    )
    shown_values = data.scores if metric == data.measure else data.metrics[metric]
    for row, value in enumerate(data.scores):
        at = (place_y[data.axes[down][row]] if down else 0, place_x[data.axes[across][row]])
        if math.isfinite(value) and value < best[at]:
            best[at], cells[at] = value, shown_values[row]
    short = short_names(list(data.axes))
    said = f"{title(metric)}: {clean(short[across])} across" + (
        f", {clean(short[down])} down" if down else ""
    )
    if len(columns) < len(values[across]) or len(lines) < len(names):
        said += "; neighbouring values share a cell"
    head = " " * margin + "".join(heads[part.start].rjust(CELL + 1) for part in columns)
    body = []
    for i, part in enumerate(lines):
        texts = ["-" if math.isnan(v) else _three(v) for v in cells[i]]
        marked = [f"*{t}" if best[i, j] == best.min() else t for j, t in enumerate(texts)]
        body.append(names[part.start].ljust(margin) + "".join(t.rjust(CELL + 1) for t in marked))
    return [said + "; * is the best", head, *body, ""]


def _parts(count: int, most: int) -> list[range]:
    """Neighbours put together, so that there are at most `most`."""
    size = -(-count // most)
    return [range(i, min(i + size, count)) for i in range(0, count, size)]


def _of(values: list[Any], part: range) -> list[Any]:
    return [values[i] for i in part]


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text and abs(value) < 1e6 else text


def shown(value: Any) -> str:
    """A value of an axis."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return clean(f"{value:.6g}" if isinstance(value, float) else str(value))


def clean(text: str, limit: int | None = None) -> str:
    """Nothing in it moves the cursor or changes the terminal."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe if limit is None else cut(safe, limit)


def as_json(data: SweepData) -> str:
    """Everything about the sweep, best points first."""
    truths = [
        {"label": truth_label(truth), "kind": truth.kind, "metrics": truth_metrics(truth)}
        for truth in data.truths.values()
    ]
    found = {
        "name": data.name,
        "verdict": verdict(data),
        "measure": data.measure,
        "counts": data.counts(),
        "truths": truths,
        "points": [_point(data, row, rank) for row, rank in ranked_rows(data)],
    }
    return json.dumps(found, indent=1, default=str)


def ranked_rows(data: SweepData) -> list[tuple[int, int | None]]:
    """Every row with its rank, best first; a row that equals another has that one's."""
    ranks = {row: place for place, group in enumerate(data.ranked, 1) for row in group}
    for row, equals in enumerate(data.texts["equals"]):
        leader = data.row_of.get(equals) if equals is not None else None
        if leader in ranks:
            ranks[row] = ranks[leader]
    return sorted(((row, ranks.get(row)) for row in range(len(data))), key=_rank_order)


def _rank_order(one: tuple[int, int | None]) -> tuple[float, int]:
    return (math.inf if one[1] is None else one[1]), one[0]


def _point(data: SweepData, row: int, rank: int | None) -> dict[str, Any]:
    return {
        "rank": rank,
        "index": row,
        **{
            name: data.texts[name][row]
            for name in ("point_id", "run_id", "name", "status", "equals", "reason")
        },
        "num_gpu_blocks": data.blocks[row],
        "axes": {axis: values[row] for axis, values in data.axes.items()},
        "notes": (data.texts["notes"][row] or "").splitlines(),
        "metrics": data.metrics_of(row),
    }


def as_csv(data: SweepData) -> str:
    """A line a point, best first: rank, the columns of results.parquet, and num_gpu_blocks.

    No text is a formula for a spreadsheet: one that would be gets an apostrophe before it.
    """
    metrics = sorted(data.metrics)
    head = ["rank", "index", *TEXTS, "num_gpu_blocks", *(f"{AXIS}{a}" for a in data.axes), *metrics]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, head))
    for row, rank in ranked_rows(data):
        own = data.metrics_of(row)
        cells = [
            *(rank, row, *(data.texts[name][row] for name in TEXTS), data.blocks[row]),
            *(values[row] for values in data.axes.values()),
            *(own.get(name) for name in metrics),
        ]
        writer.writerow(map(_cell, cells))
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = clean(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text
