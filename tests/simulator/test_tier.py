"""Prefix storage outside the device: what is found, what a load takes, who goes first."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simulator.build import TierSettings
from simulator.core.state import Engine
from simulator.progress import run_to_end
from tests.simulator.make import Ask, make_engine, make_settings, make_workload

CHUNK = 32  # two blocks of 16
BYTES = 1000  # of a token


def tier(chunks: int = 100, **changes: Any) -> TierSettings:
    made = TierSettings(
        capacity_bytes=chunks * CHUNK * BYTES,
        tokens_per_chunk=CHUNK,
        bytes_per_token=BYTES,
        bytes_per_ns=2.0,
        latency_ns=7,
    )
    return dataclasses.replace(made, **changes)


def play(*asks: Ask, blocks: int = 11, **settings: Any) -> Engine:
    workload = make_workload(*asks)
    engine, _ = make_engine(
        workload, make_settings(num_gpu_blocks=blocks, stride=False, **settings)
    )
    return run_to_end(engine, workload, check=True)


def external(engine: Engine) -> list[int]:
    return engine.kv.infos.num_external_tokens.tolist()


TEXT = tuple(range(100))
# a computes 100 tokens (three whole chunks), b pushes them off a pool of ten blocks, c asks again.
THREE = (
    Ask(100, tokens=TEXT),
    Ask(150, arrival=10_000),
    Ask(100, arrival=20_000, tokens=TEXT),
)


def test_what_the_device_evicted_comes_back_in_whole_chunks() -> None:
    engine = play(*THREE, tiers=(tier(),))
    # Three chunks of 32 of the 100 tokens; without a tier nothing is left of them.
    assert external(engine) == [0, 0, 96]
    assert external(play(*THREE)) == [0, 0, 0]
    last = engine.log.steps[engine.queues.counters[0].num_steps - 1]
    assert last.num_tokens == 100 - 96


def test_a_load_takes_latency_and_bytes_by_bandwidth_before_the_step() -> None:
    engine = play(*THREE, tiers=(tier(),))
    store = engine.storage.use[0]
    expected = 7 + 96 * BYTES // 2
    assert (store.loads, store.loaded_bytes, store.load_ns) == (1, 96 * BYTES, expected)
    last = engine.log.steps[engine.queues.counters[0].num_steps - 1]
    assert last.load_ns == expected
    assert last.end_ns - last.start_ns == expected + 1000  # a step takes 1000 ns


def test_the_chunk_the_device_holds_half_of_moves_whole() -> None:
    # b leaves two or three of a's blocks on the device: the hit ends within a chunk.
    asks = (
        Ask(100, tokens=TEXT),
        Ask(112, arrival=10_000),
        Ask(100, arrival=20_000, tokens=TEXT),
    )
    engine = play(*asks, tiers=(tier(),))
    device = int(engine.kv.requests.num_cached_tokens[2]) - external(engine)[2]
    assert device == 48  # three blocks: one and a half chunks
    assert external(engine)[2] == 96 - 48
    assert engine.storage.use[0].loaded_bytes == 2 * CHUNK * BYTES


def test_at_least_one_token_is_computed() -> None:
    text = tuple(range(64))
    asks = (
        Ask(64, output=2, tokens=text),
        Ask(150, arrival=10_000),
        Ask(64, arrival=20_000, tokens=text),
    )
    engine = play(*asks, tiers=(tier(),))
    assert external(engine) == [0, 0, 63]


def test_nothing_is_gained_without_a_whole_chunk() -> None:
    asks = (
        Ask(31, tokens=TEXT[:31]),
        Ask(150, arrival=10_000),
        Ask(31, arrival=20_000, tokens=TEXT[:31]),
    )
    assert external(play(*asks, tiers=(tier(),))) == [0, 0, 0]


def test_least_recently_used_chunks_go_first() -> None:
    engine = play(*THREE, tiers=(tier(chunks=4),))
    # a stored three chunks, b four: of a's nothing is left.
    assert external(engine) == [0, 0, 0]
    assert engine.storage.near.store[0].evicted_chunks > 0
    assert external(play(*THREE, tiers=(tier(chunks=7),))) == [0, 0, 96]


def test_a_gap_ends_what_is_found() -> None:
    # Six places: b's four chunks push out a's first one, and the second and third are no use alone.
    engine = play(*THREE, tiers=(tier(chunks=6),))
    assert external(engine) == [0, 0, 0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_preempted_request_recalls_instead_of_computing(asynchronous: bool) -> None:
    asks = [Ask(60, output=60) for _ in range(3)]
    shared = {"scheduler_reserve_full_isl": False, "async_scheduling": asynchronous}
    with_tier, without = play(*asks, tiers=(tier(),), **shared), play(*asks, **shared)
    assert with_tier.queues.counters[0].num_preemptions > 0
    assert with_tier.storage.use[0].loaded_tokens > 0

    def computed(engine: Engine) -> int:
        return int(engine.log.steps.num_tokens.sum())

    assert computed(with_tier) < computed(without)


def test_a_larger_tier_never_finds_less() -> None:
    random = np.random.default_rng(1)
    texts = [tuple(random.integers(0, 1000, 96).tolist()) for _ in range(6)]
    asks = [
        Ask(100, output=4, arrival=i * 4000, tokens=texts[int(random.integers(6))], name=f"r{i}")
        for i in range(60)
    ]
    loaded = []
    ended = []
    for chunks in (0, 2, 4, 8, 16, 64):
        engine = play(*asks, tiers=(tier(chunks=chunks, latency_ns=0, bytes_per_ns=1e9),))
        loaded.append(int(engine.storage.use[0].loaded_tokens))
        ended.append(int(engine.log.steps.num_tokens.sum()))
    assert loaded == sorted(loaded) and loaded[0] == 0 and loaded[-1] > 0
    assert ended == sorted(ended, reverse=True)


def test_a_tier_of_no_capacity_is_no_tier() -> None:
    without, empty = play(*THREE), play(*THREE, tiers=(tier(chunks=0),))
    assert without.log.steps.tobytes() == empty.log.steps.tobytes()


def test_bytes_are_written_through_once_a_chunk() -> None:
    engine = play(*THREE, tiers=(tier(),))
    # Three chunks of a, four of b; c's are there already.
    assert engine.storage.use[0].written_bytes == 7 * CHUNK * BYTES
