"""LLMServingSim's text form of one step: three lines at the head, then a row a layer.

Read by splitting at blanks, so columns are aligned for people and always parted by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.network.config import CollectiveKind
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


def text_trace(rows: Sequence[Row], num_dimensions: int = 1, node: int = 0) -> str:
    """A colocated step in one pipeline stage. Host memory is that of `node`.

    Collectives over the innermost of several dimensions name it.
    """
    host = f"REMOTE:{node}"
    involved = ":" + ",".join("1" if dim == 0 else "0" for dim in range(num_dimensions))
    scope = involved if num_dimensions > 1 else ""
    lines = ["COLOCATED\t\tmodel_parallel_NPU_group: 1", str(len(rows)), _line(COLUMNS)]
    for i, row in enumerate(rows):
        fields = (
            row.name,
            row.ns,
            host if i == 0 else "LOCAL",
            row.input_bytes,
            "LOCAL",
            row.weight_bytes,
            host if i == len(rows) - 1 else "LOCAL",
            row.output_bytes,
            COMM_NAMES[row.collective] + scope if row.collective else "NONE",
            row.collective_bytes,
            "NONE",
        )
        lines.append(_line([str(field) for field in fields]))
    return "\n".join(lines) + "\n"


def _line(fields: Sequence[str]) -> str:
    padded = (field.ljust(width) for field, width in zip(fields, WIDTHS, strict=True))
    return " ".join(padded).rstrip()
