"""What holds for every configuration and workload; see draw.py for what is tried."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, note, settings
from hypothesis import strategies as st

from simulator.build import grow_log
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.jit import JIT
from simulator.core.state import Engine
from simulator.metrics import latency_metrics
from simulator.progress import SimulationError, run_to_end
from simulator.result import requests_table, steps_table, timeseries_table
from tests.simulator.draw import Simulation, simulations

EXAMPLES = 4 * settings.default.max_examples if JIT else 20
Facts = dict[str, Any]


def facts_of(simulation: Simulation, engine: Engine, refused: dict[int, str]) -> Facts:
    """All that a run leaves, whether it has ended or not."""
    counters, log = engine.queues.counters[0], engine.log
    logged = log.intervals[: log.sizes[0].num_intervals]
    wait_ns, count = np.ascontiguousarray(logged.ns), np.ascontiguousarray(logged["count"])
    intervals: Counter[int] = Counter()
    for ns, times in zip(wait_ns.tolist(), count.tolist(), strict=True):
        intervals[ns] += times
    storage = ("cpu", "cxl")[: len(simulation.settings.tiers)]
    shown = ("now_ns", "num_steps", "num_updates", "num_preemptions", "num_generated_tokens",
             "admissions", "hit_tokens_all_admissions")  # fmt: skip
    requests = requests_table(engine, simulation.workload, refused, storage)
    return {
        "requests": requests.to_pylist(),
        "latency": latency_metrics(requests, wait_ns, count),
        "timeseries": timeseries_table(engine).to_pylist(),
        "steps": engine.log.steps[: counters.num_steps].tolist(),
        "intervals": intervals,
        "pool": engine.kv.pool[0].tolist(),
        "tier": [record.tolist() for record in (engine.storage.use, engine.storage.connection)],
        "outside": engine.outside.tolist(),
        "counters": {name: int(counters[name]) for name in shown},
    }


def run(simulation: Simulation, *, check: bool = False, **changes: Any) -> tuple[Facts, Engine]:
    """The run's facts; where it livelocks, and may, what it left and that it did."""
    engine, refused = simulation.engine(**changes)
    livelock = ""
    try:
        engine = run_to_end(engine, simulation.workload, check=check)
    except SimulationError as error:
        note(str(error))
        livelock = str(error)
        assert simulation.may_livelock
        assert "steps in a row produced no token" in livelock
        assert tied_unfinished(engine)
    if livelock:
        # The log may have grown in between: only who ended is known.
        return {"livelock": livelock, "status": engine.kv.requests.status.tolist()}, engine
    return facts_of(simulation, engine, refused), engine


def tied_unfinished(engine: Engine) -> bool:
    """Whether two of those in the engine have the same priority and arrival."""
    within = (state.WAITING, state.RUNNING, state.PREEMPTED, state.WAITING_FOR_REMOTE_KVS)
    inside = np.isin(engine.kv.requests.status, within)
    infos = engine.kv.infos[inside]
    keys = Counter(zip(infos.priority.tolist(), infos.arrival_ns.tolist(), strict=True))
    return max(keys.values(), default=0) > 1


@settings(max_examples=EXAMPLES // 2)  # checking takes longer than running
@given(simulation=simulations())
def test_a_run(simulation: Simulation) -> None:
    """Invariants after every step, then everything that can be said of the end."""
    facts, engine = run(simulation, check=True, log_events=True)
    if "livelock" in facts:
        return
    check_requests(simulation, facts)
    check_steps(simulation, facts, engine)
    check_events(simulation, engine)
    check_totals(simulation, facts, engine)


def check_requests(simulation: Simulation, facts: Facts) -> None:
    workload, config = simulation.workload, simulation.settings
    for r, row in enumerate(facts["requests"]):
        prompt, output = int(workload.num_prompt_tokens[r]), int(workload.num_output_tokens[r])
        parent = int(workload.session_parent[r])
        length = min(prompt + output, config.max_model_len)
        slots = config.num_usable_blocks * config.block_size
        hopeless = prompt >= config.max_model_len or length - 1 > slots
        orphan = parent >= 0 and facts["requests"][parent]["refused"] is not None
        assert (row["refused"] is not None) == (hopeless or orphan)
        assert row["finished"] == (row["refused"] is None)
        if row["refused"]:
            assert row["output_tokens"] == row["preemptions"] == 0
            assert row["queued_ns"] is row["first_token_ns"] is row["last_token_ns"] is None
            continue
        assert row["output_tokens"] == length - prompt
        assert row["capped"] == (length < prompt + output)
        assert row["arrival_ns"] <= row["queued_ns"] <= row["first_scheduled_ns"]
        assert row["first_scheduled_ns"] < row["first_token_ns"] <= row["last_token_ns"]
        assert (row["first_token_ns"] < row["last_token_ns"]) == (row["output_tokens"] > 1)
        hits = row["hit_tokens_gpu"] + row["hit_tokens_cpu"] + row["hit_tokens_cxl"]
        assert 0 <= hits < prompt
        assert hits == 0 or config.enable_prefix_caching
        if parent >= 0:
            ended = facts["requests"][parent]["last_token_ns"]
            assert row["arrival_ns"] == ended + int(workload.tool_ns[parent])
        else:
            assert row["arrival_ns"] == int(workload.arrival_ns[r])


def check_steps(simulation: Simulation, facts: Facts, engine: Engine) -> None:
    config = simulation.settings
    steps = engine.log.steps[: engine.queues.counters[0].num_steps]
    assert (steps.num_tokens <= config.max_num_batched_tokens).all()
    assert (steps.num_requests <= config.max_num_seqs).all()
    assert (steps.running_after_schedule <= config.max_num_seqs).all()
    assert (steps.num_tokens == steps.prefill_tokens + steps.num_decodes).all()
    assert (steps.num_sampled <= steps.num_requests).all()
    assert ((steps.num_preempted == 0) | (steps.num_admitted == 0)).all()
    for when in ("free_after_schedule", "free_after_update"):
        assert (steps[when] >= 0).all()
        assert (steps[when] <= config.num_usable_blocks).all()
    # The device runs one batch at a time.
    busy = steps[steps.num_tokens > 0]
    assert (busy.start_ns[1:] >= busy.end_ns[:-1]).all()
    assert (busy.end_ns > busy.start_ns).all()
    assert (steps.start_ns >= steps.formed_ns).all()
    assert (steps.update_ns >= steps.end_ns).all()
    if not config.async_scheduling:
        assert (steps.formed_ns[1:] >= steps.update_ns[:-1]).all()
    if len(steps):
        assert steps[-1].running_after_update == steps[-1].waiting_after_update == 0
        if not config.offloads:  # where the last to finish hold blocks that are being stored
            assert steps[-1].free_after_update == config.num_usable_blocks


def check_events(simulation: Simulation, engine: Engine) -> None:
    """Each request's way through the steps: admitted, computed without a gap, finished once."""
    workload, config = simulation.workload, simulation.settings
    events = engine.log.events[: engine.log.sizes[0].num_events].tolist()
    computed = [-1] * len(workload)  # -1: not in the engine's batches now
    sampled, first_admitted = [0] * len(workload), []
    finished: Counter[int] = Counter()
    seen: set[tuple[int, int]] = set()
    for step, kind, r, num_scheduled, num_computed, _, samples in events:
        if kind == state.EVENT_FINISHED:
            finished[r] += 1
            length = int(engine.kv.requests[r].end_num_tokens)
            # Asynchronously it may lose its seat while its last token is in flight.
            assert computed[r] == length - 1 or (computed[r] == -1 and config.async_scheduling)
            continue
        if kind == state.EVENT_PREEMPTED:
            computed[r] = -1
            continue
        if kind in (state.EVENT_LOAD, state.EVENT_LOADED, state.EVENT_STORE, state.EVENT_STORED):
            assert config.offloads
            continue
        assert (step, r) not in seen
        seen.add((step, r))
        if kind == state.SCHEDULED_RUNNING:
            assert computed[r] == num_computed
        else:
            assert computed[r] == -1
            if kind == state.SCHEDULED_NEW:
                first_admitted.append(r)
                if not config.enable_chunked_prefill and not config.long_prefill_token_threshold:
                    assert num_computed + num_scheduled == workload.num_prompt_tokens[r]
        assert num_scheduled >= 1
        assert num_scheduled <= (config.long_prefill_token_threshold or num_scheduled)
        computed[r] = num_computed + num_scheduled
        sampled[r] += samples
    ended = [r for r, s in enumerate(engine.kv.requests.status) if s == state.FINISHED]
    assert finished == Counter(ended)
    assert sorted(first_admitted) == ended
    assert [sampled[r] for r in ended] == [
        int(engine.kv.requests[r].end_num_tokens - workload.num_prompt_tokens[r]) for r in ended
    ]
    if config.policy == "fcfs" and not config.offloads:  # others pass who waits for a load
        arrival = engine.kv.infos.arrival_ns
        assert first_admitted == sorted(first_admitted, key=lambda r: (arrival[r], r))


def check_totals(simulation: Simulation, facts: Facts, engine: Engine) -> None:
    rows, counters, pool = facts["requests"], facts["counters"], engine.kv.pool[0]
    steps = engine.log.steps[: counters["num_steps"]]
    finished = [row for row in rows if row["finished"]]
    tokens = sum(row["output_tokens"] for row in rows)
    assert int(steps.num_sampled.sum()) == counters["num_generated_tokens"] == tokens
    assert int(steps.num_finished.sum()) == len(finished)
    assert int(steps.num_admitted.sum()) == counters["admissions"]
    assert int(steps.num_preempted.sum()) == counters["num_preemptions"]
    assert counters["num_preemptions"] == sum(row["preemptions"] for row in rows)
    resumed = counters["admissions"] - len(finished)
    assert resumed <= counters["num_preemptions"]
    if not simulation.settings.async_scheduling:
        assert resumed == counters["num_preemptions"]
    assert facts["intervals"].total() == tokens - len(finished)
    waits = sum(row["last_token_ns"] - row["first_token_ns"] for row in finished)
    assert sum(ns * count for ns, count in facts["intervals"].items()) == waits
    for name in ("queries", "hits", "preempted_queries", "preempted_hits"):
        logged = name if name.startswith("preempted") else f"prefix_{name}"
        assert int(steps[logged].sum()) == pool[name]
    held = engine.storage.held[: engine.storage.connection[0].num_held]
    if not len(held):
        assert pool.num_free_blocks == pool.num_usable_blocks
    assert engine.queues.counters[0].num_loading == 0
    assert not engine.storage.pinned.any()
    assert pool.evicted_blocks <= pool.reused_blocks
    # A second ends on its last ns, so sums over the seconds are sums over everything.
    series = facts["timeseries"]
    assert sum(row["generation_throughput"] for row in series) == tokens
    assert sum(row["prompt_throughput"] for row in series) == sum(
        row["prompt_tokens"] for row in finished
    )
    table = steps_table(engine, simulation.workload)
    for column, total in (("num_tokens", "scheduled_tokens"), ("num_requests", None)):
        lists = table["scheduled_tokens"].to_pylist()
        expected = [sum(one) if total else len(one) for one in lists]
        assert table[column].to_pylist() == expected


@settings(max_examples=EXAMPLES)
@given(simulation=simulations())
def test_short_cuts_and_logs_change_nothing(simulation: Simulation) -> None:
    """Twice the same; with and without requests in stride; with and without events."""
    fast, _ = run(simulation)
    assert run(simulation)[0] == fast
    assert run(simulation, stride=False)[0] == fast
    assert run(simulation, log_events=True)[0] == fast


@settings(max_examples=EXAMPLES // 2)
@given(simulation=simulations(), data=st.data())
def test_slices_change_nothing(simulation: Simulation, data: st.DataObject) -> None:
    """`advance` stopped anywhere, by time or by steps, goes on as if it had not stopped."""
    whole, _ = run(simulation)
    engine, refused = simulation.engine()
    step_ns = simulation.step_ns
    while True:
        now_ns = int(engine.queues.counters[0].now_ns)
        until_ns = now_ns + data.draw(st.integers(1, 30)) * step_ns // data.draw(st.integers(1, 3))
        before = int(engine.queues.counters[0].num_steps)
        max_steps = data.draw(st.integers(1, 20))
        reason = advance(engine, until_ns + 1, max_steps)
        formed = engine.log.steps[before : engine.queues.counters[0].num_steps]
        assert len(formed) <= max_steps
        assert (formed.formed_ns <= until_ns).all()
        if reason == state.REACHED_UNTIL and not len(formed):
            # Nothing happens before that: go to what comes next, however far it is.
            reason = advance(engine, state.FOREVER, 1)
        if reason == state.LOG_FULL:
            engine = grow_log(engine)
        elif reason == state.DONE:
            break
        elif reason != state.REACHED_UNTIL:
            assert "livelock" in whole
            return
    assert facts_of(simulation, engine, refused) == whole


@settings(max_examples=EXAMPLES // 2)
@given(simulation=simulations())
def test_growing_logs_change_nothing(simulation: Simulation) -> None:
    whole, complete = run(simulation, log_events=True)
    engine, refused = simulation.engine(log_events=True)
    seats = simulation.settings.max_num_seqs
    log = engine.log
    engine = engine._replace(
        log=log._replace(
            steps=log.steps[:1],
            events=log.events[: 6 * seats],
            intervals=log.intervals[: 2 * seats + 2],
        )
    )
    grown = 0
    while True:
        reason = advance(engine, state.FOREVER, state.FOREVER // 2)
        if reason == state.DONE:
            break
        if reason != state.LOG_FULL:
            assert "livelock" in whole
            return
        engine = grow_log(engine)
        grown += 1
    assert facts_of(simulation, engine, refused) == whole
    count = int(engine.log.sizes[0].num_events)
    assert engine.log.events[:count].tolist() == complete.log.events[:count].tolist()
    assert grown > 0 or engine.queues.counters[0].num_steps <= 1
