"""What every rank runs of a step: rows of its stage one after the other, collectives and messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from profiles.errors import InputError
from simulator.network.config import NetworkConfig
from simulator.network.experts import Axis
from simulator.network.step_trace import Row
from simulator.network.trace import Collective, Compute, MemoryAccess, Node, Receive, Send, Trace


class Axes(NamedTuple):
    """The dimension of a network that each kind of parallel ranks is joined by; None: one rank.

    Dimensions that are none of them hold copies, which run the same.
    """

    tensor: int | None = 0
    pipeline: int | None = None
    data: int | None = None

    def ranks(self, network: NetworkConfig, axis: Axis) -> int:
        dim = getattr(self, axis)
        return 1 if dim is None else network.dimensions[dim].ranks

    def dims(self, network: NetworkConfig, over: Sequence[Axis]) -> tuple[int, ...]:
        """Those of two ranks or more."""
        found = (getattr(self, axis) for axis in over if self.ranks(network, axis) > 1)
        return tuple(sorted(found))


TENSOR_FIRST = Axes()


def axes_of(
    network: NetworkConfig,
    tensor: int,
    pipeline: int,
    data: int,
    source: str,
    network_source: str = "network",
) -> Axes:
    """Dimensions have to be tensor, pipeline and data parallel ranks; those of one may be left out.

    With tensor-parallel ranks alone further dimensions hold copies. Raises InputError.
    """
    if pipeline == data == 1:
        if tensor > 1 and network.dimensions[0].ranks != tensor:
            expected = f"engine.tensor_parallel_size ({tensor}) of {source}"
            given = network.dimensions[0].ranks
            raise InputError(network_source, "dimensions[0].ranks", given, expected)
        return TENSOR_FIRST
    left = [dimension.ranks for dimension in network.dimensions]
    found: list[int | None] = []
    for wanted in (tensor, pipeline, data):
        dim = len(network.dimensions) - len(left)
        there = bool(left) and left[0] == wanted
        if not there and wanted > 1:
            break
        found.append(dim if there else None)
        left = left[1:] if there else left
    if len(found) < 3 or left:
        ranks = [dimension.ranks for dimension in network.dimensions]
        needed = [
            f"{count} {name}"
            for count, name in ((tensor, "tensor"), (pipeline, "pipeline"), (data, "data"))
            if count > 1
        ]
        expected = f"{', '.join(needed)} parallel ranks in this order, as in {source}"
        raise InputError(network_source, "dimensions: ranks", ranks, expected)
    return Axes(*found)


def rows_trace(
    replicas: Sequence[Sequence[Row]],
    network: NetworkConfig,
    axes: Axes = TENSOR_FIRST,
    *,
    host: bool,
) -> Trace:
    """The rows of every data-parallel replica on their ranks.

    With `host` the token ids are loaded from remote memory first and the sampled ones stored last,
    as LLMServingSim's converter makes of a text trace. Raises InputError.
    """
    if host and network.remote_memory is None:
        raise InputError("network", "remote_memory", None, "the host's memory, to read tokens from")
    stages = axes.ranks(network, "pipeline")
    made: dict[tuple[int, int], tuple[Node, ...]] = {}
    ranks = []
    for rank in range(network.ranks):
        address = network.address(rank)
        stage = 0 if axes.pipeline is None else address[axes.pipeline]
        replica = 0 if axes.data is None else address[axes.data]
        if stages > 1 or (replica, stage) not in made:
            nodes = _stage(replicas[replica], stage, stages, rank, network, axes, host)
            made[replica, stage] = nodes
        ranks.append(made[replica, stage])
    return Trace(tuple(ranks))


def _stage(
    rows: Sequence[Row],
    stage: int,
    stages: int,
    rank: int,
    network: NetworkConfig,
    axes: Axes,
    host: bool,
) -> tuple[Node, ...]:
    """Hidden states come from the same rank of the stage before and go to that of the next one."""
    mine = [row for row in rows if row.stage == stage]
    nodes: list[Node] = []

    def after() -> tuple[int, ...]:
        return (len(nodes) - 1,) if nodes else ()

    def collective(name: str, kind: str, num_bytes: int, over: tuple[Axis, ...]) -> None:
        dims = axes.dims(network, over)
        if dims:
            given = dims if len(network.dimensions) > 1 else None
            nodes.append(Collective(f"{name}_{kind}", kind, num_bytes, given, after()))  # type: ignore[arg-type]

    distance = 1
    for dimension in network.dimensions[: axes.pipeline]:
        distance *= dimension.ranks
    if stage > 0:
        nodes.append(
            Receive(f"{mine[0].name}_recv", rank - distance, mine[0].input_bytes, stage - 1)
        )
    elif host:
        nodes.append(MemoryAccess(f"{mine[0].name}_input", "remote", mine[0].input_bytes))
    for row in mine:
        for exchange in row.before:
            collective(f"{row.name}_before", exchange.kind, exchange.num_bytes, exchange.over)
        nodes.append(Compute(row.name, row.ns, after()))
        for exchange in row.after:
            collective(f"{row.name}_after", exchange.kind, exchange.num_bytes, exchange.over)
        if row.collective:
            collective(row.name, row.collective, row.collective_bytes, ("tensor",))
    last = mine[-1]
    if stage < stages - 1:
        send = Send(f"{last.name}_send", rank + distance, last.output_bytes, stage, after())
        nodes.append(send)
    elif host:
        store = MemoryAccess(f"{last.name}_output", "remote", last.output_bytes, True, 0, after())
        nodes.append(store)
    return tuple(nodes)
