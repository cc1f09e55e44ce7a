"""What ranks exchange around experts that they share, as vLLM's `all2all_backend` has them do.

Replicas alone make ranks exchange tokens: with one, all its ranks hold every token already, and add up
results as after any layer (`use_all2all_kernels` of vLLM's FusedMoEParallelConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from profiles.model import ModelConfig
from simulator.network.collectives import Ints
from simulator.network.config import CollectiveKind

Axis = Literal["tensor", "pipeline", "data"]
Backend = Literal[
    "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "mori", "nixl_ep"
]
GATHERED: Backend = "allgather_reducescatter"
"""All others send each token to the ranks of its experts, and results back."""
SEQUENCE_PARALLEL = ("qwen3_moe",)
"""Model types whose tensor-parallel ranks each take a part of the tokens to the experts where there are
replicas as well (`use_sequence_parallel_moe`); vLLM's Mixtral and PhiMoE do not."""

T = TypeVar("T", int, Ints)


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T]):
    """A collective over ranks of these axes; bytes as `collective_ns` counts them."""

    kind: CollectiveKind
    num_bytes: T
    over: tuple[Axis, ...]


@dataclass(frozen=True)
class ExpertRanks:
    """Who shares experts: `tensor` ranks of each of `replicas`."""

    replicas: int
    tensor: int
    backend: Backend = GATHERED

    def around(
        self, model: ModelConfig, element_bytes: int, share: T
    ) -> tuple[tuple[Exchange[T], ...], tuple[Exchange[T], ...]]:
        """What comes before and after a block's experts where each replica runs `share` tokens.

        Gathered are hidden states and router logits of all replicas; results are added up and
        scattered. Sent are the hidden states of every token and expert that it chose, evenly.
        """
        if self.replicas == 1:
            return (), ()
        hidden = model.hidden_size * element_bytes
        cut = self.tensor > 1 and model.model_type in SEQUENCE_PARALLEL
        own = -(-share // self.tensor) if cut else share
        if self.backend != GATHERED:
            sent = Exchange(
                "all_to_all", own * model.experts_per_token * hidden, ("tensor", "data")
            )
            before, after = [sent], [sent]
        else:
            over: tuple[Axis, ...] = ("tensor", "data") if cut else ("data",)
            ranks = self.replicas * (self.tensor if cut else 1)
            logits = model.experts * element_bytes
            before = [Exchange("all_gather", own * (hidden + logits), over)]
            after = [Exchange("reduce_scatter", ranks * own * hidden, over)]
            if self.tensor > 1 and not cut:
                after.append(Exchange("all_reduce", share * hidden, ("tensor",)))
        if cut:
            after.append(Exchange("all_gather", own * hidden, ("tensor",)))
        return tuple(before), tuple(after)
