"""Replays a recorded scenario through the engine and compares every step with the recording.

The format is described in tests/oracle/README.md.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.build import EngineSettings, build_engine
from simulator.core import state
from simulator.core.latency import Latency
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.progress import run_to_end
from simulator.step_tables import linear_law
from simulator.storage import TierSettings
from simulator.workloads import Workload
from simulator.workloads.llmservingsim import read_jsonl

MODES = {
    "sync": ("config.json", "steps.jsonl.gz"),
    "async": ("async_config.json", "async_steps.jsonl.gz"),
}


TRANSFERS = ("loads", "stores", "loaded", "stored")


@dataclass(frozen=True)
class Scenario:
    """One recorded scenario in one mode."""

    folder: Path
    mode: str

    @property
    def config(self) -> dict[str, Any]:
        data = json.loads((self.folder / MODES[self.mode][0]).read_text())
        assert isinstance(data, dict)
        return data

    @property
    def recorded(self) -> Iterator[dict[str, Any]]:
        with gzip.open(self.folder / MODES[self.mode][1], "rt") as lines:
            yield from map(json.loads, lines)

    @property
    def workload(self) -> Workload:
        return read_jsonl(self.folder / "workload.jsonl.gz")


def scenarios(folder: Path) -> list[Scenario]:
    """The modes recorded in `folder`."""
    return [
        Scenario(folder, mode)
        for mode, names in MODES.items()
        if all((folder / name).is_file() for name in names)
    ]


def settings_of(config: dict[str, Any]) -> EngineSettings:
    copied = (
        "num_gpu_blocks",
        "max_model_len",
        "block_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "scheduler_reserve_full_isl",
        "policy",
    )
    return EngineSettings(
        **{name: config[name] for name in copied},
        async_scheduling=config.get("async_scheduling", False),
        # The synchronous recordings' clock counts an empty batch as any other.
        empty_step_ns=0 if config.get("async_scheduling") else config["step_cost_ns"]["base"],
        log_events=True,
        **offloading_of(config),
    )


def offloading_of(config: dict[str, Any]) -> dict[str, Any]:
    """The tier of a scenario recorded with vLLM's OffloadingConnector."""
    law = config.get("offloading")
    if law is None:
        return {}
    tokens = config["block_size"] * law["block_size_factor"]
    tier = TierSettings(
        capacity_bytes=law["cpu_blocks"] * tokens * law["per_token_ns"],
        tokens_per_chunk=tokens,
        bytes_per_token=law["per_token_ns"],
        bytes_per_ns=1.0,
        latency_ns=law["latency_ns"],
    )
    return {"kv_connector": "OffloadingConnector", "tiers": (tier,)}


def latency_of(config: dict[str, Any]) -> Latency:
    cost = config["step_cost_ns"]
    return linear_law(
        base_ns=cost["base"],
        per_token_ns=cost["per_token"],
        per_kv_token_ns=cost["per_kv_token"],
        per_request_ns=cost["per_request"],
    )


def replay(scenario: Scenario) -> tuple[Engine, Workload]:
    """The engine after the scenario's last step."""
    config, workload = scenario.config, scenario.workload
    settings = settings_of(config)
    hashes = block_hashes(workload, settings.block_size)
    engine, _ = build_engine(workload, hashes, settings, latency_of(config))
    return run_to_end(engine, workload), workload


def simulated(engine: Engine, workload: Workload, mode: str) -> Iterator[dict[str, Any]]:
    """The engine's steps as lines of a recording."""
    counters = engine.queues.counters[0]
    steps = engine.log.steps[: counters.num_steps]
    by_step = events_by_step(engine, workload)
    if engine.settings[0].kv_connector == state.OFFLOADING:
        by_step = [
            {**lists, "loading": int(step.loading_after_schedule)}
            for lists, step in zip(by_step, steps, strict=True)
        ]
    else:
        for lists in by_step:
            for name in TRANSFERS:
                del lists[name]
    if mode == "sync":
        for number, step in enumerate(steps):
            yield sync_line(number, step, by_step[number])
        return
    applied = 0
    for number, step in enumerate(steps):
        while applied < number and steps[applied].formed_before_update <= number:
            yield update_line(applied, steps[applied], by_step[applied])
            applied += 1
        yield schedule_line(number, step, by_step[number])
    for number in range(applied, len(steps)):
        yield update_line(number, steps[number], by_step[number])


def events_by_step(engine: Engine, workload: Workload) -> list[dict[str, Any]]:
    """Who was scheduled, preempted and finished in each step, by request id."""
    grouped: list[dict[str, Any]] = [
        {"sched": {}, "new": [], "resumed": [], "new_blocks": {}, "preempted": [],
         "finished": [], "samples": [], "prefix_hits": {},
         "loads": {}, "stores": {}, "loaded": [], "stored": []}
        for _ in range(engine.queues.counters[0].num_steps)
    ]  # fmt: skip
    for event in engine.log.events[: engine.log.sizes[0].num_events].tolist():
        number, kind, r, num_scheduled, num_computed, num_new_blocks, samples = event
        request_id, lists = workload.request_ids[r], grouped[number]
        if kind == state.EVENT_PREEMPTED:
            lists["preempted"].append(request_id)
        elif kind == state.EVENT_FINISHED:
            lists["finished"].append(request_id)
        elif kind in (state.EVENT_LOAD, state.EVENT_STORE):
            lists["loads" if kind == state.EVENT_LOAD else "stores"][request_id] = num_scheduled
        elif kind in (state.EVENT_LOADED, state.EVENT_STORED):
            lists["loaded" if kind == state.EVENT_LOADED else "stored"].append(request_id)
        else:
            lists["sched"][request_id] = [num_scheduled, num_computed]
            lists["new_blocks"][request_id] = num_new_blocks
            if samples:
                lists["samples"].append(request_id)
            if kind == state.SCHEDULED_RUNNING:
                continue
            lists["new" if kind == state.SCHEDULED_NEW else "resumed"].append(request_id)
            if num_computed:
                lists["prefix_hits"][request_id] = num_computed
    for lists in grouped:
        lists["preempted"].sort()
        lists["resumed"].sort()
        lists["loaded"].sort()
    return grouped


def sync_line(number: int, step: Any, lists: dict[str, Any]) -> dict[str, Any]:
    shown = {k: v for k, v in lists.items() if k != "samples"}
    return {
        "step": number,
        "t_ns": int(step.formed_ns),
        **shown,
        "free_after_schedule": int(step.free_after_schedule),
        "free_after_update": int(step.free_after_update),
        "running": int(step.running_after_update),
        "waiting": int(step.waiting_after_update),
        "pc": [
            int(step.prefix_queries),
            int(step.prefix_hits),
            int(step.preempted_queries),
            int(step.preempted_hits),
        ],
    }


def schedule_line(number: int, step: Any, lists: dict[str, Any]) -> dict[str, Any]:
    shown: tuple[str, ...] = ("sched", "new", "resumed", "new_blocks", "preempted", "samples")
    shown += tuple(name for name in ("loads", "stores", "loading") if name in lists)
    return {
        "kind": "schedule",
        "step": number,
        "t_ns": int(step.formed_ns),
        "start_ns": int(step.start_ns),
        "end_ns": int(step.end_ns),
        **{name: lists[name] for name in shown},
        "free": int(step.free_after_schedule),
        "running": int(step.running_after_schedule),
        "waiting": int(step.waiting_after_schedule),
    }


def update_line(number: int, step: Any, lists: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "update",
        "step": number,
        "t_ns": int(step.update_ns),
        "finished": lists["finished"],
        **{name: lists[name] for name in ("loaded", "stored") if name in lists},
        "free": int(step.free_after_update),
        "running": int(step.running_after_update),
        "waiting": int(step.waiting_after_update),
    }


# Recorded but derived from other fields, or only there to help a reader.
NOT_COMPARED = {"kv_usage"}


@dataclass(frozen=True)
class Outcome:
    """How many lines were compared and the first that differs, if any."""

    lines: int
    difference: str | None


def compare(scenario: Scenario) -> Outcome:
    """Replay a scenario and compare every line of its recording."""
    engine, workload = replay(scenario)
    lines = 0
    ours_then_theirs = itertools.zip_longest(
        simulated(engine, workload, scenario.mode), scenario.recorded
    )
    for ours, theirs in ours_then_theirs:
        difference = line_difference(ours, theirs)
        if difference:
            return Outcome(lines, f"line {lines}: {difference}")
        lines += 1
    totals = scenario.config
    found = {
        "steps": int(engine.queues.counters[0].num_steps),
        "preemptions": int(engine.queues.counters[0].num_preemptions),
        "end_ns": int(engine.queues.counters[0].now_ns),
        **connector_totals(engine),
    }
    expected = {name: totals[name] for name in found if name in totals}
    wrong = {n: (found[n], expected[n]) for n in expected if found[n] != expected[n]}
    return Outcome(lines, f"totals (ours, recorded): {wrong}" if wrong else None)


def connector_totals(engine: Engine) -> dict[str, Any]:
    """What vLLM counts of a connector, and the chunks in the tier at the end."""
    connection = engine.storage.connection[0]
    names = ("queries", "hits", "preempted_queries", "preempted_hits")
    return {
        "connector_pc": [int(connection[name]) for name in names],
        "chunks": int(engine.storage.near.store[0].num_chunks),
    }


def line_difference(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> str | None:
    """What differs between a simulated and a recorded line; order of requests included."""
    if ours is None or theirs is None:
        longer = "recording" if ours is None else "simulation"
        return f"the {longer} goes on: {ours or theirs}"
    for name, recorded in theirs.items():
        if name in NOT_COMPARED:
            continue
        if name not in ours:
            return f"field {name} is recorded but not simulated"
        mine = ours[name]
        same = mine == recorded
        if same and name == "sched":
            same = list(mine) == list(recorded)
        if not same:
            return f"step {theirs.get('step')}, {name}:\n  simulated {mine}\n  recorded  {recorded}"
    return None


def scenarios_below(folder: Path) -> list[Scenario]:
    own = scenarios(folder)
    if own:
        return own
    below = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    return [s for child in below for s in scenarios(child)]
