"""The links that join the ranks of a model: of one instance, or of a data-parallel group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from profiles.errors import MISSING, InputError
from simulator.network.config import (
    Dimension,
    Frozen,
    GbPerSecond,
    GibPerSecond,
    Implementation,
    Nanoseconds,
    NetworkConfig,
    Topology,
)

TENSOR, PIPELINE, DATA = range(
    3
)  # dimensions of a group's network, innermost first: vLLM's rank order


class Link(Frozen):
    """One direction of a link: 2^30 bytes a second, and ns a hop."""

    bandwidth_gibps: GibPerSecond
    latency_ns: Nanoseconds = 0.0
    topology: Topology = "FullyConnected"


class Links(Frozen):
    """What joins ranks of one stage (tensor), stages (pipeline) and data-parallel replicas (data).

    A link that is not given is as the one before it. Collectives are costed as ASTRA-Sim does;
    `local_mem_gbps` (10^9 bytes a second) adds up partial results, None: the card's memory bandwidth.
    """

    tensor: Link
    pipeline: Link | None = None
    data: Link | None = None
    endpoint_delay_ns: Annotated[int, Field(strict=True, ge=0, le=10**6)] = 10
    local_mem_gbps: GbPerSecond | None = None
    all_reduce: Implementation = "ring"
    all_gather: Implementation = "ring"
    reduce_scatter: Implementation = "ring"
    embedding_all_reduce: Annotated[bool, Field(strict=True)] = True
    """vLLM's ranks add up after the embedding too; LLMServingSim's do not."""

    def network(
        self, ranks: tuple[int, int, int], memory_bandwidth_gbps: float | None, source: str | Path
    ) -> NetworkConfig:
        """Of (tensor, pipeline, data) parallel ranks. Raises InputError."""
        local = self.local_mem_gbps or memory_bandwidth_gbps
        if local is None:
            expected = "a value, or card.memory_bandwidth_gbps: all-reduces add up in memory"
            raise InputError(source, "links.local_mem_gbps", MISSING, expected)
        pipeline = self.pipeline or self.tensor
        links = (self.tensor, pipeline, self.data or pipeline)
        return NetworkConfig(
            dimensions=tuple(
                Dimension(ranks=count, **dict(link))
                for count, link in zip(ranks, links, strict=True)
            ),
            local_mem_gbps=local,
            endpoint_delay_ns=self.endpoint_delay_ns,
            all_reduce=(self.all_reduce,),
            all_gather=(self.all_gather,),
            reduce_scatter=(self.reduce_scatter,),
        )
