"""The plain Python loop that benchmarks measure against decides as the engine does."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from benchmarks.cases import GENERATED, ROOT, replay_point
from benchmarks.plain_loop import PlainLoop, differences
from profiles.errors import InputError
from simulator import point_from_mapping, prepare
from simulator.build import build_engine
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.progress import run_to_end
from simulator.simulation import Prepared
from simulator.step_tables import linear_law
from tests.profiles.bundles import REFERENCE, needs_reference
from tests.simulator.make import Ask, make_settings, make_workload


def play_both(ready: Prepared) -> tuple[PlainLoop, Engine]:
    inputs = ready.workload, ready.hashes, ready.settings, ready.latency, ready.arrival_ns
    plain = PlainLoop(*inputs)
    plain.run()
    engine, _ = build_engine(*inputs)
    return plain, run_to_end(engine, ready.workload)


def generated(num_gpu_blocks: int, **engine: Any) -> Prepared:
    """200 requests, most of them behind one of two prefixes, in a small pool."""
    data = {
        "model": GENERATED["model"],
        "card": GENERATED["card"],
        "engine": {
            "num_gpu_blocks_override": num_gpu_blocks,
            "max_num_seqs": 24,
            "max_num_batched_tokens": 256,
            "max_model_len": 2000,
            "async_scheduling": False,
            **engine,
        },
        "workload": {
            "generate": {
                "num_requests": 200,
                "seed": 3,
                "arrivals": {"process": "poisson", "rate": 8.0},
                "shared_prefix": {"groups": 2, "tokens": 200, "share": 0.8},
            }
        },
        "profile": {
            "linear": {
                "base_ns": 5_000_000,
                "per_token_ns": 20_000,
                "per_kv_token_ns": 80,
                "per_request_ns": 7,
            }
        },
        "overhead": {"host_ms_per_step": 0.3, "host_ms_per_request": 0.01},
    }
    return prepare(point_from_mapping(data, ROOT, "generated"))


@needs_reference
@pytest.mark.parametrize(
    ("card", "steps", "preemptions", "hit_tokens"),
    [("RTX4090", 6137, 194, 63_600), ("RTXPRO6000", 2406, 0, 19_520)],
)
def test_reference_replays(card: str, steps: int, preemptions: int, hit_tokens: int) -> None:
    plain, engine = play_both(prepare(replay_point(f"{card}/Llama-3.1-8B", REFERENCE)))
    assert differences(plain, engine) == []
    assert (len(plain.step_end_ns), plain.num_preemptions, plain.hit_tokens) == (
        steps,
        preemptions,
        hit_tokens,
    )


@pytest.mark.parametrize("num_gpu_blocks", [80, 130, 400, 4000])
@pytest.mark.parametrize("block_size", [16, 32])
def test_generated_under_kv_pressure(num_gpu_blocks: int, block_size: int) -> None:
    plain, engine = play_both(generated(num_gpu_blocks, block_size=block_size))
    assert differences(plain, engine) == []
    assert plain.hit_tokens > 0
    assert (plain.num_preemptions > 0) == (num_gpu_blocks < 4000)


@pytest.mark.parametrize("seed", range(40))
def test_few_blocks_and_many_equal_prompts(seed: int) -> None:
    """Prompts are heads of one of two texts, often whole blocks; requests arrive in bursts."""
    random = Random(seed)
    texts = [random.choices(range(1000), k=96) for _ in range(2)]
    asks = []
    for r in range(30):
        prompt = random.choice((16, 32, 48, 64, random.randint(1, 90)))
        tokens = random.choice(texts)[:prompt]
        asks.append(
            Ask(prompt, random.randint(1, 40), 20_000 * (r // 6), tokens=tokens, name=f"{r}")
        )
    workload = make_workload(*asks)
    settings = make_settings(
        num_gpu_blocks=random.randint(10, 24),
        max_num_seqs=random.randint(2, 8),
        max_num_batched_tokens=random.choice((8, 30, 64, 200)),
    )
    hashes = block_hashes(workload, settings.block_size)
    latency = linear_law(1000, 10, 1, 5)
    plain = PlainLoop(workload, hashes, settings, latency)
    plain.run()
    engine, _ = build_engine(workload, hashes, settings, latency)
    assert differences(plain, run_to_end(engine, workload)) == []


def test_differences_are_named() -> None:
    plain, engine = play_both(generated(4000))
    plain.num_preemptions += 1
    plain.step_end_ns[7] += 1
    plain.requests[0].first_token_ns += 1
    assert differences(plain, engine) == [
        "preemptions: plain loop 1, engine 0",
        "the end of a step",
        "the first token of a request",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("async_scheduling", True), ("policy", "priority"), ("enable_prefix_caching", False)],
)
def test_other_engines_are_refused(field: str, value: Any) -> None:
    ready = generated(4000)
    settings = dataclasses.replace(ready.settings, **{field: value})
    with pytest.raises(InputError, match=f"plain loop: {field}"):
        PlainLoop(ready.workload, ready.hashes, settings, ready.latency)
