"""What reads over the links of an engine take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.bundle import Ints
from simulator.placement.config import Memory, Placement
from simulator.placement.weights import LayerWeights


@dataclass(frozen=True)
class Links:
    """What reads of an engine's tensor-parallel ranks take."""

    placement: Placement
    ranks: int

    def ns(self, layer: LayerWeights) -> int:
        """One read of the layer by all ranks."""
        return read_ns(self.placement.memories[layer.place], layer.num_bytes, self.ranks)

    def rows_ns(self, layer: LayerWeights, row_bytes: int, rows: Ints) -> Ints:
        """As many rows of an embedding as there are tokens; each rank has its part of them."""
        memory = self.placement.memories[layer.place]
        most = layer.num_bytes * self.ranks
        together = np.minimum(rows * row_bytes, most)
        if memory.link == "per_rank":
            together = -(-together // self.ranks)
        ns: Ints = memory.latency_ns + (together / memory.bandwidth_gbps).astype(np.int64)
        return ns


def read_ns(memory: Memory, num_bytes: int, ranks: int) -> int:
    """One read of `num_bytes` by each of `ranks` tensor-parallel ranks."""
    together = num_bytes * (ranks if memory.link == "shared" else 1)
    return memory.latency_ns + int(together / memory.bandwidth_gbps)
