"""Links between ranks: one dimension or several, innermost first.

Numbers are bounded so that no time derived from them leaves 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from profiles.errors import FieldError, InputError, parse_model, read_yaml

Topology = Literal["Ring", "FullyConnected", "Switch"]
Implementation = Literal["ring", "direct", "halvingDoubling", "doubleBinaryTree"]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MAX_RANKS = 1024
MAX_DIMENSIONS = 4
MAX_BYTES = 1 << 40
"""Of one collective or one message."""

Nanoseconds = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
GibPerSecond = Annotated[float, Field(strict=True, ge=1e-3, le=1e9, allow_inf_nan=False)]
GbPerSecond = Annotated[float, Field(strict=True, ge=1, le=1e9, allow_inf_nan=False)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Dimension(Frozen):
    """`ranks` ranks joined by equal links.

    `bandwidth_gibps` is what one link carries in one direction, in 2^30 bytes a second (as
    ASTRA-Sim counts it), `latency_ns` what one hop takes.
    """

    topology: Topology = "FullyConnected"
    ranks: Annotated[int, Field(strict=True, ge=1, le=MAX_RANKS)]
    bandwidth_gibps: GibPerSecond
    latency_ns: Nanoseconds = 0.0

    @property
    def bytes_per_ns(self) -> float:
        return self.bandwidth_gibps * (1 << 30) / 1_000_000_000

    def hops(self, distance: int) -> int:
        """Links between two ranks whose numbers differ by `distance`."""
        if self.topology == "Ring":
            return min(distance, self.ranks - distance)
        return 1 if self.topology == "FullyConnected" else 2


class MemoryNode(Frozen):
    """Memory beside the ranks: an access takes latency + bytes / bandwidth.

    Bandwidth in 10^9 bytes a second. Accesses to one of `devices` wait for each other.
    """

    bandwidth_gbps: GbPerSecond
    latency_ns: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0
    devices: Annotated[int, Field(strict=True, ge=1, le=MAX_RANKS)] = 1

    def access_ns(self, num_bytes: int) -> int:
        return self.latency_ns + int(num_bytes / self.bandwidth_gbps)


class NetworkConfig(Frozen):
    """How ranks are joined and which algorithm a collective takes in each dimension.

    An implementation is one name for all dimensions or a list, one a dimension. `endpoint_delay_ns`
    is spent at a rank for every message, `local_mem_gbps` (10^9 bytes a second) is what adds up
    partial results. With `localBWAware` an all-reduce over several dimensions scatters inwards and
    gathers outwards; with `baseline` it runs whole in one dimension after the other.
    """

    dimensions: Annotated[tuple[Dimension, ...], Field(min_length=1, max_length=MAX_DIMENSIONS)]
    local_mem_gbps: GbPerSecond
    endpoint_delay_ns: Annotated[int, Field(strict=True, ge=0, le=10**6)] = 10
    collective_optimization: Literal["localBWAware", "baseline"] = "localBWAware"
    all_reduce: tuple[Implementation, ...] = ("ring",)
    all_gather: tuple[Implementation, ...] = ("ring",)
    reduce_scatter: tuple[Implementation, ...] = ("ring",)
    all_to_all: tuple[Implementation, ...] = ("ring",)
    remote_memory: MemoryNode | None = None
    """The host's memory. With it a step reads its tokens from there and writes the sampled ids."""
    cxl_memory: MemoryNode | None = None
    local_memory: MemoryNode | None = None
    """The ranks' own memory, where weights are read explicitly; accesses never wait."""

    @field_validator(*KINDS, mode="before")
    @classmethod
    def _one_for_all(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.ranks > MAX_RANKS:
            raise FieldError("dimensions", self.ranks, f"at most {MAX_RANKS} ranks in all")
        for kind in KINDS:
            given = getattr(self, kind)
            if len(given) not in (1, len(self.dimensions)):
                expected = (
                    f"one implementation, or one for each of {len(self.dimensions)} dimensions"
                )
                raise FieldError(kind, list(given), expected)
            for dim, dimension in enumerate(self.dimensions):
                self._runs(kind, self.implementation(kind, dim), dim, dimension.ranks)
        return self

    def _runs(self, kind: CollectiveKind, name: Implementation, dim: int, ranks: int) -> None:
        if name == "halvingDoubling" and kind == "all_to_all":
            raise FieldError(kind, name, "ring or direct")
        if name == "doubleBinaryTree" and kind != "all_reduce":
            raise FieldError(kind, name, "another one: it is an all-reduce only")
        if name in ("halvingDoubling", "doubleBinaryTree") and ranks & (ranks - 1):
            expected = (
                f"ring or direct, because dimension {dim} has {ranks} ranks, not a power of two"
            )
            raise FieldError(kind, name, expected)

    @property
    def ranks(self) -> int:
        return prod(dimension.ranks for dimension in self.dimensions)

    def implementation(self, kind: CollectiveKind, dim: int) -> Implementation:
        given: tuple[Implementation, ...] = getattr(self, kind)
        return given[dim] if len(given) > 1 else given[0]

    def address(self, rank: int) -> tuple[int, ...]:
        """Where `rank` is in each dimension; the innermost counts fastest."""
        place = []
        for dimension in self.dimensions:
            place.append(rank % dimension.ranks)
            rank //= dimension.ranks
        return tuple(place)

    def involved(self, dims: tuple[int, ...] | None) -> tuple[int, ...]:
        """`dims` checked and in order; None stands for all. Raises InputError."""
        if dims is None:
            return tuple(range(len(self.dimensions)))
        known = range(len(self.dimensions))
        if not dims or len(set(dims)) != len(dims) or any(dim not in known for dim in dims):
            expected = f"some of the {len(known)} dimensions (0 to {len(known) - 1}), each once"
            raise InputError("network", "dims", list(dims), expected)
        return tuple(sorted(dims))

    def group(self, rank: int, dims: tuple[int, ...]) -> tuple[int, ...]:
        """What the ranks of one collective over `dims` have in common: their other coordinates."""
        return tuple(at for dim, at in enumerate(self.address(rank)) if dim not in dims)


def load_network(path: Path) -> NetworkConfig:
    """Read a network description from YAML. Raises InputError."""
    return parse_model(NetworkConfig, read_yaml(path), path)


def fully_connected(
    ranks: Sequence[int],
    bandwidth_gibps: float | Sequence[float],
    latency_ns: float | Sequence[float],
    local_mem_gbps: float,
) -> NetworkConfig:
    """The network LLMServingSim makes of a cluster: direct links, rings over them, 10 ns a message.

    `ranks` are those of each dimension, innermost first: [tp], [tp, dp] or [tp, pp, dp]. Link
    bandwidth and latency are one number for all, or one a dimension. Raises InputError.
    """
    columns: dict[str, list[float]] = {}
    for name, value in (("bandwidth_gibps", bandwidth_gibps), ("latency_ns", latency_ns)):
        given = [value] * len(ranks) if isinstance(value, int | float) else list(value)
        if len(given) != len(ranks):
            raise InputError(
                "network", name, given, f"one number, or {len(ranks)}, one a dimension"
            )
        columns[name] = [float(number) for number in given]
    dimensions = [
        {"ranks": n, "bandwidth_gibps": bandwidth, "latency_ns": latency}
        for n, bandwidth, latency in zip(ranks, *columns.values(), strict=True)
    ]
    data = {"dimensions": dimensions, "local_mem_gbps": float(local_mem_gbps)}
    return parse_model(NetworkConfig, data, "network")
