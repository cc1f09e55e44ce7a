"""What is recorded from vLLM's scheduler: settings and traffic, as data. Needs no vLLM."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Range = tuple[int, int]  # both ends included


@dataclass(frozen=True)
class StepCost:
    """What a step takes, in ns."""

    base: int = 7_000_000
    per_token: int = 150_000
    per_kv_token: int = 500
    per_request: int = 400_000


@dataclass(frozen=True)
class Settings:
    """vLLM's settings of one engine, under vLLM's names."""

    num_gpu_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    step_cost_ns: StepCost = field(default_factory=StepCost)

    def as_config(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Settings:
        values = {name: config[name] for name in cls.__dataclass_fields__}
        values["step_cost_ns"] = StepCost(**config["step_cost_ns"])
        return cls(**values)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def refuses(self, request: Request) -> bool:
        """Whether the request can never be served: too long a prompt, or more than the pool holds.

        The last token of a request is never computed, so it needs no slot. Block 0 is never
        handed out.
        """
        prompt = len(request.input_tok_ids)
        if prompt >= self.max_model_len:
            return True
        total = min(prompt + len(request.output_tok_ids), self.max_model_len)
        return self.blocks_for(total - 1) > self.num_gpu_blocks - 1


@dataclass(frozen=True)
class Request:
    request_id: str
    arrival_time_ns: int
    priority: int
    input_tok_ids: list[int]
    output_tok_ids: list[int]

    def as_row(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "arrival_time_ns": self.arrival_time_ns,
            "input_toks": len(self.input_tok_ids),
            "output_toks": len(self.output_tok_ids),
            "priority": self.priority,
            "input_tok_ids": self.input_tok_ids,
            "output_tok_ids": self.output_tok_ids,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Request:
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Traffic:
    """How requests are drawn. A length comes from one of the given ranges, each as likely."""

    count: int
    prompt_tokens: tuple[Range, ...]
    output_tokens: tuple[Range, ...]
    gap_ns: Range  # between one burst and the next
    burst: Range = (1, 1)  # requests that arrive at the same ns
    prompt_multiple: int = 1  # prompts are rounded up to a multiple of this
    prefixes: int = 0  # how many shared prefixes there are
    prefix_tokens: Range = (0, 0)
    prefix_chance: float = 0.8
    repeat_chance: float = 0.0  # the same prompt as one of the last few requests
    turn_chance: float = 0.0  # an earlier request, its answer, then new tokens
    total_at_most: int = 0  # cut prompt + output to this many tokens; 0: no cut
    priorities: tuple[int, ...] = (0,)
    vocabulary: int = 10  # few token ids compress well; blocks of 8 still differ by content


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    settings: Settings
    traffic: Traffic
    seed: int = 1


def draw_requests(scenario: Scenario) -> list[Request]:
    """The requests of a scenario in order of arrival; the same for ever for one name and seed."""
    traffic = scenario.traffic
    rng = random.Random(f"{scenario.name}/{scenario.seed}")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(traffic.vocabulary) for _ in range(count)]

    def length(ranges: tuple[Range, ...]) -> int:
        return rng.randint(*rng.choice(ranges))

    prefixes = [tokens(rng.randint(*traffic.prefix_tokens)) for _ in range(traffic.prefixes)]
    requests: list[Request] = []
    now = left_in_burst = 0
    for index in range(traffic.count):
        if left_in_burst == 0:
            now += rng.randint(*traffic.gap_ns)
            left_in_burst = rng.randint(*traffic.burst)
        left_in_burst -= 1
        if requests and rng.random() < traffic.repeat_chance:
            prompt = list(rng.choice(requests[-6:]).input_tok_ids)
        elif requests and rng.random() < traffic.turn_chance:
            earlier = rng.choice(requests)
            prompt = earlier.input_tok_ids + earlier.output_tok_ids
            prompt = prompt + tokens(length(traffic.prompt_tokens))
        else:
            prompt = []
            if prefixes and rng.random() < traffic.prefix_chance:
                prompt = list(rng.choice(prefixes))
            prompt = prompt + tokens(length(traffic.prompt_tokens))
            prompt = prompt + tokens(-len(prompt) % traffic.prompt_multiple)
        output = tokens(length(traffic.output_tokens))
        if traffic.total_at_most:
            prompt = prompt[: traffic.total_at_most - 1]
            output = output[: traffic.total_at_most - len(prompt)]
        priority = rng.choice(traffic.priorities)
        requests.append(Request(f"req-{index}", now, priority, prompt, output))
    return requests


MS = 1_000_000
NS_STEPS = StepCost(base=1, per_token=0, per_kv_token=0, per_request=0)
ONLY_BASE = StepCost(base=5 * MS, per_token=0, per_kv_token=0, per_request=0)
FEW_NS = StepCost(base=3, per_token=1, per_kv_token=0, per_request=2)
ONLY_KV = StepCost(base=1, per_token=0, per_kv_token=900, per_request=0)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "block-1",
        "blocks of one token: every token is a full block, ten token ids make chance hits",
        Settings(150, 1, 64, 8, 128),
        Traffic(40, ((1, 40), (30, 60)), ((1, 50),), (0, 120 * MS), repeat_chance=0.15),
    ),
    Scenario(
        "block-8",
        "small blocks, shared prefixes that end inside a block",
        Settings(60, 8, 96, 8, 256),
        Traffic(50, ((4, 90),), ((4, 60),), (0, 160 * MS), prefixes=3, prefix_tokens=(20, 60)),
    ),
    Scenario(
        "block-48",
        "a block size that is no power of two",
        Settings(24, 48, 200, 8, 600),
        Traffic(45, ((10, 300),), ((10, 80),), (0, 300 * MS), prefixes=3, prefix_tokens=(60, 150)),
    ),
    Scenario(
        "exact-pool",
        "the pool holds the largest request and not one block more: 129 tokens, 128 slots",
        Settings(9, 16, 64, 8, 256),
        Traffic(
            28,
            ((60, 120), (5, 30)),
            ((30, 120),),
            (0, 150 * MS),
            repeat_chance=0.2,
            total_at_most=129,
        ),
    ),
    Scenario(
        "exact-pool-no-isl",
        "as exact-pool, admitted on the first chunk alone: long prompts drive each other out",
        Settings(9, 16, 48, 8, 256, scheduler_reserve_full_isl=False),
        Traffic(
            40,
            ((60, 120), (5, 30)),
            ((5, 70),),
            (0, 150 * MS),
            burst=(1, 4),
            repeat_chance=0.2,
            total_at_most=129,
        ),
    ),
    Scenario(
        "exact-pool-priority",
        "as exact-pool, by priority, waves of equal arrival times",
        Settings(9, 16, 64, 8, 256, policy="priority"),
        Traffic(
            30,
            ((60, 120), (5, 30)),
            ((10, 80),),
            (0, 400 * MS),
            burst=(2, 5),
            total_at_most=129,
            priorities=(0, 1, 2),
        ),
    ),
    Scenario(
        "burst",
        "twenty at once, then nothing, then twenty",
        Settings(70, 16, 256, 12, 512),
        Traffic(60, ((10, 160),), ((4, 60),), (1500 * MS, 2500 * MS), burst=(20, 20)),
    ),
    Scenario(
        "tied-priority",
        "equal priority and arrival: the queue orders by id as text (req-10 before req-2), "
        "preemption takes the first of the running ones",
        Settings(32, 16, 128, 10, 256, policy="priority"),
        Traffic(
            48, ((8, 60),), ((20, 70),), (600 * MS, 1500 * MS), burst=(12, 16), priorities=(0, 0, 1)
        ),
    ),
    Scenario(
        "urgent-late",
        "negative and positive priorities, the urgent ones come into a full pool",
        Settings(40, 16, 128, 8, 400, policy="priority"),
        Traffic(
            50,
            ((10, 150),),
            ((20, 90),),
            (0, 150 * MS),
            priorities=(-2, 0, 1, 5),
            prefixes=2,
            prefix_tokens=(32, 50),
        ),
    ),
    Scenario(
        "priority-threshold",
        "priority, heavy preemption, long prompts in chunks of 40",
        Settings(34, 16, 256, 10, 512, policy="priority", long_prefill_token_threshold=40),
        Traffic(
            36,
            ((20, 60), (120, 260)),
            ((20, 100),),
            (0, 200 * MS),
            burst=(1, 3),
            priorities=(0, 1, 2),
        ),
    ),
    Scenario(
        "one-token",
        "every request ends with its first token",
        Settings(60, 16, 128, 8, 256),
        Traffic(70, ((1, 200),), ((1, 1),), (0, 24 * MS), repeat_chance=0.3),
    ),
    Scenario(
        "one-token-mixed",
        "single-token requests between long ones",
        Settings(36, 16, 96, 8, 300),
        Traffic(60, ((1, 100),), ((1, 1), (1, 2), (40, 120)), (0, 90 * MS), repeat_chance=0.1),
    ),
    Scenario(
        "aligned-prompts",
        "prompts of whole blocks, many of them repeated: the last block is computed again",
        Settings(40, 16, 160, 8, 400),
        Traffic(
            60,
            ((16, 160),),
            ((1, 40),),
            (0, 120 * MS),
            prompt_multiple=16,
            repeat_chance=0.4,
            prefixes=2,
            prefix_tokens=(32, 32),
            prefix_chance=0.5,
        ),
    ),
    Scenario(
        "identical-together",
        "the same prompts side by side: one hash cached in several blocks, hits on free blocks",
        Settings(32, 16, 192, 8, 320),
        Traffic(
            64, ((48, 150),), ((2, 40),), (200 * MS, 700 * MS), burst=(3, 7), repeat_chance=0.7
        ),
    ),
    Scenario(
        "over-length",
        "prompt + output beyond max_model_len, prompts up to max_model_len - 1",
        Settings(30, 16, 128, 8, 160),
        Traffic(
            45,
            ((20, 100), (150, 159), (159, 159)),
            ((1, 30), (100, 300)),
            (0, 140 * MS),
            repeat_chance=0.15,
        ),
    ),
    Scenario(
        "one-seat",
        "max_num_seqs 1",
        Settings(20, 16, 100, 1, 256),
        Traffic(25, ((10, 180),), ((1, 30),), (0, 250 * MS), repeat_chance=0.3),
    ),
    Scenario(
        "few-seats",
        "three seats and a long queue; in a queue by priority",
        Settings(60, 16, 128, 3, 256, policy="priority"),
        Traffic(50, ((10, 150),), ((5, 40),), (0, 60 * MS), burst=(1, 6), priorities=(0, 1)),
    ),
    Scenario(
        "small-budget",
        "a token budget far below the prompts: many steps a prompt, decodes first",
        Settings(110, 16, 24, 12, 512),
        Traffic(40, ((60, 300),), ((5, 50),), (0, 150 * MS), prefixes=2, prefix_tokens=(64, 90)),
    ),
    Scenario(
        "budget-of-seats",
        "a token budget equal to max_num_seqs: running requests leave the last ones none",
        Settings(64, 16, 6, 6, 256),
        Traffic(30, ((3, 50),), ((10, 60),), (0, 120 * MS)),
    ),
    Scenario(
        "no-chunks",
        "chunked prefill off: a prompt larger than what is left of the budget ends admission",
        Settings(50, 16, 200, 10, 200, enable_chunked_prefill=False),
        Traffic(60, ((4, 60), (80, 180)), ((4, 40),), (0, 80 * MS), total_at_most=200),
    ),
    Scenario(
        "no-chunks-threshold",
        "chunked prefill off and a threshold: the threshold still cuts prompts",
        Settings(
            40, 16, 200, 8, 200, enable_chunked_prefill=False, long_prefill_token_threshold=48
        ),
        Traffic(50, ((4, 60), (80, 180)), ((4, 50),), (0, 100 * MS), total_at_most=200),
    ),
    Scenario(
        "no-cache-priority",
        "prefix caching off, by priority, under pressure",
        Settings(33, 16, 128, 10, 320, policy="priority", enable_prefix_caching=False),
        Traffic(
            45,
            ((10, 120),),
            ((10, 90),),
            (0, 140 * MS),
            burst=(1, 3),
            repeat_chance=0.3,
            priorities=(0, 1, 2),
        ),
    ),
    Scenario(
        "no-isl-priority",
        "admitted on the first chunk alone, by priority",
        Settings(33, 16, 64, 10, 320, policy="priority", scheduler_reserve_full_isl=False),
        Traffic(
            45,
            ((10, 60), (100, 250)),
            ((10, 60),),
            (0, 200 * MS),
            burst=(1, 3),
            repeat_chance=0.2,
            priorities=(0, 1, 2),
        ),
    ),
    Scenario(
        "priority-small-budget",
        "a preempted request gives its share of the token budget back to the rest of the step",
        Settings(26, 16, 20, 10, 320, policy="priority"),
        Traffic(
            36,
            ((10, 60), (60, 150)),
            ((20, 70),),
            (0, 200 * MS),
            burst=(1, 3),
            priorities=(0, 1, 2, 3),
        ),
    ),
    Scenario(
        "no-isl-threshold",
        "admitted on the first chunk alone, chunks of 20",
        Settings(
            30, 16, 128, 10, 400, scheduler_reserve_full_isl=False, long_prefill_token_threshold=20
        ),
        Traffic(45, ((10, 60), (100, 300)), ((10, 60),), (0, 200 * MS), repeat_chance=0.2),
    ),
    Scenario(
        "turns",
        "conversations that grow, in a pool that forgets some of them",
        Settings(48, 16, 256, 6, 600),
        Traffic(50, ((10, 70),), ((10, 50),), (0, 350 * MS), turn_chance=0.75, total_at_most=600),
    ),
    Scenario(
        "idle-gaps",
        "long silences: the engine jumps, the cache stays",
        Settings(40, 16, 128, 8, 300),
        Traffic(40, ((10, 150),), ((1, 30),), (0, 60_000 * MS), burst=(1, 3), repeat_chance=0.4),
    ),
    Scenario(
        "ns-steps",
        "steps of one ns, arrivals every few ns, short outputs",
        Settings(40, 16, 64, 6, 256, step_cost_ns=NS_STEPS),
        Traffic(70, ((1, 100),), ((1, 1), (1, 3), (5, 40)), (0, 9), burst=(1, 2)),
    ),
    Scenario(
        "few-ns",
        "steps of a few ns that grow with the batch; priority ties a ns apart",
        Settings(26, 16, 64, 8, 256, policy="priority", step_cost_ns=FEW_NS),
        Traffic(60, ((1, 100),), ((1, 4), (20, 80)), (0, 220), priorities=(0, 1)),
    ),
    Scenario(
        "only-base",
        "a step costs the same whatever is in it",
        Settings(40, 16, 512, 16, 512, step_cost_ns=ONLY_BASE),
        Traffic(50, ((10, 200),), ((5, 60),), (0, 60 * MS), prefixes=2, prefix_tokens=(48, 64)),
    ),
    Scenario(
        "only-kv",
        "a step costs what it reads, the first ones next to nothing",
        Settings(40, 16, 128, 8, 512, step_cost_ns=ONLY_KV),
        Traffic(50, ((10, 200),), ((5, 60),), (0, 6 * MS)),
    ),
    Scenario(
        "last-token-lost-seat",
        "short outputs under pressure: a request is preempted while its last token is in flight",
        Settings(22, 8, 64, 8, 128),
        Traffic(60, ((8, 60),), ((2, 12), (20, 50)), (0, 60 * MS), burst=(1, 4)),
        seed=9,
    ),
    Scenario(
        "last-token-lost-seat-priority",
        "the same by priority: preempting a running request that is not in the batch makes the "
        "step pass over another one",
        Settings(22, 8, 64, 12, 128, policy="priority"),
        Traffic(
            60,
            ((4, 40),),
            ((1, 6), (2, 6), (20, 50)),
            (0, 30 * MS),
            burst=(1, 4),
            priorities=(0, 1, 2, 3, 4, 5),
        ),
        seed=43,
    ),
    Scenario(
        "refused",
        "requests that can never fit, or whose prompt leaves no room for a token, are refused",
        Settings(17, 16, 128, 8, 300),
        Traffic(
            50,
            ((10, 100), (200, 280), (299, 320)),
            ((1, 30), (30, 90)),
            (0, 150 * MS),
            repeat_chance=0.1,
        ),
    ),
)


@dataclass(frozen=True)
class Probe:
    """Requests that end badly when nobody refuses them: (prompt, output, arrival, priority)."""

    about: str
    settings: Settings
    requests: tuple[tuple[int, int, int, int], ...]
    min_tokens: bool = False  # ask for exactly the output, as benchmarks do

    def draw(self) -> list[Request]:
        """No two prompts share anything."""
        return [
            Request(f"req-{i}", arrival, priority, [i * 1000 + k for k in range(prompt)], [1] * out)
            for i, (prompt, out, arrival, priority) in enumerate(self.requests)
        ]


SHORT = (20, 5, 1, 0)
TWO_LONG = ((100, 5, 0, 0), (100, 5, 0, 0))
POOL_128 = Settings(9, 16, 64, 8, 300)  # 8 blocks of 16 to hand out
TIED = replace(
    POOL_128, policy="priority", scheduler_reserve_full_isl=False, long_prefill_token_threshold=16
)

PROBES: tuple[Probe, ...] = (
    Probe("prompt larger than the pool", POOL_128, ((200, 5, 0, 0), SHORT)),
    Probe(
        "prompt larger than the pool, no isl gate",
        replace(POOL_128, scheduler_reserve_full_isl=False),
        ((200, 5, 0, 0), SHORT),
    ),
    Probe(
        "prompt larger than the pool, no isl gate, no cache",
        replace(POOL_128, scheduler_reserve_full_isl=False, enable_prefix_caching=False),
        ((200, 5, 0, 0), SHORT),
    ),
    Probe(
        "prompt larger than the pool, a more urgent one next to it",
        replace(POOL_128, policy="priority"),
        ((200, 5, 0, 1), (20, 5, 0, 0)),
    ),
    Probe("output outgrows the pool", POOL_128, ((100, 60, 0, 0), SHORT)),
    Probe("total - 1 fills the pool exactly", POOL_128, ((100, 29, 0, 0), SHORT)),
    Probe("one token more than that", POOL_128, ((100, 30, 0, 0), SHORT)),
    Probe(
        "prompt of max_model_len - 1", replace(POOL_128, num_gpu_blocks=40), ((299, 5, 0, 0), SHORT)
    ),
    Probe(
        "prompt of max_model_len, in chunks",
        replace(POOL_128, num_gpu_blocks=40),
        ((300, 5, 0, 0), SHORT),
    ),
    Probe(
        "prompt of max_model_len, in one step",
        replace(POOL_128, num_gpu_blocks=40, max_num_batched_tokens=512),
        ((300, 5, 0, 0), SHORT),
    ),
    Probe(
        "prompt beyond max_model_len, in one step",
        replace(POOL_128, num_gpu_blocks=40, max_num_batched_tokens=512),
        ((310, 5, 0, 0), SHORT),
    ),
    Probe(
        "total beyond max_model_len", replace(POOL_128, num_gpu_blocks=40), ((290, 50, 0, 0), SHORT)
    ),
    Probe(
        "total beyond max_model_len, min_tokens = max_tokens",
        replace(POOL_128, num_gpu_blocks=40),
        ((290, 50, 0, 0), SHORT),
        min_tokens=True,
    ),
    Probe("tied priorities, no isl gate, each fits alone", TIED, TWO_LONG),
    Probe(
        "tied priorities, no isl gate, no cache, each fits alone",
        replace(TIED, enable_prefix_caching=False),
        TWO_LONG,
    ),
    Probe(
        "tied priorities, no isl gate, chunks smaller than a block and out of step",
        replace(TIED, long_prefill_token_threshold=6, max_num_batched_tokens=9),
        TWO_LONG,
    ),
    Probe(
        "the same, a ns between the arrivals",
        replace(TIED, long_prefill_token_threshold=6, max_num_batched_tokens=9),
        ((100, 5, 0, 0), (100, 5, 1, 0)),
    ),
    Probe(
        "tied as before, no cache, a ns between the arrivals",
        replace(TIED, enable_prefix_caching=False),
        ((100, 5, 0, 0), (100, 5, 1, 0)),
    ),
    Probe(
        "tied as before, no cache, but with the isl gate",
        replace(TIED, enable_prefix_caching=False, scheduler_reserve_full_isl=True),
        TWO_LONG,
    ),
    Probe(
        "tied as before, no cache, but fcfs",
        replace(TIED, enable_prefix_caching=False, policy="fcfs"),
        TWO_LONG,
    ),
    Probe(
        "tied, with the isl gate, no cache: two that grow by their outputs",
        replace(TIED, enable_prefix_caching=False, scheduler_reserve_full_isl=True),
        ((60, 60, 0, 0), (60, 60, 0, 0)),
    ),
)


def random_scenario(index: int, seed: int) -> Scenario:
    """A small scenario with every setting drawn at random."""
    name = f"random-{seed}-{index:04d}"
    rng = random.Random(name)
    block_size = rng.choice((1, 2, 4, 8, 16, 16, 16, 24, 32, 48))
    max_model_len = rng.choice((40, 64, 100, 128, 200, 256, 384))
    chunked = rng.random() < 0.8
    budget = rng.choice((8, 16, 32, 50, 64, 128, 256, 512))
    if not chunked:
        budget = max(budget, max_model_len)
    longest = -(-(max_model_len - 1) // block_size)
    factor = rng.choice((0.6, 1.0, 1.0, 1.0, 1.2, 1.5, 2.0, 3.0, 6.0))
    base = rng.choice((1, 1, 3, 1000, 7 * MS))
    settings = Settings(
        num_gpu_blocks=1 + max(2, int(longest * factor)),
        block_size=block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 32))),
        max_model_len=max_model_len,
        enable_prefix_caching=rng.random() < 0.8,
        scheduler_reserve_full_isl=rng.random() < 0.6,
        policy=rng.choice(("fcfs", "priority")),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice((0, 0, 0, 1, 5, 16, 33)),
        step_cost_ns=StepCost(
            base=base,
            per_token=rng.choice((0, base // 50, 2)),
            per_kv_token=rng.choice((0, 0, base // 10_000, 1)),
            per_request=rng.choice((0, base // 20, 1)),
        ),
    )
    shortish = (1, max(1, max_model_len // 8))
    longish = (max_model_len // 4, max_model_len * 3 // 4)
    prompts = rng.choice(
        ((shortish,), (longish,), (shortish, longish), (shortish, (max_model_len - 2,) * 2))
    )
    outputs = rng.choice(
        (((1, 1),), (shortish,), (shortish, (1, 3)), (longish, (1, 4)), (longish,))
    )
    busy = base * rng.choice((1, 5, 20, 60))
    traffic = Traffic(
        count=rng.randint(20, 60),
        prompt_tokens=prompts,
        output_tokens=outputs,
        gap_ns=(0, max(1, busy)),
        burst=rng.choice(((1, 1), (1, 1), (1, 4), (5, 12), (20, 60))),
        prompt_multiple=rng.choice((1, 1, 1, block_size)),
        prefixes=rng.choice((0, 0, 1, 3)),
        prefix_tokens=(1, max_model_len // 4),
        repeat_chance=rng.choice((0.0, 0.0, 0.2, 0.6)),
        turn_chance=rng.choice((0.0, 0.0, 0.5)),
        total_at_most=rng.choice((max_model_len, max_model_len, 0)),
        priorities=rng.choice(((0,), (0, 1), (-1, 0, 3), tuple(range(20)))),
        vocabulary=rng.choice((2, 10, 30_000)),
    )
    return Scenario(name, "drawn at random", settings, traffic)
