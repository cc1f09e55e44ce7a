"""Small workloads and engines for tests, and what the engine did in a form that can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from orchestrator.nightly.scenarios import events_by_step
from simulator.build import EngineSettings, build_engine
from simulator.core.latency import Latency
from simulator.core.state import Engine
from simulator.prefix import block_hashes
from simulator.progress import run_to_end
from simulator.step_tables import linear_law
from simulator.workloads import Workload

NAMES = "abcdefghijklmnopqrstuvwxyz"
STEP_NS = 1000


@dataclass(frozen=True)
class Ask:
    """A request for `output` tokens after `prompt` tokens."""

    prompt: int
    output: int = 1
    arrival: int = 0
    priority: int = 0
    tokens: Sequence[int] = ()  # its leading ones; all others are nobody else's
    name: str | None = None  # a letter by default: a, b, ...
    after: int = -1  # the call before it in its session
    tool: int = 0
    most: int | None = None  # its max_tokens, where that is more than it gets
    wave: int | None = None  # counted from 0; of all requests or of none


def make_workload(*asks: Ask) -> Workload:
    return Workload(
        request_ids=[ask.name or NAMES[r] for r, ask in enumerate(asks)],
        arrival_ns=np.array([ask.arrival for ask in asks]),
        num_prompt_tokens=np.array([ask.prompt for ask in asks]),
        num_output_tokens=np.array([ask.output for ask in asks]),
        priority=np.array([ask.priority for ask in asks]),
        session_parent=np.array([ask.after for ask in asks]),
        tool_ns=np.array([ask.tool for ask in asks]),
        token_offsets=np.cumsum([0, *(len(ask.tokens) for ask in asks)]),
        token_ids=np.fromiter(chain.from_iterable(ask.tokens for ask in asks), np.int32),
        chunk_size=1,
        source="made",
        max_tokens=np.array([ask.most or ask.output for ask in asks])
        if any(ask.most for ask in asks)
        else None,
        wave=np.array([ask.wave for ask in asks]) if asks[0].wave is not None else None,
    )


def make_settings(**changes: Any) -> EngineSettings:
    """A pool of ten blocks of 16 tokens, and limits that are no limits."""
    return EngineSettings(**{"num_gpu_blocks": 11, "max_model_len": 1000} | changes)


def make_engine(
    workload: Workload, settings: EngineSettings, latency: Latency | None = None
) -> tuple[Engine, dict[int, str]]:
    """The engine before its first step. A step takes STEP_NS unless `latency` says otherwise."""
    hashes = block_hashes(workload, settings.block_size)
    return build_engine(workload, hashes, settings, latency or linear_law(STEP_NS, 0, 0, 0))


@dataclass(frozen=True)
class Played:
    """A simulation that has ended."""

    workload: Workload
    engine: Engine
    refused: dict[int, str]

    @property
    def steps(self) -> list[str]:
        """A line a step, like "a:1 +b:30 -c done:a".

        a:1 computes one token, +b:30 is admitted for the first time with 30, ^b:30 once more after
        it was preempted; -c is preempted; done:a is finished by the output of this step.
        """
        return [step_line(step) for step in events_by_step(self.engine, self.workload)]

    def of(self, name: str) -> Any:
        """The record of a request."""
        return self.engine.kv.requests[self.workload.request_ids.index(name)]

    @property
    def counters(self) -> Any:
        return self.engine.queues.counters[0]

    @property
    def pool(self) -> Any:
        return self.engine.kv.pool[0]

    @property
    def logged_steps(self) -> Any:
        return self.engine.log.steps[: self.counters.num_steps]


def step_line(step: dict[str, Any]) -> str:
    mark = dict.fromkeys(step["new"], "+") | dict.fromkeys(step["resumed"], "^")
    words = [f"{mark.get(name, '')}{name}:{count}" for name, (count, _) in step["sched"].items()]
    words += [f"-{name}" for name in step["preempted"]]
    words += [f"done:{name}" for name in step["finished"]]
    return " ".join(words)


def play(*asks: Ask, latency: Latency | None = None, check: bool = True, **changes: Any) -> Played:
    """Simulate to the end, with events logged and the invariants checked after every step."""
    workload = make_workload(*asks)
    settings = make_settings(**{"log_events": True} | changes)
    engine, refused = make_engine(workload, settings, latency)
    return Played(workload, run_to_end(engine, workload, check=check), refused)
