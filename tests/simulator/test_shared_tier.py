"""A tier that two engines use: one key space, one order of use, one link."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simulator.build import TierSettings, build_engine
from simulator.core import state
from simulator.core.engine import advance
from simulator.core.state import Engine
from simulator.invariants import check_invariants
from simulator.prefix import block_hashes
from simulator.step_tables import linear_law
from simulator.storage import build_tier
from simulator.together import next_event_ns
from tests.simulator.make import STEP_NS, Ask, make_settings, make_workload

CHUNK, BYTES = 32, 1000
TIER = TierSettings(100 * CHUNK * BYTES, CHUNK, BYTES, bytes_per_ns=2.0, latency_ns=7)
LOAD_NS = 7 + 96 * BYTES // 2
LATE = 1_000_000
CONNECTORS = ("LMCacheConnectorV1", "OffloadingConnector")


def instances(
    parts: list[list[Ask]],
    connector: str,
    *,
    shared: bool = True,
    tier: TierSettings = TIER,
    **changes: Any,
) -> list[Engine]:
    """An engine for each part of one workload, with a tier between them or one each."""
    whole = make_workload(*(ask for part in parts for ask in part))
    config = make_settings(tiers=(tier,), kv_connector=connector, stride=False, **changes)
    hashes = block_hashes(whole, config.block_size)
    between = build_tier(tier, config.block_size, hashes)
    engines, first = [], 0
    for part in parts:
        engine, _ = build_engine(
            make_workload(*part),
            hashes.of_requests(np.arange(first, first + len(part))),
            config,
            linear_law(STEP_NS, 0, 0, 0),
            tiers=[between] if shared else (),
        )
        engines.append(engine)
        first += len(part)
    return engines


def run_in_order(engines: list[Engine]) -> list[int]:
    """Always the engine whose next event is the earliest. Returns the times of the events."""
    times = []
    while True:
        now_ns, i = min((next_event_ns(engine), i) for i, engine in enumerate(engines))
        if now_ns == state.FOREVER:
            return times
        times.append(now_ns)
        reason = advance(engines[i], now_ns + 1, 1)
        assert reason in (state.DONE, state.REACHED_UNTIL)
        check_invariants(engines[i])


TEXT = tuple(range(100))
FIRST = [Ask(100, tokens=TEXT), Ask(150, arrival=LATE, name="b")]
AGAIN = [Ask(100, arrival=2 * LATE, tokens=TEXT, name="c")]


def external(engine: Engine) -> list[int]:
    found: list[int] = engine.kv.infos.num_external_tokens.tolist()
    return found


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_what_one_has_stored_the_other_loads(connector: str, asynchronous: bool) -> None:
    engines = instances([FIRST, AGAIN], connector, async_scheduling=asynchronous)
    times = run_in_order(engines)
    assert times == sorted(times)
    assert external(engines[1]) == [96]
    apart = instances([FIRST, AGAIN], connector, shared=False, async_scheduling=asynchronous)
    run_in_order(apart)
    assert external(apart[1]) == [0]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_nothing_is_found_before_it_is_there(connector: str) -> None:
    """The other asks at the same time: it computes for itself."""
    engines = instances([FIRST, [Ask(100, tokens=TEXT, name="c")]], connector)
    run_in_order(engines)
    assert external(engines[1]) == [0]
    # The chunks are stored once: three of the text, four of b.
    assert sum(int(engine.storage.use[0].stored_chunks) for engine in engines) == 7


@pytest.mark.parametrize("connector", CONNECTORS)
def test_loads_of_two_engines_take_turns_on_the_link(connector: str) -> None:
    engines = instances([[*FIRST, *AGAIN], [Ask(100, 1, 2 * LATE, tokens=TEXT)]], connector)
    run_in_order(engines)
    assert external(engines[0])[2] == external(engines[1])[0] == 96
    assert engines[0].kv.infos[2].first_token_ns == 2 * LATE + LOAD_NS + STEP_NS
    assert engines[1].kv.infos[0].first_token_ns == 2 * LATE + 2 * LOAD_NS + STEP_NS
    assert [int(engine.storage.use[0].link_wait_ns) for engine in engines] == [0, LOAD_NS]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_what_one_loads_the_other_cannot_evict(connector: str) -> None:
    """A tier of four chunks, of which one engine loads three while the other stores four."""
    slow = dataclasses.replace(TIER, capacity_bytes=4 * CHUNK * BYTES, bytes_per_ns=0.01)
    pushers = [Ask(31, arrival=(12 + i // 5) * LATE, name=f"push{i}") for i in range(10)]
    later = 20 * LATE  # a's chunks are stored, and its blocks taken by who stores nothing
    first = [Ask(100, tokens=TEXT), *pushers, Ask(100, arrival=later, tokens=TEXT)]
    engines = instances([first, [Ask(150, arrival=later + 1)]], connector, tier=slow)
    run_in_order(engines)
    tier, ids = engines[0].storage.near, engines[0].kv.block_hashes
    assert external(engines[0])[-1] == 96
    assert engines[1].kv.infos[0].first_token_ns < engines[0].kv.infos[-1].first_token_ns
    assert all(tier.place[ids[last]] != state.NONE for last in (1, 3, 5))
    if connector == "OffloadingConnector":  # all of a request's chunks or none
        assert engines[1].storage.use[0].failed_stores > 0
        assert engines[1].storage.use[0].stored_chunks == 0


def test_the_order_of_events_does_not_depend_on_how_far_an_engine_is_advanced() -> None:
    """next_event_ns names every time at which something happens, and no other."""
    asks = [Ask(40 + k, 5, arrival=k * 700, name=f"r{k}") for k in range(12)]
    for connector in CONNECTORS:
        for asynchronous in (False, True):
            one, two = (
                instances([asks], connector, async_scheduling=asynchronous)[0] for _ in range(2)
            )
            run_in_order([one])
            while advance(two, state.FOREVER, state.FOREVER // 2) != state.DONE:
                pass
            count = int(two.queues.counters[0].num_steps)
            assert one.log.steps[:count].tobytes() == two.log.steps[:count].tobytes()
