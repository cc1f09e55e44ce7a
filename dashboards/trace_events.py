"""A trace as Chrome's JSON, which Perfetto reads: steps, requests as tracks, and counters."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dashboards.trace import (
    DECODE,
    KINDS,
    PREFILL,
    REASONS,
    Spans,
    Trace,
    Window,
    batch_names,
    in_window,
    steps_in,
)
from profiles.errors import InputError
from profiles.whole import write_whole

ENGINE, REQUESTS = 1, 2
COUNTERS = {"running": "running", "waiting": "waiting", "free KV blocks": "free"}

Event = dict[str, Any]


def events(trace: Trace, window: Window, source: str | Path) -> Event:
    """The whole file. Times in microseconds from the start of the workload.

    Raises InputError if it is more than the window allows.
    """
    spans, steps = in_window(trace, window, source), steps_in(trace, window)
    count = len(spans) + 2 * len(np.unique(spans.request)) + 8 * len(steps)
    if count > window.max_events:
        expected = (
            f"at most {window.max_events}: narrow with --from-s, --until-s or --request, or raise "
            "--max-events"
        )
        raise InputError(source, "--max-events", f"{count} events", expected)
    found = [*_names(trace, spans), *_steps(trace, steps), *_counters(trace, steps)]
    found += _requests(trace, spans)
    return {"displayTimeUnit": "ms", "traceEvents": found}


def write_events(found: Event, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, partial(_write, orjson.dumps(found)))
    return path


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _names(trace: Trace, spans: Spans) -> list[Event]:
    found: list[Event] = [
        _meta("process_name", ENGINE, 0, name="engine"),
        _meta("process_sort_index", ENGINE, 0, sort_index=0),
        *(
            _meta("thread_name", ENGINE, 1 + lane, name=f"batches on the device{of}")
            for lane, of in enumerate(_lanes(trace))
        ),
        _meta("process_name", REQUESTS, 0, name="requests"),
        _meta("process_sort_index", REQUESTS, 0, sort_index=1),
    ]
    for r in np.unique(spans.request).tolist():
        found.append(_meta("thread_name", REQUESTS, r + 1, name=f"request {trace.request_ids[r]}"))
        found.append(_meta("thread_sort_index", REQUESTS, r + 1, sort_index=r))
    return found


def _lanes(trace: Trace) -> list[str]:
    """With pipeline parallelism as many batches run at once; each has a track for itself."""
    stages = trace.point.engine.pipeline_parallel_size
    return [f", {lane + 1} of {stages}" for lane in range(stages)] if stages > 1 else [""]


def _meta(name: str, process: int, track: int, /, **values: Any) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": track, "args": values}


def _slice(name: str, process: int, track: int, begin: int, end: int, values: Any) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": track,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": values,
    }


SHOWN = (
    *("num_requests", "num_tokens", "prefill_tokens", "num_decodes", "num_admitted"),
    *("num_preempted", "num_finished", "running_after_schedule", "waiting_after_schedule"),
    "free_after_schedule",
)


def _steps(trace: Trace, chosen: Any) -> list[Event]:
    columns = {name: trace.steps[name][chosen].tolist() for name in SHOWN}
    times = zip(
        chosen.tolist(),
        trace.steps["start_ns"][chosen].tolist(),
        trace.steps["end_ns"][chosen].tolist(),
        batch_names(trace, chosen),
        trace.reason[chosen].tolist(),
        strict=True,
    )
    found, lanes = [], len(_lanes(trace))
    for i, (step, begin, end, name, reason) in enumerate(times):
        values = {"step": step} | {column: of[i] for column, of in columns.items()}
        if reason >= 0:
            values["held up by"] = REASONS[reason]
        found.append(_slice(name, ENGINE, 1 + step % lanes, begin, end, values))
    return found


def _counters(trace: Trace, chosen: Any) -> list[Event]:
    """As scheduling and the end of a batch leave them; and what batches are made of."""
    found: list[Event] = []
    for name, column in COUNTERS.items():
        at = np.concatenate([trace.steps["formed_ns"][chosen], trace.steps["update_ns"][chosen]])
        values = np.concatenate(
            [trace.steps[f"{column}_after_{when}"][chosen] for when in ("schedule", "update")]
        )
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
        keep = np.ones(len(values), bool)
        keep[1:] = values[1:] != values[:-1]
        found += [
            _counter(name, ns, {name: value})
            for ns, value in zip(at[keep].tolist(), values[keep].tolist(), strict=True)
        ]
    found += [
        _counter("tokens of the batch", ns, {"prefill": prefill, "decode": decodes})
        for ns, prefill, decodes in zip(
            *(
                trace.steps[n][chosen].tolist()
                for n in ("start_ns", "prefill_tokens", "num_decodes")
            ),
            strict=True,
        )
    ]
    return found


def _counter(name: str, ns: int, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": ENGINE, "tid": 0, "ts": ns / 1e3, "args": values}


def _requests(trace: Trace, spans: Spans) -> list[Event]:
    found = []
    columns = (getattr(spans, name).tolist() for name in Spans.__dataclass_fields__)
    for r, kind, begin, end, first, last, tokens in zip(*columns, strict=True):
        if kind in (PREFILL, DECODE):
            values: dict[str, Any] = {"tokens": tokens, "first step": first, "last step": last}
            name = f"prefill {tokens}" if kind == PREFILL else "decode"
        else:
            waited = trace.waited_for(begin, end)
            values = {f"ms for {reason}": ms for reason, ms in waited.items()}
            name = KINDS[kind]
        found.append(_slice(name, REQUESTS, r + 1, begin, end, values))
    return found
