"""Generates workloads: lengths, arrivals, shared prefixes, conversations, sessions.

The same configuration gives the same workload, bit for bit. Every aspect has a random stream of its
own, so a change of the rate leaves lengths and tokens as they are, and so on.

A conversation is one growing text: a turn's prompt is the turn before it, prompt and answer, plus
new tokens. Turns of `multi_turn` come at times of their own (open loop); calls of `sessions` come
when the call before them has ended and its tool has run (closed loop). Tokens are made up only
where requests share them.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from profiles.errors import FieldError, InputError
from simulator.workloads.distributions import Arrivals, Lengths, LogNormal, Settings, Tokens
from simulator.workloads.workload import Workload

NS_PER_MS = 1_000_000
NOBODY = -1
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e9)]

# A new stream goes to the end, or every workload changes.
STREAMS = ("arrivals", "prompts", "outputs", "prefixes", "turns", "tools", "priorities", "tokens")

# Roughly what ShareGPT's conversations look like.
PROMPTS = Lengths(lognormal=LogNormal(median=350, sigma=0.9, min=4, max=4096))
OUTPUTS = Lengths(lognormal=LogNormal(median=180, sigma=0.9, min=4, max=2048))


class SharedPrefix(Settings):
    """Some requests begin with one of a few system prompts, in addition to their own tokens."""

    groups: Annotated[int, Field(ge=1, le=1 << 20)]
    tokens: Tokens
    share: Share = 1.0  # of the requests that begin a conversation


class MultiTurn(Settings):
    """Some requests continue an earlier conversation, picked at random."""

    share: Share  # less in effect, where nothing is left to continue
    distance: Annotated[int, Field(ge=1)] = 8  # requests since the turn that is continued, at least
    max_prompt_tokens: Tokens = 4096  # a conversation that would grow beyond this has ended


class Sessions(Settings):
    """All requests are calls of sessions; `num_requests` counts calls, the rate is of sessions."""

    calls: Lengths
    tool_ms: Lengths
    max_prompt_tokens: Tokens = 32768  # a session that would grow beyond this ends early


class GenerateConfig(Settings):
    num_requests: Annotated[int, Field(ge=1, le=50_000_000)]
    seed: Annotated[int, Field(ge=0)] = 0
    arrivals: Arrivals
    prompt_tokens: Lengths = PROMPTS  # without shared prefix and earlier turns
    output_tokens: Lengths = OUTPUTS
    shared_prefix: SharedPrefix | None = None
    multi_turn: MultiTurn | None = None
    sessions: Sessions | None = None
    priorities: Annotated[tuple[Weight, ...], Field(strict=False)] = (1.0,)  # of priority 0, 1, ...
    vocab_size: Annotated[int, Field(ge=2, le=1 << 31)] = 32_000

    @model_validator(mode="after")
    def _check(self) -> GenerateConfig:
        if self.multi_turn is not None and self.sessions is not None:
            raise ValueError("at most one of multi_turn and sessions")
        clients = self.arrivals.concurrency is not None
        if clients and (self.multi_turn is not None or self.sessions is not None):
            raise ValueError("neither multi_turn nor sessions beside arrivals in a closed_loop")
        if not sum(self.priorities) > 0:
            raise ValueError("priorities: weights that add up to more than 0")
        return self


def generate(config: GenerateConfig) -> Workload:
    n, source = config.num_requests, f"generate (seed {config.seed})"
    seeds = np.random.SeedSequence(config.seed).spawn(len(STREAMS))
    random = {
        name: np.random.Generator(np.random.PCG64(seed))
        for name, seed in zip(STREAMS, seeds, strict=True)
    }
    try:
        arrival_ns = config.arrivals.draw(random["arrivals"], n)
    except FieldError as error:
        raise InputError(source, error.field, error.value, error.expected) from None
    turns = _Turns(config, random)
    if config.multi_turn is not None:
        turns.continue_earlier(config.multi_turn, random["turns"])
    session_parent = np.full(n, NOBODY, np.int32)
    tool_ns = np.zeros(n, np.int64)
    if config.sessions is not None:
        session_of = turns.form_sessions(config.sessions, random["turns"])
        arrival_ns = arrival_ns[session_of]
        session_parent = np.array(turns.previous, np.int32)
        tool_ns = config.sessions.tool_ms.draw(random["tools"], n) * NS_PER_MS
        tool_ns[~np.array(turns.is_continued)] = 0
    elif config.arrivals.concurrency is not None:
        # A client's next request comes when its last has ended: the one so many places before it.
        session_parent = (np.arange(n) - config.arrivals.concurrency).clip(NOBODY).astype(np.int32)
    weights = np.array(config.priorities)
    priority = random["priorities"].choice(weights.size, n, p=weights / weights.sum())
    offsets, token_ids = turns.tokens(random["tokens"], config.vocab_size)
    return Workload(
        request_ids=[str(r) for r in range(n)],
        arrival_ns=arrival_ns,
        num_prompt_tokens=np.array(turns.prompts),
        num_output_tokens=np.array(turns.outputs),
        priority=priority[turns.firsts()].astype(np.int32),
        session_parent=session_parent,
        tool_ns=tool_ns,
        token_offsets=offsets,
        token_ids=token_ids,
        chunk_size=1,
        source=source,
    )


class _Turns:
    """Which request continues which, and what that makes of the prompts."""

    def __init__(self, config: GenerateConfig, random: dict[str, np.random.Generator]) -> None:
        n, prefix = config.num_requests, config.shared_prefix
        prompts = config.prompt_tokens.draw(random["prompts"], n)
        self.outputs: list[int] = config.output_tokens.draw(random["outputs"], n).tolist()
        self.previous = [NOBODY] * n
        self.is_continued = [False] * n
        self.num_groups, self.num_prefix_tokens = 0, 0
        groups = np.full(n, NOBODY)
        if prefix is not None:
            self.num_groups, self.num_prefix_tokens = prefix.groups, prefix.tokens
            has_prefix = random["prefixes"].random(n) < prefix.share
            groups = np.where(
                has_prefix, random["prefixes"].integers(prefix.groups, size=n), NOBODY
            )
        self.groups: list[int] = groups.tolist()
        self.new_tokens: list[int] = prompts.tolist()
        # As long as nobody continues anything, every request is a first turn.
        self.prompts: list[int] = (prompts + (groups != NOBODY) * self.num_prefix_tokens).tolist()

    def continue_earlier(self, config: MultiTurn, random: np.random.Generator) -> None:
        n = len(self.prompts)
        continues = (random.random(n) < config.share).tolist()
        picks = random.random(n).tolist()
        latest: list[int] = []  # turns that may be continued, one for each conversation
        for r in range(n):
            if r >= config.distance:
                latest.append(r - config.distance)
            if not continues[r] or not latest:
                continue
            i = int(picks[r] * len(latest))
            latest[i], latest[-1] = latest[-1], latest[i]
            self._continue(latest.pop(), r, config.max_prompt_tokens)

    def form_sessions(self, config: Sessions, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Make neighbours calls of the same session; return the session of each request."""
        n = len(self.prompts)
        calls = config.calls.draw(random, n).tolist()
        session_of, session, calls_left = np.zeros(n, np.int64), 0, calls[0] - 1
        for r in range(1, n):
            if calls_left > 0 and self._continue(r - 1, r, config.max_prompt_tokens):
                calls_left -= 1
            else:
                session += 1
                calls_left = calls[session] - 1
            session_of[r] = session
        return session_of

    def _continue(self, p: int, r: int, max_prompt_tokens: int) -> bool:
        """Make r the turn after p, unless the prompt gets too long."""
        prompt = self.prompts[p] + self.outputs[p] + self.new_tokens[r]
        if prompt > max_prompt_tokens:
            return False
        self.previous[r], self.is_continued[p] = p, True
        self.prompts[r], self.groups[r] = prompt, self.groups[p]
        return True

    def firsts(self) -> list[int]:
        """The first turn of each request's conversation."""
        firsts = list(range(len(self.previous)))
        for r, p in enumerate(self.previous):
            if p != NOBODY:
                firsts[r] = firsts[p]
        return firsts

    def tokens(
        self, random: np.random.Generator, vocab_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Offsets and token ids: what a later turn repeats, or others begin with as well."""
        spans = np.fromiter(map(self._num_shared_tokens, range(len(self.prompts))), np.int64)
        offsets = np.zeros(spans.size + 1, np.int64)
        np.cumsum(spans, out=offsets[1:])
        starts, ends = offsets[:-1].tolist(), offsets[1:].tolist()
        token_ids = np.empty(ends[-1], np.int32)
        shape = (self.num_groups, self.num_prefix_tokens)
        prefixes = random.integers(vocab_size, size=shape, dtype=np.int32)
        for r in np.flatnonzero(spans).tolist():
            at, p = starts[r], self.previous[r]
            known = token_ids[0:0]
            if p != NOBODY:
                known = token_ids[starts[p] : ends[p]]
            elif self.groups[r] != NOBODY:
                known = prefixes[self.groups[r]]
            new = at + known.size
            token_ids[at:new] = known
            if new < ends[r]:
                token_ids[new : ends[r]] = random.integers(
                    vocab_size, size=ends[r] - new, dtype=np.int32
                )
        return offsets, token_ids

    def _num_shared_tokens(self, r: int) -> int:
        p = self.previous[r]
        if self.is_continued[r]:
            return self.prompts[r] + self.outputs[r]
        if p != NOBODY:
            return self.prompts[p] + self.outputs[p]
        return self.num_prefix_tokens if self.groups[r] != NOBODY else 0
