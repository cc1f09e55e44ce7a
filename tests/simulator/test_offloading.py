"""Loads and stores beside steps, as vLLM's OffloadingConnector has them: when they start and end."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.build import TierSettings
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.jit import JIT
from simulator.progress import run_to_end
from tests.simulator.draw import Simulation, simulations
from tests.simulator.make import STEP_NS, Ask, Played, make_engine, make_settings, make_workload

CHUNK = 32  # two blocks of 16
BYTES = 1000  # of a token; a token takes 500 ns on a link
TEXT = tuple(range(100))


def tier(chunks: int = 100, **changes: Any) -> TierSettings:
    made = TierSettings(
        capacity_bytes=chunks * CHUNK * BYTES,
        tokens_per_chunk=CHUNK,
        bytes_per_token=BYTES,
        bytes_per_ns=2.0,
        latency_ns=7,
    )
    return dataclasses.replace(made, **changes)


def play(*asks: Ask, **changes: Any) -> Played:
    workload = make_workload(*asks)
    chosen = {"tiers": (tier(),), "kv_connector": "OffloadingConnector", "log_events": True}
    engine, refused = make_engine(workload, make_settings(**chosen | changes))
    return Played(workload, run_to_end(engine, workload, check=True), refused)


def events(played: Played, kind: int) -> list[tuple[int, str, int]]:
    log = played.engine.log
    return [
        (int(e.step), played.workload.request_ids[e.request], int(e.num_scheduled_tokens))
        for e in log.events[: log.sizes[0].num_events]
        if e.kind == kind
    ]


LATE = 1_000_000
# a stores three chunks; b pushes it off a pool of ten blocks and stores four; c asks for a's text.
THREE = (
    Ask(100, tokens=TEXT),
    Ask(150, arrival=LATE),
    Ask(100, arrival=2 * LATE, tokens=TEXT),
)


def test_a_request_waits_for_its_load_and_computes_the_rest() -> None:
    played = play(*THREE)
    step, who, tokens = events(played, state.EVENT_LOAD)[0]
    assert (who, tokens) == ("c", 96)
    steps = played.logged_steps
    # Nothing else is there to do: the batch is empty, and the next one comes when the load ends.
    assert steps[step].num_tokens == 0 and steps[step].loading_after_schedule == 1
    assert steps[step].free_after_schedule == 10 - 6  # its blocks are its own meanwhile
    load_ns = 7 + 96 * BYTES // 2
    assert steps[step + 1].formed_ns == steps[step].formed_ns + load_ns
    last = steps[-2]  # the last one tells the workers that c has finished
    assert (last.num_tokens, last.num_admitted, last.load_ns) == (4, 1, 0)
    assert played.engine.kv.infos.num_external_tokens.tolist() == [0, 0, 96]
    storage = played.engine.storage
    assert storage.connection[0].waiting_ns == load_ns
    assert (storage.use[0].loads, storage.use[0].loaded_bytes) == (1, 96 * BYTES)
    assert storage.use[0].load_ns == load_ns


def test_a_request_that_was_loaded_entirely_computes_its_last_token() -> None:
    text = TEXT[:64]
    played = play(
        Ask(64, tokens=text), Ask(150, arrival=LATE), Ask(64, arrival=2 * LATE, tokens=text)
    )
    assert played.engine.kv.infos.num_external_tokens.tolist() == [0, 0, 63]
    assert played.logged_steps[-2].num_tokens == 1


def test_others_run_while_one_loads() -> None:
    alone = play(*THREE)
    load_ns = int(alone.engine.storage.use[0].load_ns)
    other = Ask(10, 30, arrival=2 * LATE, name="d")
    played = play(*THREE, other)
    info = played.engine.kv.infos[3]
    assert info.first_token_ns - info.arrival_ns <= 2 * STEP_NS  # not behind c's load
    assert info.first_token_ns < played.engine.kv.infos[2].first_token_ns
    # c's load ends during a step; it is reported with the step launched after that.
    begin = int(played.engine.storage.transfers[2].load_begin_ns)
    step = events(played, state.EVENT_LOADED)[0][0]
    formed = played.logged_steps.formed_ns
    assert formed[step - 1] < begin + load_ns <= formed[step]


def test_several_loads_take_turns_on_the_link() -> None:
    texts = [tuple(range(k, k + 100)) for k in (0, 1000, 2000)]
    asks = [Ask(100, arrival=k * LATE, tokens=text) for k, text in enumerate(texts)]
    asks += [Ask(600, arrival=5 * LATE)]
    asks += [Ask(100, arrival=9 * LATE, tokens=text) for text in texts]
    played = play(*asks, num_gpu_blocks=41)
    assert [(who, n) for _, who, n in events(played, state.EVENT_LOAD)] == [
        ("e", 96),
        ("f", 96),
        ("g", 96),
    ]
    one = 7 + 96 * BYTES // 2
    ends = played.engine.storage.transfers.load_end_ns[4:].tolist()
    assert ends == [9 * LATE + one, 9 * LATE + 2 * one, 9 * LATE + 3 * one]
    assert played.engine.storage.use[0].link_wait_ns == one + 2 * one


def test_who_would_load_what_is_being_loaded_waits_and_hits_it_on_the_device() -> None:
    played = play(*THREE, Ask(100, arrival=2 * LATE, tokens=TEXT, name="d"))
    assert [who for _, who, _ in events(played, state.EVENT_LOAD)] == ["c"]
    d = played.engine.kv.requests[3]
    assert (d.num_cached_tokens, played.engine.kv.infos[3].num_external_tokens) == (96, 0)


def test_what_is_stored_can_be_read_when_its_request_has_ended() -> None:
    """As in vLLM: not earlier, even if the bytes have long been copied."""
    workload = make_workload(Ask(100, 200, tokens=TEXT))
    chosen: dict[str, Any] = {"tiers": (tier(),), "kv_connector": "OffloadingConnector"}
    engine, _ = make_engine(workload, make_settings(num_gpu_blocks=30, **chosen))
    advance(engine, 150 * STEP_NS, state.FOREVER // 2)
    transfer, chunks = engine.storage.transfers[0], engine.storage.near.chunks[:3]
    assert 0 < transfer.store_end_ns < 150 * STEP_NS
    assert chunks.ref_cnt.tolist() == [state.PENDING] * 3
    # It ends; its blocks stay its own until a step reports that everything is stored.
    run_to_end(engine, workload)
    assert engine.storage.connection[0].num_held == 1
    assert chunks.ref_cnt.tolist() == [state.PENDING] * 3


def test_blocks_of_a_finished_request_are_held_until_they_are_stored() -> None:
    # b comes when a has ended and a's three chunks are on the link; it needs all blocks.
    played = play(Ask(100, tokens=TEXT), Ask(150, arrival=2 * STEP_NS))
    stored_ns = int(played.engine.storage.transfers[0].store_end_ns)
    assert stored_ns == STEP_NS + 7 + 96 * BYTES // 2
    assert played.engine.kv.infos[1].first_scheduled_ns == stored_ns
    assert [who for _, who, _ in events(played, state.EVENT_STORED)] == ["a"]


def test_a_preempted_request_loads_what_it_had_stored() -> None:
    asks = [Ask(60, output=60) for _ in range(3)]
    shared: dict[str, Any] = {"scheduler_reserve_full_isl": False, "max_num_seqs": 3}
    with_tier = play(*asks, tiers=(tier(1000),), **shared)
    without = play(*asks, tiers=(), **shared)
    assert with_tier.counters.num_preemptions > 0
    assert with_tier.engine.storage.use[0].loaded_tokens > 0
    assert with_tier.logged_steps.num_tokens.sum() < without.logged_steps.num_tokens.sum()


def test_loaded_blocks_are_given_back_where_vllm_hangs() -> None:
    """c and d load half of what they need; then neither fits. vLLM 0.19 waits for ever."""
    one, two = tuple(range(64)), tuple(range(500, 564))
    played = play(
        Ask(64, tokens=one),
        Ask(64, arrival=LATE, tokens=two),
        Ask(150, arrival=2 * LATE),
        Ask(130, arrival=3 * LATE, tokens=one, name="d"),
        Ask(64, arrival=3 * LATE, tokens=two, name="e"),
        num_gpu_blocks=11,
    )
    assert played.engine.storage.connection[0].num_given_back > 0
    assert (played.engine.kv.requests.status == state.FINISHED).all()


@st.composite
def with_loads(draw: st.DrawFn) -> Simulation:
    """Little room on the device, much in the tier, the whole sequence reserved."""
    simulation = draw(simulations())
    tokens = simulation.settings.block_size * draw(st.integers(1, 2))
    chosen = TierSettings(
        capacity_bytes=tokens * 1000,
        tokens_per_chunk=tokens,
        bytes_per_token=1,
        bytes_per_ns=draw(st.sampled_from((1.0, 0.01))),
        latency_ns=draw(st.sampled_from((0, 50, 100_000))),
    )
    changed = dataclasses.replace(
        simulation.settings,
        enable_prefix_caching=True,
        scheduler_reserve_full_isl=True,
        kv_connector="OffloadingConnector",
        tiers=(chosen,),
    )
    return simulation._replace(settings=changed)


@settings(max_examples=settings.default.max_examples * (3 if JIT else 1) // (1 if JIT else 10))
@given(simulation=with_loads())
def test_loads_and_blocks_never_wait_for_each_other_for_ever(simulation: Simulation) -> None:
    engine, _ = simulation.engine()
    engine = run_to_end(engine, simulation.workload)
    assume(engine.storage.use[0].loads > 0)
    assert not engine.storage.being_loaded.any()
    assert engine.queues.counters[0].num_loading == 0


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_tier_too_small_for_a_request_stores_nothing_of_it(chunks: int) -> None:
    played = play(*THREE, tiers=(tier(chunks),))
    assert events(played, state.EVENT_LOAD) == []
    assert played.engine.storage.near.store[0].num_chunks == 0
    assert played.engine.storage.use[0].failed_stores > 0
