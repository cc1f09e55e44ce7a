"""Which experts tokens wake, and the time of an expert block that was measured over both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.bundle import Floats, Ints, LayerTable, MoeTable
from profiles.provenance import INTERPOLATED, all_of

# Token counts at which a block is worked out: where the experts awake change fast, densely.
FINE = np.unique(np.concatenate([np.arange(1, 33), np.geomspace(32, 512, 17).astype(np.int64)]))


@dataclass(frozen=True)
class Routing:
    """A token chooses `per_token` of `experts`, every one as likely as another."""

    experts: int
    per_token: int

    def awake(self, tokens: Floats | Ints) -> Floats:
        """Experts that so many tokens wake in the mean: E (1 - (1 - k/E)^T)."""
        share = self.per_token / self.experts
        awake: Floats = self.experts * (1.0 - (1.0 - share) ** np.asarray(tokens, np.float64))
        return awake


def experts_by_tokens(table: MoeTable, routing: Routing) -> LayerTable:
    """The block over tokens, at the experts that so many tokens wake in the mean.

    Linear between measured numbers of experts, then between measured tokens; clamped outside.
    """
    samples = np.unique(table.tokens)
    keys = np.unique(np.concatenate([samples, FINE[: np.searchsorted(FINE, samples[-1])]]))
    awake = routing.awake(keys)
    by_sample = np.empty((len(samples), len(keys)))
    for row, tokens in enumerate(samples):
        here = table.tokens == tokens
        by_sample[row] = np.interp(awake, table.activated_experts[here], table.ns[here])
    ns = [np.interp(keys[i], samples, by_sample[:, i]) for i in range(len(keys))]
    whole = np.maximum(1, np.round(ns)).astype(np.int64)
    return LayerTable(keys.astype(np.int64), whole, all_of(INTERPOLATED, keys))
