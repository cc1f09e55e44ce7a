"""LLMServingSim's text form of one step: three lines at the head, then a row a layer.

Read by splitting at blanks, so columns are aligned for people and always parted by one. Experts stand
between marker rows with what ranks exchange before and after them, once for each tensor-parallel rank of
a stage, as its converter deals them out.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.network.config import CollectiveKind, NetworkConfig
from simulator.network.experts import Axis, Exchange
from simulator.network.rank_trace import TENSOR_FIRST, Axes
from simulator.network.step_trace import Row

COLUMNS = (
    "Layername",
    "comp_time",
    "input_loc",
    "input_size",
    "weight_loc",
    "weight_size",
    "output_loc",
    "output_size",
    "comm_type",
    "comm_size",
    "misc",
)
WIDTHS = (30, *[15] * (len(COLUMNS) - 1))
COMM_NAMES: dict[CollectiveKind, str] = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "reduce_scatter": "REDUCESCATTER",
    "all_to_all": "ALLTOALL",
}


def text_trace(
    rows: Sequence[Row], network: NetworkConfig, axes: Axes = TENSOR_FIRST, node: int = 0
) -> str:
    """A colocated step of one replica. Host memory is that of `node`.

    Collectives name the dimensions they involve where there are several. The converter lets a collective
    follow computing alone: what comes after the exchange of experts gets a row of 1 ns.
    """
    lines: list[str] = []
    starts: dict[int, int] = {}
    for i, row in enumerate(rows):
        starts.setdefault(row.stage, len(lines))
        fields = (
            row.name,
            row.ns,
            f"REMOTE:{node}" if i == 0 else "LOCAL",
            row.input_bytes,
            "LOCAL",
            row.weight_bytes,
            f"REMOTE:{node}" if i == len(rows) - 1 else "LOCAL",
            row.output_bytes,
        )
        after = _spanning(row.after, network, axes)
        if not (before := _spanning(row.before, network, axes)):
            num_bytes = row.collective_bytes
            reduced = [Exchange(row.collective, num_bytes, ("tensor",))] if row.collective else []
            lines.append(_layer(fields, _spanning(reduced, network, axes), network, axes))
            continue
        for rank in range(axes.ranks(network, "tensor")):
            sent = _comm(before[:1] if rank == 0 else [], network, axes)
            lines += [f"EXPERT {rank} {sent}", _layer(fields, [], network, axes)]
        lines.append(f"EXPERT END {_comm(after[:1], network, axes)}")
        for exchange in after[1:]:
            hidden = row.output_bytes
            more = (f"{row.name}_rest", 1, "LOCAL", hidden, "LOCAL", 0, "LOCAL", hidden)
            lines.append(_layer(more, [exchange], network, axes))
    head = f"COLOCATED\t\tmodel_parallel_NPU_group: {len(starts)}"
    if len(starts) > 1:
        boundaries = ",".join(str(starts[stage]) for stage in sorted(starts)[1:])
        head += f"\t\tpp_stage_boundaries: {boundaries}"
    return "\n".join([head, str(len(lines)), _line(COLUMNS), *lines]) + "\n"


def _spanning(
    exchanges: Sequence[Exchange[int]], network: NetworkConfig, axes: Axes
) -> list[Exchange[int]]:
    """Those of more than one rank."""
    return [exchange for exchange in exchanges if axes.dims(network, exchange.over)]


def _comm(exchanges: Sequence[Exchange[int]], network: NetworkConfig, axes: Axes) -> str:
    """The columns comm_type and comm_size."""
    if not exchanges:
        return "NONE 0"
    (exchange,) = exchanges
    name = COMM_NAMES[exchange.kind] + _scope(exchange.over, network, axes)
    return f"{name} {exchange.num_bytes}"


def _scope(over: tuple[Axis, ...], network: NetworkConfig, axes: Axes) -> str:
    if len(network.dimensions) == 1:
        return ""
    dims = axes.dims(network, over)
    return ":" + ",".join("1" if dim in dims else "0" for dim in range(len(network.dimensions)))


def _layer(
    fields: tuple[object, ...],
    exchanges: Sequence[Exchange[int]],
    network: NetworkConfig,
    axes: Axes,
) -> str:
    comm = _comm(exchanges, network, axes).split()
    return _line([*map(str, fields), *comm, "NONE"])


def _line(fields: Sequence[str]) -> str:
    padded = (field.ljust(width) for field, width in zip(fields, WIDTHS, strict=True))
    return " ".join(padded).rstrip()
