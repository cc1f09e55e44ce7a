"""The all-reduce between tensor-parallel ranks, by tokens, and NCCL's collectives, by bytes.

vLLM's own all-reduce dispatch was measured: its custom kernel up to 8 MB where the cards are linked,
NCCL above and where they are not. The measurement under CUDA graphs is taken, as for every other kernel;
a system that was measured without graphs only has some 20 us a call in it. A degree that dispatch was
not measured at is NCCL's table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from profiles.aiconfigurator.gemm import NS_PER_MS, whole_ns
from profiles.aiconfigurator.source import Columns, System, read_columns, values_of
from profiles.bundle import Ints, LayerTable
from profiles.provenance import INTERPOLATED, MEASURED

NcclKind = Literal["all_reduce", "all_gather", "reduce_scatter"]
HALF_BYTES = 2

TOKENS = np.array(
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768], np.int64
)


def all_reduce_table(system: System, hidden_size: int, ranks: int) -> LayerTable:
    """One all-reduce of a bfloat16 hidden state. Raises InputError if the degree is not measured."""
    rows = _rows(system, ranks)
    size, index = np.unique(rows["message_size"], return_inverse=True)
    ns = np.bincount(index, rows["latency"]) / np.bincount(index) * NS_PER_MS
    elements = TOKENS * hidden_size
    source = np.where(np.isin(elements, size), MEASURED, INTERPOLATED).astype(np.uint8)
    found = np.interp(elements, size, ns)
    beyond = elements > size[-1]
    found[beyond] = ns[-1] * elements[beyond] / size[-1]
    return LayerTable(TOKENS, whole_ns(found), source)


def nccl_ns(system: System, kind: NcclKind, ranks: int, num_bytes: Ints) -> Ints:
    """One collective of `ranks` ranks, by the bytes of its whole buffer: what every rank holds after
    an all-gather, or before a reduce-scatter. NCCL's benchmarks, which were run, count it so.

    Linear between measured sizes, as the smallest below, in proportion above; no bytes take no time.
    Raises InputError if the degree is not measured.
    """
    rows = _nccl_rows(system, ranks, kind)
    if rows is None:
        degrees = {n for path in system.nccl_paths() for n in values_of(path, "num_gpus")}
        known = ", ".join(map(str, sorted(degrees))) or "none"
        expected = f"a system with NCCL's {kind} of {ranks} ranks; {system.name} has {known}"
        raise system.place.error("system", system.name, expected)
    order = np.argsort(rows["message_size"])
    size = rows["message_size"][order] * HALF_BYTES
    ns = rows["latency"][order] * NS_PER_MS
    found = np.interp(num_bytes, size, ns)
    beyond = num_bytes > size[-1]
    found[beyond] = ns[-1] * num_bytes[beyond] / size[-1]
    return np.where(num_bytes > 0, whole_ns(found), 0)


def collective_paths(system: System) -> list[Path]:
    """Every table the all-reduce may come from."""
    return [system.path("custom_allreduce"), *system.nccl_paths()]


def _rows(system: System, ranks: int) -> Columns:
    path = system.path("custom_allreduce")
    rows = read_columns(path, ("message_size", "latency", "backend"), num_gpus=ranks)
    if len(rows):
        graph = rows["backend"] == "vllm_graph"
        return rows.where(graph) if graph.any() else rows
    nccl = _nccl_rows(system, ranks, "all_reduce")
    if nccl is not None:
        return nccl
    degrees = {n for table in (path, *system.nccl_paths()) for n in values_of(table, "num_gpus")}
    known = ", ".join(map(str, sorted({1} | degrees)))
    expected = f"one of {known}, the degrees whose all-reduce is measured on {system.name}"
    raise system.place.error_at("engine.tensor_parallel_size", ranks, expected)


def _nccl_rows(system: System, ranks: int, kind: NcclKind) -> Columns | None:
    """The newest table that has the collective at this degree; sizes in elements of two bytes."""
    for path in system.nccl_paths():
        equal = {"op_name": kind, "nccl_dtype": "half"}
        rows = read_columns(path, ("message_size", "latency"), num_gpus=ranks, **equal)
        if len(rows):
            return rows
    return None
