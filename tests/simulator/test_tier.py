"""Prefix storage outside the device: what is found, what a load takes, who goes first."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from simulator.build import TierSettings, build_engine
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.progress import run_to_end
from simulator.simulation import resolve_tiers
from simulator.step_tables import linear_law
from simulator.workloads.generate import GenerateConfig, generate
from tests.simulator.make import Ask, make_engine, make_settings, make_workload
from tests.simulator.point import make_point

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


FAR: dict[str, Any] = {"bytes_per_ns": 1.0, "latency_ns": 20}


def test_of_two_tiers_the_near_one_is_looked_up_first() -> None:
    engine = play(*THREE, tiers=(tier(), tier(**FAR)))
    assert external(engine) == [0, 0, 96]
    assert engine.kv.infos.num_far_tokens.tolist() == [0, 0, 0]
    assert [int(n) for n in engine.storage.use.loads] == [1, 0]
    # Written through to both.
    assert [int(n) for n in engine.storage.use.written_bytes] == [7 * CHUNK * BYTES] * 2


def test_what_the_near_tier_lost_comes_from_the_far_one_and_stays_near() -> None:
    # The near tier keeps b's four chunks and the last two of a's: the first one is far.
    engine = play(*THREE, tiers=(tier(chunks=6), tier(**FAR)))
    assert external(engine) == [0, 0, 96]
    assert engine.kv.infos.num_far_tokens.tolist() == [0, 0, 32]
    near, far = engine.storage.use
    assert (near.loaded_tokens, far.loaded_tokens) == (64, 32)
    assert near.written_bytes == 8 * CHUNK * BYTES  # a's first chunk once more
    # Two links: the step waits for the one that takes longer.
    load_ns = max(7 + 64 * BYTES // 2, 20 + 32 * BYTES)
    assert engine.log.steps[engine.queues.counters[0].num_steps - 1].load_ns == load_ns
    assert engine.storage.connection[0].stalled_ns == load_ns


def test_requests_of_one_step_load_one_after_the_other() -> None:
    other = tuple(range(500, 600))
    asks = [Ask(100, tokens=TEXT), Ask(100, arrival=5_000, tokens=other), Ask(270, arrival=10_000)]
    asks += [
        Ask(100, arrival=20_000, tokens=text, name=n)
        for n, text in zip("de", (TEXT, other), strict=True)
    ]
    engine = play(*asks, blocks=18, tiers=(tier(),))
    assert external(engine) == [0, 0, 0, 96, 96]
    last = engine.log.steps[engine.queues.counters[0].num_steps - 1]
    assert last.num_admitted == 2
    assert last.load_ns == 2 * (7 + 96 * BYTES // 2)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_loaded_can_be_evicted_again(asynchronous: bool) -> None:
    engine = play(*THREE, tiers=(tier(chunks=7),), async_scheduling=asynchronous)
    assert engine.storage.use[0].loads == 1
    assert not engine.storage.pinned.any()
    assert (engine.storage.near.chunks.ref_cnt == 0).all()


@pytest.mark.parametrize("kv_cache_dtype, element", [("auto", 2), ("fp8", 1)])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_tier_keeps_the_bytes_of_all_ranks(ranks: int, kv_cache_dtype: str, element: int) -> None:
    """MODEL has two KV heads: four ranks keep each of them twice, as vLLM does."""
    point = make_point(
        engine__kv_cache_dtype=kv_cache_dtype,
        prefix_storage="cpu",
        tiers={"cpu": {"capacity_gib": 1.0, "bandwidth_gbps": 10.0, "chunk_tokens": 256}},
    )
    engine = point.engine.model_copy(update={"tensor_parallel_size": ranks})
    (made,) = resolve_tiers(point.model_copy(update={"engine": engine}))
    heads = max(2, ranks)
    assert made.bytes_per_token == 2 * heads * 16 * 2 * element  # K and V, head_dim, layers
    assert made.capacity_bytes == 2**30
    assert made.tokens_per_chunk == 256


def conversations(tokens: int, **tier_changes: Any) -> dict[str, Any]:
    """One request after the other, so that nothing depends on how long a load takes."""
    workload = generate(
        GenerateConfig.model_validate(
            {
                "num_requests": 120,
                "seed": 3,
                "arrivals": {"process": "constant", "rate": 0.1},
                "prompt_tokens": {"uniform": [20, 200]},
                "output_tokens": {"uniform": [5, 60]},
                "multi_turn": {"share": 0.8, "distance": 4, "max_prompt_tokens": 900},
            }
        )
    )
    config = make_settings(
        num_gpu_blocks=70,
        max_model_len=1100,
        max_num_batched_tokens=4096,
        tiers=(tier(tokens // CHUNK, **tier_changes),),
    )
    law = linear_law(7_000_000, 150_000, 0, 0)
    engine, refused = build_engine(workload, block_hashes(workload, 16), config, law)
    assert not refused
    engine = run_to_end(engine, workload)
    infos = engine.kv.infos
    return {
        "hit": int(engine.kv.requests.num_cached_tokens.sum()),
        "ttft_ns": (infos.first_token_ns - infos.arrival_ns).tolist(),
    }


SIZES = (0, 512, 1024, 2048, 4096, 8192, 16384, 1 << 20)


def test_a_larger_tier_hits_more_and_answers_sooner() -> None:
    """LRU keeps in a larger tier all that it keeps in a smaller one. With requests one at a time and
    loads far quicker than computing, no request waits longer for its first token.
    """
    runs = [conversations(tokens, bytes_per_ns=25.0, latency_ns=10_000) for tokens in SIZES]
    hits = [run["hit"] for run in runs]
    assert hits == sorted(hits)
    assert hits[-1] > 1.2 * hits[0]
    assert runs[-1] == runs[-2]  # large enough is as good as unlimited
    for smaller, larger in itertools.pairwise(runs):
        assert all(b <= a for a, b in zip(smaller["ttft_ns"], larger["ttft_ns"], strict=True))
    assert sum(runs[-1]["ttft_ns"]) < sum(runs[0]["ttft_ns"])


def test_a_slow_tier_costs_latency_and_not_hits() -> None:
    quick = conversations(1 << 20, bytes_per_ns=25.0, latency_ns=10_000)
    slow = conversations(1 << 20, bytes_per_ns=0.005, latency_ns=10_000)
    assert slow["hit"] == quick["hit"]
    assert sum(slow["ttft_ns"]) > sum(quick["ttft_ns"])
