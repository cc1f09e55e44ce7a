"""A trace as a page, with every step to look at, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.embed import packed, write_page
from dashboards.report import SHARED
from dashboards.trace import (
    DECODE,
    KINDS,
    PREEMPTED,
    PREFILL,
    QUEUED,
    REASONS,
    Ints,
    Spans,
    Trace,
    Window,
    in_window,
    longest_waits,
    steps_in,
    told_wait,
)

MAX_STEPS = 20_000  # drawn and looked at one by one
MAX_SPANS = 20_000
MAX_ENTRIES = 400_000  # of batches, listed step by step
COLUMNS = (
    *("formed_ns", "start_ns", "end_ns", "prefill_tokens", "num_decodes", "num_tokens"),
    *("num_admitted", "num_preempted", "num_finished", "running_after_schedule"),
    *("waiting_after_schedule", "free_after_schedule"),
)
COLOURS = {QUEUED: "#999999", PREFILL: "#0072B2", DECODE: "#009E73", PREEMPTED: "#D55E00"}
LONGEST = 20


def page_data(trace: Trace, window: Window, source: str | Path) -> dict[str, Any]:
    spans, steps = in_window(trace, window, source), steps_in(trace, window)
    summary = trace.result.summary
    waits = np.isin(spans.kind, (QUEUED, PREEMPTED)) & (spans.end_ns > spans.begin_ns)
    shown_spans = spans.where(_longest(spans.end_ns - spans.begin_ns, MAX_SPANS))
    shown_steps = steps[:MAX_STEPS]
    left_out = []
    if len(shown_spans) < len(spans):
        left_out.append(f"{len(spans) - len(shown_spans)} shorter spans are not drawn")
    if len(shown_steps) < len(steps):
        left_out.append(f"the first {len(shown_steps)} of {len(steps)} steps are shown")
    entries = np.isin(trace.entry_step, shown_steps)
    if entries.sum() > MAX_ENTRIES:
        left_out.append("batches are not listed request by request")
        entries[:] = False
    if left_out:
        left_out.append("--from-s and --until-s choose a part")
    return {
        "kind": "trace",
        "name": f"{summary['model']} on {summary['card']['name']}",
        "titles": {},
        "verdict": " ".join(f"{line}." for line in _told(trace, spans)),
        "left_out": "; ".join(left_out),
        "ids": trace.request_ids,
        "kinds": KINDS,
        "reasons": REASONS,
        "usable_blocks": summary["kv"]["usable_blocks"],
        "max_num_seqs": trace.point.engine.max_num_seqs,
        "step": packed(shown_steps, "i4"),
        "steps": {name: packed(trace.steps[name][shown_steps], _kind(name)) for name in COLUMNS},
        "reason": packed(trace.reason[shown_steps], "i4"),
        "spans": {
            name: packed(getattr(shown_spans, name), _kind(name))
            for name in Spans.__dataclass_fields__
        },
        "entries": {
            "step": packed(trace.entry_step[entries], "i4"),
            "request": packed(trace.entry_request[entries], "i4"),
            "tokens": packed(trace.entry_tokens[entries], "i4"),
            "computed": packed(trace.entry_computed[entries], "i4"),
            "blocks": packed(trace.entry_blocks[entries], "i4"),
        },
        "preempted": _events(trace.preempted_step, trace.preempted_request, shown_steps),
        "finished": _events(trace.finished_step, trace.finished_request, shown_steps),
        "waits": [
            [trace.request_ids[spans.request[i]], told_wait(trace, spans, int(i))]
            for i in _longest_waits(spans, waits)
        ],
    }


def _kind(name: str) -> str:
    return "f8" if name.endswith("_ns") else "i4"


def _told(trace: Trace, spans: Spans) -> list[str]:
    summary = trace.result.summary
    first = (
        f"{summary['steps']} steps, {summary['preemptions']} preemptions, "
        f"{summary['kv']['usable_blocks']} KV blocks"
    )
    return [first, *(f"Longest wait: {line}" for line in longest_waits(trace, spans, 1))]


def _longest(lengths: Ints, count: int) -> NDArray[np.bool_]:
    """The longest of all, in the order they have."""
    chosen = np.zeros(len(lengths), bool)
    chosen[np.argsort(-lengths, kind="stable")[:count]] = True
    return chosen


def _longest_waits(spans: Spans, waits: NDArray[np.bool_]) -> list[int]:
    lengths = np.where(waits, spans.end_ns - spans.begin_ns, -1)
    order = np.argsort(-lengths, kind="stable")[:LONGEST]
    return [int(i) for i in order if lengths[i] > 0]


def _events(step: Ints, request: Ints, shown: Ints) -> dict[str, Any]:
    chosen = np.isin(step, shown)
    return {"step": packed(step[chosen], "i4"), "request": packed(request[chosen], "i4")}


def write_trace_page(data: dict[str, Any], path: Path) -> Path:
    scripts = (*SHARED, "trace.js")
    return write_page(path, "trace.html", scripts, f"{data['name']} - servesweep", data)


def write_picture(trace: Trace, window: Window, path: Path) -> Path:
    """Running and waiting, blocks, batches and requests over time, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    from orchestrator.plots import save

    chosen = steps_in(trace, window)
    steps = {name: trace.steps[name][chosen] for name in COLUMNS}
    seconds = steps["start_ns"] / 1e9
    figure = Figure(figsize=(10, 9.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    queue, blocks, batch, requests = figure.subplots(
        4, 1, sharex=True, height_ratios=[1, 1, 1, 2]
    ).ravel()
    line: dict[str, Any] = {"linewidth": 1.2, "drawstyle": "steps-post"}
    queue.plot(seconds, steps["running_after_schedule"], color="#0072B2", label="running", **line)
    queue.plot(seconds, steps["waiting_after_schedule"], color="#D55E00", label="waiting", **line)
    queue.set_ylabel("requests")
    usable = trace.result.summary["kv"]["usable_blocks"]
    blocks.plot(
        seconds, usable - steps["free_after_schedule"], color="#0072B2", label="in use", **line
    )
    blocks.axhline(usable, color="black", linewidth=0.8, linestyle=":")
    preempted = np.isin(chosen, trace.preempted_step)
    blocks.plot(
        seconds[preempted],
        np.full(preempted.sum(), usable),
        "x",
        color="#D55E00",
        label="preemption",
    )
    blocks.set_ylabel("KV blocks")
    batch.plot(seconds, steps["prefill_tokens"], color="#0072B2", label="prefill", **line)
    batch.plot(seconds, steps["num_decodes"], color="#009E73", label="decode", **line)
    batch.set_ylabel("tokens of a batch")
    batch.set_yscale("symlog", linthresh=10)
    spans = trace.spans if not window.requests else in_window(trace, window, "trace")
    for kind, colour in COLOURS.items():
        of = spans.where(spans.kind == kind)
        lines = [
            [(begin / 1e9, r), (max(end, begin + 1) / 1e9, r)]
            for r, begin, end in zip(of.request, of.begin_ns, of.end_ns, strict=True)
        ]
        requests.add_collection(
            LineCollection(lines, colors=colour, linewidths=1.6, label=KINDS[kind], capstyle="butt")
        )
    requests.set(ylabel="request", xlabel="time (s)", ylim=(len(trace.request_ids), -1))
    end = (window.until_ns if window.until_ns is not None else trace.end_ns) / 1e9
    requests.set_xlim(window.from_s, max(end, window.from_s + 1e-9))
    for axis in (queue, blocks, batch, requests):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
        where = "lower center" if axis is blocks else "upper right"
        axis.legend(loc=where, fontsize=8, ncols=4, framealpha=0.85)
    return save(figure, path)
