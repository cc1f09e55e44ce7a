"""Requests in stride: with the short cut and without it, the same to the last bit.

Here many requests decode side by side, leave one after the other, and come back after preemptions;
the step times tell apart batches that differ in any length. test_properties.py tries the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.build import EngineSettings
from simulator.core.jit import JIT
from tests.simulator.draw import Simulation
from tests.simulator.make import Ask, make_workload
from tests.simulator.test_properties import facts_of, run


def simulation(seed: int, overlapped: bool) -> Simulation:
    random = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    block_size = one_of(1, 4, 16, 48)
    asks = []
    now = 0
    for r in range(random.integers(10, 60)):
        now += int(one_of(0, 0, random.integers(20_000_000), random.integers(300_000_000)))
        prompt, output = random.integers(1, 100), random.integers(1, one_of(3, 40, 150))
        asks.append(Ask(int(prompt), int(output), arrival=now, name=f"req-{r}"))
    longest = -(-250 // block_size)
    settings = EngineSettings(
        num_gpu_blocks=longest + 1 + int(random.integers(longest * one_of(1, 2, 10))),
        max_model_len=int(one_of(120, 250)),
        block_size=block_size,
        max_num_seqs=int(random.integers(2, 33)),
        max_num_batched_tokens=int(one_of(33, 64, 256)),
        enable_prefix_caching=bool(one_of(True, True, False)),
        long_prefill_token_threshold=int(one_of(0, 0, 20)),
        scheduler_reserve_full_isl=bool(one_of(True, False)),
        async_scheduling=overlapped,
        host_ns_per_step=int(one_of(0, 200_000, 5_000_000)),
    )
    return Simulation(make_workload(*asks), settings, None)


@pytest.mark.parametrize("overlapped", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(60 if JIT else 3))
def test_same_with_and_without(seed: int, overlapped: bool) -> None:
    drawn = simulation(seed, overlapped)
    fast, engine = run(drawn)
    plain, _ = run(drawn, stride=False)
    assert fast == plain
    assert facts_of(drawn, engine, {}) == fast


def test_they_are_worth_comparing() -> None:
    """Some are under pressure; in most batches there are many, of different lengths."""
    preempted, decodes = 0, []
    for seed in range(20 if JIT else 3):
        facts, engine = run(simulation(seed, False))
        preempted += facts["counters"]["num_preemptions"] > 0
        decodes.append(engine.log.steps[: facts["counters"]["num_steps"]].num_decodes.mean())
    assert preempted > len(decodes) // 4
    assert np.median(decodes) > 3
