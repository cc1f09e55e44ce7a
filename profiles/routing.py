"""Which experts tokens wake, on which rank, and the time of an expert block measured over both.

Experts are spread over expert-parallel ranks in contiguous, equal parts. The ranks run side by side, so
the slowest decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from profiles.bundle import Floats, Ints, LayerTable, MoeTable
from profiles.provenance import INTERPOLATED, all_of

# Token counts at which a block is worked out: where the experts awake change fast, densely.
FINE = np.unique(np.concatenate([np.arange(1, 33), np.geomspace(32, 512, 17).astype(np.int64)]))

Policy = Literal["uniform", "balanced", "round_robin", "random", "skewed", "given"]


@dataclass(frozen=True)
class Routing:
    """How tokens choose `per_token` of `experts`, which `ranks` ranks share.

    uniform: every expert as likely as another; counts are expected values.
    balanced: as even as whole numbers allow, the gate that training aims at.
    round_robin: token after token takes the next experts in turn.
    random: drawn once by `seed`.
    skewed: the i-th expert is as likely as 1 / i^skew, in an order drawn by `seed`; expected values.
    given: `shares` of the tokens' choices, one an expert; expected values.
    """

    experts: int
    per_token: int
    ranks: int = 1
    policy: Policy = "uniform"
    seed: int = 0
    skew: float = 1.0
    shares: tuple[float, ...] = ()

    def awake(self, tokens: Floats | Ints) -> Floats:
        """Of all experts, those that so many tokens wake in the mean: E (1 - (1 - k/E)^T)."""
        share = self.per_token / self.experts
        awake: Floats = self.experts * (1.0 - (1.0 - share) ** np.asarray(tokens, np.float64))
        return awake

    def loads(self, tokens: Ints) -> tuple[Floats, Floats]:
        """[rank, i]: tokens that reach a rank, and its experts that are awake, of tokens[i] in all."""
        if self.policy == "balanced":
            return self._balanced(tokens)
        if self.policy in ("round_robin", "random"):
            return self._counted(tokens)
        return self._expected(tokens)

    def _balanced(self, tokens: Ints) -> tuple[Floats, Floats]:
        pairs = tokens * self.per_token / self.ranks
        awake = np.minimum(np.rint(pairs), max(1, self.experts // self.ranks))
        reach = 1.0 - ((self.ranks - 1) / self.ranks) ** self.per_token if self.ranks > 1 else 1.0
        shape = (self.ranks, 1)
        return np.tile(np.rint(tokens * reach), shape), np.tile(awake, shape)

    def _expected(self, tokens: Ints) -> tuple[Floats, Floats]:
        chance = self._chances().reshape(self.ranks, -1)
        asleep = (1.0 - chance)[:, :, np.newaxis] ** tokens
        # Choices are taken as independent; with one rank a token has nowhere else to go.
        reach = 1.0 - np.prod(1.0 - chance, axis=1) if self.ranks > 1 else np.ones(1)
        return reach[:, np.newaxis] * tokens, (1.0 - asleep).sum(axis=1)

    def _chances(self) -> Floats:
        """That a token chooses an expert; they add up to `per_token`, none is above 1."""
        if self.policy == "uniform":
            return np.full(self.experts, self.per_token / self.experts)
        if self.policy == "given":
            weight = np.array(self.shares)
        else:
            weight = np.arange(1, self.experts + 1) ** -self.skew
            np.random.default_rng(self.seed).shuffle(weight)
        chance = np.zeros(self.experts)
        left = float(self.per_token)
        open_ = weight > 0
        while left > 1e-12 and open_.any():
            grown = chance + np.where(open_, weight / weight[open_].sum() * left, 0.0)
            chance = np.minimum(grown, 1.0)
            left = self.per_token - float(chance.sum())
            open_ &= chance < 1.0
        return chance

    def _counted(self, tokens: Ints) -> tuple[Floats, Floats]:
        """Token by token, as far as the largest number asked for."""
        most = int(tokens.max(initial=0))
        if self.policy == "round_robin":
            first = np.arange(most)[:, np.newaxis] * self.per_token
            chosen = (first + np.arange(self.per_token)) % self.experts
        else:
            drawn = np.random.default_rng(self.seed).random((most, self.experts))
            chosen = np.argsort(drawn, axis=1, kind="stable")[:, : self.per_token]
        owner = chosen // -(-self.experts // self.ranks)
        reached = (owner[:, :, np.newaxis] == np.arange(self.ranks)).any(axis=1)
        local = np.vstack([np.zeros(self.ranks), np.cumsum(reached, axis=0)])
        first_seen = np.full(self.experts, most)
        np.minimum.at(first_seen, chosen.ravel(), np.repeat(np.arange(most), self.per_token))
        awake = np.zeros((self.ranks, most + 1))
        for rank, seen in enumerate(first_seen.reshape(self.ranks, -1)):
            awake[rank] = np.searchsorted(np.sort(seen), np.arange(most + 1), side="left")
        return local.T[:, tokens], awake[:, tokens]


def expert_block_ns(table: MoeTable, routing: Routing, tokens: Ints) -> Ints:
    """The expert block of the slowest rank for each number of tokens; 0 for none."""
    local, awake = routing.loads(tokens)
    ns = np.stack([_look_up(table, *load) for load in zip(local, awake, strict=True)]).max(axis=0)
    return np.where(tokens > 0, np.maximum(1, np.rint(ns).astype(np.int64)), 0)


def _look_up(table: MoeTable, tokens: Floats, awake: Floats) -> Floats:
    """Linear in tokens at each measured number of experts awake, then in these.

    In this order, because few tokens are not measured with many experts awake, and it is the experts
    that the time depends on. Clamped outside, but for more tokens than measured: from the last two.
    """
    columns = np.unique(table.activated_experts)
    at_column = np.empty((len(columns), len(tokens)))
    for row, column in enumerate(columns):
        here = table.activated_experts == column
        at_column[row] = _along(tokens, table.tokens[here], table.ns[here])
    if len(columns) == 1:
        only: Floats = at_column[0]
        return only
    low = np.clip(np.searchsorted(columns, awake, side="right") - 1, 0, len(columns) - 2)
    t = np.clip((awake - columns[low]) / (columns[low + 1] - columns[low]), 0.0, 1.0)
    each = np.arange(len(tokens))
    found: Floats = at_column[low, each] + t * (at_column[low + 1, each] - at_column[low, each])
    return found


def _along(queries: Floats, keys: Ints, values: Floats) -> Floats:
    """Linear between samples, the first one below them, from the last two above."""
    inside: Floats = np.interp(queries, keys, values)
    if len(keys) == 1:
        return inside
    slope = (values[-1] - values[-2]) / (keys[-1] - keys[-2])
    beyond: Floats = np.maximum(0.0, queries - keys[-1])
    found: Floats = inside + slope * beyond
    return found


def experts_by_tokens(table: MoeTable, routing: Routing) -> LayerTable:
    """The block over every number of tokens up to the largest measured."""
    keys = np.arange(1, int(table.tokens.max()) + 1, dtype=np.int64)
    return LayerTable(keys, expert_block_ns(table, routing, keys), all_of(INTERPOLATED, keys))
