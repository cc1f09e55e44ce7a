"""What is recorded from vLLM's scheduler with its OffloadingConnector. Needs no vLLM."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from tests.oracle.scenarios import MS, Scenario, Settings, StepCost, Traffic, random_scenario


@dataclass(frozen=True)
class Offloading:
    """The tier and its links. A transfer takes latency + per_token x tokens; one at a time each way."""

    cpu_blocks: int  # of block_size_factor device blocks each
    block_size_factor: int = 1
    latency_ns: int = 50_000
    per_token_ns: int = 20_000

    def as_config(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class OffloadingScenario:
    scenario: Scenario
    offloading: Offloading

    @property
    def name(self) -> str:
        return self.scenario.name


def _scenario(
    name: str, about: str, settings: Settings, traffic: Traffic, offloading: Offloading
) -> OffloadingScenario:
    return OffloadingScenario(Scenario(name, about, settings, traffic), offloading)


TURNS = Traffic(50, ((10, 70),), ((10, 50),), (0, 350 * MS), turn_chance=0.75, total_at_most=600)

OFFLOADING_SCENARIOS: tuple[OffloadingScenario, ...] = (
    _scenario(
        "turns",
        "conversations that grow beyond the device; the tier keeps them all",
        Settings(40, 16, 256, 6, 600),
        TURNS,
        Offloading(2000),
    ),
    _scenario(
        "turns-chunks",
        "four device blocks a chunk: hits end inside chunks, parts of chunks are loaded",
        Settings(40, 16, 256, 6, 600),
        TURNS,
        Offloading(60, 4),
    ),
    _scenario(
        "small-tier",
        "a tier smaller than the device: eviction in it, stores that find no place",
        Settings(40, 16, 256, 6, 600),
        TURNS,
        Offloading(26, 2),
    ),
    _scenario(
        "slow-link",
        "loads that take many steps: several wait, others run on, blocks are held long",
        Settings(44, 16, 256, 6, 600),
        TURNS,
        Offloading(400, 2, 2 * MS, 1_500_000),
    ),
    _scenario(
        "same-prefix-together",
        "bursts of equal prompts: who would load what is being loaded waits",
        Settings(26, 16, 192, 8, 320),
        Traffic(
            64, ((48, 150),), ((2, 40),), (300 * MS, 900 * MS), burst=(3, 6), repeat_chance=0.75
        ),
        Offloading(300, 1, MS, 400_000),
    ),
    _scenario(
        "aligned",
        "prompts of whole chunks: all is loaded, the last token is computed again",
        Settings(40, 16, 160, 8, 400),
        Traffic(
            60,
            ((32, 160),),
            ((1, 40),),
            (0, 200 * MS),
            prompt_multiple=32,
            repeat_chance=0.4,
            prefixes=2,
            prefix_tokens=(64, 64),
            prefix_chance=0.5,
        ),
        Offloading(120, 2),
    ),
    _scenario(
        "preempted",
        "admitted on the first chunk alone: who is preempted flushes its stores and loads them back",
        Settings(30, 16, 96, 8, 400, scheduler_reserve_full_isl=False),
        Traffic(45, ((10, 60), (100, 260)), ((10, 90),), (0, 200 * MS), repeat_chance=0.3),
        Offloading(600, 1, 100_000, 60_000),
    ),
    _scenario(
        "preempted-priority",
        "the same by priority: one heap of those who wait and those who load",
        Settings(30, 16, 96, 8, 400, policy="priority"),
        Traffic(
            45,
            ((10, 60), (100, 220)),
            ((10, 90),),
            (0, 200 * MS),
            burst=(1, 3),
            repeat_chance=0.3,
            priorities=(0, 1, 2),
        ),
        Offloading(80, 2, 100_000, 100_000),
    ),
    _scenario(
        "one-seat",
        "max_num_seqs 1: loads need no seat",
        Settings(18, 16, 100, 1, 256),
        Traffic(40, ((40, 180),), ((1, 30),), (0, 120 * MS), repeat_chance=0.6),
        Offloading(100, 1, 100_000, 300_000),
    ),
    _scenario(
        "idle-gaps",
        "long silences: what the last request stored is reported with the next one's first step",
        Settings(22, 16, 128, 8, 300),
        Traffic(50, ((40, 200),), ((1, 30),), (0, 3_000 * MS), burst=(1, 4), repeat_chance=0.6),
        Offloading(100, 2, MS, 500_000),
    ),
    _scenario(
        "no-chunks",
        "chunked prefill off",
        Settings(26, 16, 200, 10, 200, enable_chunked_prefill=False),
        Traffic(
            60,
            ((4, 60), (80, 180)),
            ((4, 40),),
            (0, 80 * MS),
            total_at_most=200,
            repeat_chance=0.3,
        ),
        Offloading(60, 2),
    ),
    _scenario(
        "ns-steps",
        "steps of a few ns, transfers of a few steps",
        Settings(
            20,
            16,
            64,
            6,
            256,
            step_cost_ns=StepCost(base=3, per_token=1, per_kv_token=0, per_request=2),
        ),
        Traffic(70, ((30, 150),), ((1, 4), (5, 40)), (0, 90), burst=(1, 2), repeat_chance=0.6),
        Offloading(60, 1, 5, 1),
    ),
)


def random_offloading_scenario(index: int, seed: int) -> OffloadingScenario:
    """random_scenario with prefix caching, more repetition, and a tier drawn at random."""
    drawn = random_scenario(index, seed)
    rng = random.Random(f"offloading-{seed}-{index}")
    settings, traffic = drawn.settings, drawn.traffic
    settings = Settings(**{**vars(settings), "enable_prefix_caching": True})
    traffic = Traffic(
        **{
            **vars(traffic),
            "repeat_chance": rng.choice((0.2, 0.5)),
            "turn_chance": rng.choice((0.0, 0.5)),
        }
    )
    step = settings.step_cost_ns.base
    factor = rng.choice((1, 1, 2, 3))
    offloading = Offloading(
        cpu_blocks=rng.choice((1, 3, 8, 20, 100, 1000)),
        block_size_factor=factor,
        latency_ns=rng.choice((0, step // 10, step, 10 * step)),
        per_token_ns=max(1, rng.choice((1, step // 200, step // 10))),
    )
    name = f"offloading-{drawn.name}"
    return OffloadingScenario(Scenario(name, drawn.about, settings, traffic), offloading)
