"""An engine that gets nowhere says so, and who waits for what."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from simulator.build import EngineSettings
from simulator.core import block_pool, state
from simulator.progress import SimulationError, run_to_end
from tests.oracle.scenarios import PROBES, Probe
from tests.simulator.core.calls import callable_from_python
from tests.simulator.make import Ask, make_engine, make_settings, make_workload, play

TIED = {
    "num_gpu_blocks": 9,
    "policy": "priority",
    "scheduler_reserve_full_isl": False,
    "long_prefill_token_threshold": 16,
}
TWO_LONG = (Ask(100, 5), Ask(100, 5))

REFUSED = {
    "prompt larger than the pool",
    "prompt larger than the pool, no isl gate",
    "prompt larger than the pool, no isl gate, no cache",
    "prompt larger than the pool, a more urgent one next to it",
    "output outgrows the pool",
    "one token more than that",
    "prompt of max_model_len, in chunks",
    "prompt of max_model_len, in one step",
    "prompt beyond max_model_len, in one step",
}
ENDLESS = {
    "tied priorities, no isl gate, no cache, each fits alone",
    "tied priorities, no isl gate, chunks smaller than a block and out of step",
}


@pytest.mark.parametrize("overlapped", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.about)
def test_what_becomes_of_hopeless_requests(probe: Probe, overlapped: bool) -> None:
    """README.md of tests/oracle says what vLLM does with them: it waits for ever, or loops."""
    wanted = asdict(probe.settings)
    del wanted["step_cost_ns"]
    asks = [
        Ask(len(request.input_tok_ids), len(request.output_tok_ids), arrival, priority)
        for request, (_, _, arrival, priority) in zip(probe.draw(), probe.requests, strict=True)
    ]
    settings = {**wanted, "async_scheduling": overlapped}
    if probe.about in ENDLESS:
        with pytest.raises(SimulationError):
            play(*asks, **settings, check=False)
        return
    played = play(*asks, **settings)
    finished = {word for line in played.steps for word in line.split() if "done:" in word}
    if probe.about in REFUSED:
        assert set(played.refused) == {0}
        assert finished == {"done:b"}
    else:
        assert not played.refused
        assert finished == {"done:a", "done:b"}


@pytest.mark.parametrize(
    "changes",
    [
        {"enable_prefix_caching": False},
        # With a cache each loses only the block it had begun: chunks have to be smaller than that.
        {"long_prefill_token_threshold": 6, "max_num_batched_tokens": 9, "max_num_seqs": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("overlapped", [False, True], ids=["sync", "async"])
def test_livelock_names_everybody(changes: dict[str, Any], overlapped: bool) -> None:
    with pytest.raises(SimulationError) as caught:
        play(*TWO_LONG, **{**TIED, **changes}, async_scheduling=overlapped, check=False)
    text = str(caught.value)
    assert re.search(r"no progress after step \d+ at \d+ ns: \d+ steps in a row", text)
    assert re.search(r"\d of 8 blocks are free", text)
    # One of the two runs, or both wait, when it is noticed.
    for name in "ab":
        holds = r"holds \d+ blocks at \d+ of 100 tokens"
        assert re.search(rf"\b{name} ({holds}|waits for 7 blocks)", text)


@pytest.mark.parametrize(
    "changes",
    [{"policy": "fcfs"}, {"scheduler_reserve_full_isl": True}, {"num_gpu_blocks": 15}],
    ids=str,
)
def test_no_livelock_with(changes: dict[str, Any]) -> None:
    played = play(*TWO_LONG, **{**TIED, "enable_prefix_caching": False, **changes})
    assert played.counters.num_unfinished == 0


def test_no_livelock_a_ns_apart() -> None:
    asks = (Ask(100, 5), Ask(100, 5, arrival=1))
    assert play(*asks, **TIED, enable_prefix_caching=False).counters.num_unfinished == 0


def test_a_livelock_stops_nobody_who_came_before() -> None:
    """It is noticed after it began, and those who ended before have their times."""
    workload = make_workload(Ask(20, 5), *(Ask(100, 5, arrival=10_000) for _ in range(2)))
    engine, _ = make_engine(workload, make_settings(**TIED, enable_prefix_caching=False))
    with pytest.raises(SimulationError):
        run_to_end(engine, workload)
    assert engine.kv.requests.status[0] == state.FINISHED
    assert engine.kv.requests.last_token_ns[0] == 6000


def test_long_prompts_in_tiny_chunks_are_no_livelock() -> None:
    """As many steps without a token as the prompt has tokens."""
    workload = make_workload(Ask(5000, 1))
    limits = {"max_model_len": 6000, "num_gpu_blocks": 400, "long_prefill_token_threshold": 1}
    engine, _ = make_engine(workload, make_settings(**limits))
    assert run_to_end(engine, workload).queues.counters[0].num_steps == 5000


@pytest.mark.parametrize("overlapped", [False, True], ids=["sync", "async"])
def test_stuck_names_who_waits(overlapped: bool) -> None:
    """No configuration gets there, since hopeless requests are refused: blocks are lost by hand."""
    workload = make_workload(Ask(100, 5), Ask(10, 1, arrival=1))
    engine, refused = make_engine(workload, make_settings(async_scheduling=overlapped))
    assert not refused
    for _ in range(5):
        callable_from_python(block_pool.get_new_block)(engine.kv)
    with pytest.raises(SimulationError) as caught:
        run_to_end(engine, workload)
    text = str(caught.value)
    assert "nothing can be scheduled and nothing will change that" in text
    assert "5 of 10 blocks are free" in text
    assert "Nobody is running" in text
    assert "a waits for 7 blocks" in text


def test_only_the_first_few_are_named() -> None:
    workload = make_workload(*(Ask(100, 1) for _ in range(9)))
    engine, _ = make_engine(workload, EngineSettings(num_gpu_blocks=11, max_model_len=200))
    for _ in range(5):
        callable_from_python(block_pool.get_new_block)(engine.kv)
    with pytest.raises(SimulationError, match=r"9 waiting: a waits .*, and 4 more"):
        run_to_end(engine, workload)
