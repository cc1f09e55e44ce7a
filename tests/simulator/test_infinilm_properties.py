"""What holds for InfiniLM's scheduler whatever the settings and the workload."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.build import EngineSettings
from simulator.core import state
from simulator.core.state import Engine
from tests.simulator.draw import Simulation, workloads
from tests.simulator.test_properties import EXAMPLES, Facts, run

BASE_NS = 1000
FEW = EXAMPLES // 4


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    """Small pools, batches and budgets; outputs that end long before max_tokens, or with it."""
    block_size = draw(st.sampled_from((1, 2, 3, 4, 8, 16)))
    max_model_len = draw(st.integers(2, 60))
    least = max(1, -(-max_model_len // block_size)) if draw(st.integers(0, 3)) else 1
    config = EngineSettings(
        num_gpu_blocks=least * draw(st.sampled_from((1, 1, 2, 4))) + draw(st.integers(0, 8)),
        max_model_len=max_model_len,
        block_size=block_size,
        null_block=False,
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(8, 60)),
        enable_prefix_caching=draw(st.booleans()),
        engine="infinilm",
        admission=draw(st.sampled_from(("legacy", "exact-scan", "incremental"))),
        host_ns_per_step=draw(st.sampled_from((0, 70))),
        host_ns_per_request=draw(st.sampled_from((0, 2))),
    )
    workload = draw(workloads(max_model_len, BASE_NS))
    if draw(st.booleans()):
        more = draw(
            st.lists(
                st.sampled_from((0, 0, 1, 5, 40)), min_size=len(workload), max_size=len(workload)
            )
        )
        workload = replace(workload, max_tokens=workload.num_output_tokens + np.array(more))
    return Simulation(workload, config, (BASE_NS, draw(st.sampled_from((0, 20))), 1, 3))


@settings(max_examples=FEW)
@given(simulation=simulations())
def test_a_run(simulation: Simulation) -> None:
    """Blocks, reservations and requests add up after every step; then what the steps were."""
    facts, engine = run(simulation, check=True, log_events=True)
    check_requests(simulation, facts)
    check_batches(simulation, engine)
    assert engine.kv.pool[0].num_free_blocks == simulation.settings.num_usable_blocks
    assert engine.queues.counters[0].num_reserved_decode_blocks == 0
    assert engine.queues.counters[0].num_preemptions == 0


def check_requests(simulation: Simulation, facts: Facts) -> None:
    """Who can ever fit is served once and whole; who cannot is told why."""
    workload, config = simulation.workload, simulation.settings
    most = workload.num_output_tokens if workload.max_tokens is None else workload.max_tokens
    for r, row in enumerate(facts["requests"]):
        prompt = int(workload.num_prompt_tokens[r])
        life = min(prompt + int(most[r]), config.max_model_len)
        too_large = life > config.num_usable_blocks * config.block_size
        parent = int(workload.session_parent[r])
        orphan = parent >= 0 and facts["requests"][parent]["refused"] is not None
        hopeless = prompt >= config.max_model_len or too_large
        assert (row["refused"] is not None) == (hopeless or orphan)
        assert row["finished"] == (row["refused"] is None)
        assert row["preemptions"] == 0
        if row["finished"]:
            length = min(prompt + int(workload.num_output_tokens[r]), config.max_model_len)
            assert row["output_tokens"] == length - prompt
            assert row["arrival_ns"] <= row["queued_ns"] <= row["first_scheduled_ns"]
            assert row["first_scheduled_ns"] < row["first_token_ns"] <= row["last_token_ns"]
            assert 0 <= row["hit_tokens_gpu"] < prompt


def check_batches(simulation: Simulation, engine: Engine) -> None:
    """A batch is prompts, whole, or decodes; nobody who should decode is left out."""
    config = simulation.settings
    steps = engine.log.steps[: engine.queues.counters[0].num_steps]
    events = engine.log.events[: engine.log.sizes[0].num_events]
    scheduled = events[events.kind <= state.SCHEDULED_RUNNING]
    admitted = scheduled.kind == state.SCHEDULED_NEW
    prompts = engine.kv.infos.num_prompt_tokens[scheduled.request]
    ends = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens
    assert (ends[admitted] == prompts[admitted]).all()
    assert (scheduled.num_scheduled_tokens[~admitted] == 1).all()
    assert scheduled.samples.all()
    prefill_steps = set(scheduled.step[admitted].tolist())
    assert prefill_steps.isdisjoint(scheduled.step[~admitted].tolist())
    for number, step in enumerate(steps):
        assert 1 <= step.num_requests <= config.max_num_seqs
        if number in prefill_steps:
            assert step.num_admitted == step.num_requests
            assert step.num_tokens <= config.max_num_batched_tokens or step.num_requests == 1
        else:
            assert step.num_requests == min(step.running_after_schedule, config.max_num_seqs)
    times = Counter(scheduled.request.tolist())
    done = np.flatnonzero(engine.kv.requests.status == state.FINISHED)
    outputs = engine.kv.requests.num_tokens - engine.kv.infos.num_prompt_tokens
    assert times == {int(r): int(outputs[r]) for r in done}


@settings(max_examples=FEW)
@given(simulation=simulations())
def test_the_counter_decides_as_the_scan_does(simulation: Simulation) -> None:
    """Whatever the run leaves, events included."""
    scan, ours = run(simulation, admission="exact-scan", log_events=True)
    counter, theirs = run(simulation, admission="incremental", log_events=True)
    assert scan == counter
    count = int(ours.log.sizes[0].num_events)
    assert ours.log.events[:count].tolist() == theirs.log.events[:count].tolist()


@settings(max_examples=FEW)
@given(simulation=simulations())
def test_same_again_and_without_events(simulation: Simulation) -> None:
    facts, _ = run(simulation)
    assert run(simulation)[0] == facts
    assert run(simulation, log_events=True)[0] == facts


@settings(max_examples=FEW)
@given(simulation=simulations())
def test_enough_blocks_are_enough(simulation: Simulation) -> None:
    """A run in which nobody waited for blocks is the same in every pool that holds what it asked for."""
    facts, engine = run(simulation, num_gpu_blocks=5000)
    pool, counters = engine.kv.pool[0], engine.queues.counters[0]
    if pool.reused_blocks or pool.failed_allocations:
        return
    enough = max(int(engine.kv.blocks.used.sum()), int(counters.peak_required_blocks), 1)
    if (engine.kv.requests.status == state.REFUSED).any():
        return
    smaller, _ = run(simulation, num_gpu_blocks=enough)
    for part in ("requests", "intervals", "counters", "latency"):
        assert smaller[part] == facts[part]
