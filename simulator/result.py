"""What a run produced, as tables and a summary; written as Parquet and JSON.

Equal inputs give byte-identical files: nothing here depends on time, host or order of execution.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from profiles.whole import write_whole
from simulator.core import state
from simulator.core.state import Engine
from simulator.progress import SimulationError
from simulator.workloads import Workload

SECOND = 1_000_000_000
MAX_SECONDS = 50_000_000  # more than a year and a half


@dataclass(frozen=True)
class Result:
    """One simulated point."""

    summary: dict[str, Any]
    requests: pa.Table
    timeseries: pa.Table
    steps: pa.Table | None = None

    def write(self, folder: str | Path) -> list[Path]:
        """Write summary.json, requests.parquet, timeseries.parquet and, if kept, steps.parquet.

        Each file appears whole or not at all; the summary is written last.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tables = {"requests": self.requests, "timeseries": self.timeseries, "steps": self.steps}
        written = []
        for name, table in tables.items():
            path = folder / f"{name}.parquet"
            if table is None:
                path.unlink(missing_ok=True)
                continue
            write_whole(path, partial(pq.write_table, table, compression="zstd"))
            written.append(path)
        text = json.dumps(self.summary, indent=2) + "\n"
        path = folder / "summary.json"
        write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))
        return [*written, path]


def requests_table(
    engine: Engine, workload: Workload, refused: dict[int, str], tiers: Sequence[str] = ()
) -> pa.Table:
    """One row a request, in the workload's order. Times in ns, null for what never happened.

    `tiers` names the storage tiers in the order they are looked up.
    """
    r, info = engine.kv.requests, engine.kv.infos
    requested = workload.num_output_tokens
    output = r.num_tokens - info.num_prompt_tokens
    finished = r.status == state.FINISHED
    reasons = [refused.get(i) for i in range(len(r))]
    of_tier = (info.num_external_tokens - info.num_far_tokens, info.num_far_tokens)
    hits, none = dict(zip(tiers, of_tier, strict=False)), np.zeros(len(r), np.int32)
    never_arrived = (info.queued_ns == state.NEVER) & (workload.session_parent >= 0)
    return pa.table(
        {
            "request_id": pa.array(workload.request_ids, pa.string()),
            "arrival_ns": _nullable(info.arrival_ns, never_arrived),
            "queued_ns": _nullable(info.queued_ns, info.queued_ns == state.NEVER),
            "first_scheduled_ns": _nullable(
                info.first_scheduled_ns, info.first_scheduled_ns == state.NEVER
            ),
            "first_token_ns": _nullable(info.first_token_ns, info.first_token_ns == state.NEVER),
            "last_token_ns": _nullable(r.last_token_ns, r.last_token_ns == state.NEVER),
            "prompt_tokens": np.ascontiguousarray(info.num_prompt_tokens),
            "requested_output_tokens": requested,
            "output_tokens": output,
            "hit_tokens_gpu": np.maximum(r.num_cached_tokens, 0) - info.num_external_tokens,
            **{f"hit_tokens_{tier}": hits.get(tier, none) for tier in ("cpu", "cxl")},
            "preemptions": np.ascontiguousarray(r.num_preemptions),
            "finished": finished,
            "capped": finished & (output < requested),
            "refused": pa.array(reasons, pa.string()),
        }
    )


def _nullable(values: NDArray[np.int64], missing: NDArray[np.bool_]) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), pa.int64(), mask=np.ascontiguousarray(missing))


def timeseries_table(engine: Engine) -> pa.Table:
    """One row a simulated second, as vLLM's statistics logger reports it.

    Row t covers (t-1, t]: prompt tokens of the requests whose first token fell in it and generated
    tokens, per second; requests running and waiting and the share of KV blocks in use as the last
    step that ended by t left them.
    """
    counters = engine.queues.counters[0]
    steps = engine.log.steps[: counters.num_updates]
    update_ns = np.ascontiguousarray(steps.update_ns)
    end_ns = int(update_ns[-1]) if len(update_ns) else 0
    seconds = -(-end_ns // SECOND)
    if seconds > MAX_SECONDS:
        raise SimulationError(
            f"the simulation lasts {seconds} simulated seconds, more than the {MAX_SECONDS} that a time "
            "series has rows for; are the times of the profile and the arrivals in ns?"
        )
    ticks = np.arange(1, seconds + 1, dtype=np.int64)
    first = engine.kv.infos.first_token_ns
    got_first = first != state.NEVER
    prompts = engine.kv.infos.num_prompt_tokens[got_first]

    last_step = np.searchsorted(update_ns, ticks * SECOND, side="right") - 1
    seen = last_step >= 0
    at = np.maximum(last_step, 0)
    usable = int(engine.kv.pool[0].num_usable_blocks)

    def as_left(values: NDArray[Any], before: float) -> NDArray[Any]:
        values = values[at] if len(values) else np.zeros(len(ticks))
        return np.where(seen, values, before)

    return pa.table(
        {
            "t_s": ticks,
            "prompt_throughput": _per_second(first[got_first], prompts, seconds),
            "generation_throughput": _per_second(update_ns, steps.num_sampled, seconds),
            "running": as_left(steps.running_after_update, 0).astype(np.int64),
            "waiting": as_left(steps.waiting_after_update, 0).astype(np.int64),
            "kv_cache_usage": as_left(1.0 - steps.free_after_update / usable, 0.0),
        }
    )


def _per_second(
    at_ns: NDArray[np.int64], amounts: NDArray[Any], seconds: int
) -> NDArray[np.float64]:
    second = np.maximum(-(-at_ns // SECOND) - 1, 0)
    return np.bincount(second, weights=amounts, minlength=seconds).astype(np.float64)


def steps_table(engine: Engine, workload: Workload) -> pa.Table:
    """One row a step; the requests of its batch, in order, as lists. Needs logged events."""
    counters = engine.queues.counters[0]
    steps = engine.log.steps[: counters.num_steps]
    events = engine.log.events[: engine.log.sizes[0].num_events]
    ids = pa.array(workload.request_ids, pa.string())
    scheduled = events.kind <= state.SCHEDULED_RUNNING
    plain = [name for name in state.STEP.names or () if not name.startswith("_")]
    columns: dict[str, Any] = {"step": np.arange(len(steps), dtype=np.int64)}
    columns |= {name: np.ascontiguousarray(steps[name]) for name in plain}

    def listed(chosen: NDArray[np.bool_], field: str) -> pa.Array:
        some = events[chosen]
        order = np.argsort(some.step, kind="stable")
        some = some[order]
        offsets = np.searchsorted(some.step, np.arange(len(steps) + 1)).astype(np.int32)
        values = np.ascontiguousarray(some[field])
        items = ids.take(pa.array(values)) if field == "request" else pa.array(values)
        return pa.ListArray.from_arrays(pa.array(offsets), items)

    columns["requests"] = listed(scheduled, "request")
    columns["scheduled_tokens"] = listed(scheduled, "num_scheduled_tokens")
    columns["computed_tokens"] = listed(scheduled, "num_computed_tokens")
    columns["new_blocks"] = listed(scheduled, "num_new_blocks")
    columns["preempted"] = listed(events.kind == state.EVENT_PREEMPTED, "request")
    columns["finished"] = listed(events.kind == state.EVENT_FINISHED, "request")
    return pa.table(columns)
