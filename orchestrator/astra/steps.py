"""A point's steps, ready to be written for ASTRA-Sim: of one instance, or of one data-parallel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.astra.layers import Split, split_of
from profiles.errors import InputError
from simulator.cluster.group import share_of
from simulator.config import Point, load_point
from simulator.network.config import Dimension, NetworkConfig
from simulator.network.dialect import Dialect
from simulator.network.experts import ExpertRanks
from simulator.network.rank_trace import TENSOR_FIRST, axes_of, rows_trace
from simulator.network.replay import replay
from simulator.network.step_trace import LayerShapes, Row, step_rows
from simulator.network.trace import Trace
from simulator.network_tables import network_of
from simulator.profile_tables import element_types
from simulator.simulation import Prepared, prepare, run
from simulator.step_layers import WHO_RAN, StepSize

ONE_RANK = NetworkConfig(
    dimensions=(Dimension(ranks=1, bandwidth_gibps=1.0),), local_mem_gbps=1000.0
)
"""Where no network is given: a rank on its own, which never sends anything."""


@dataclass(frozen=True)
class Step:
    """One step of a point: the rows of every replica, what every rank runs, and how long in process.

    `size` is of all replicas; `device_ns` what the step took in the simulation.
    """

    size: StepSize
    replicas: list[list[Row]]
    trace: Trace
    expected_ns: tuple[int, ...]


class PointSteps:
    """Simulates a point once and splits the steps that are asked for.

    With a network the collectives are modelled over it. Stages and replicas take the point's links
    where none is given. Raises InputError.
    """

    def __init__(
        self, path: Path, network: NetworkConfig | None, network_source: str = "network"
    ) -> None:
        point = load_point(path)
        self.path = path
        prepared = prepare(point, path)
        self.members = members_of(prepared, path)
        first = self.members[0].point
        if first.moved is not None:
            expected = "everything on the device: rows of a step read no other memory"
            raise InputError(path, "placement", first.moved.model_dump(), expected)
        self.point = first
        engine = first.engine
        replicas = len(self.members)
        self.modelled = network is not None
        if network is None and max(replicas, engine.pipeline_parallel_size) > 1:
            network, self.modelled = links_of(first, path, replicas), True
        self.network = network or ONE_RANK
        self.axes = TENSOR_FIRST
        if network is not None:
            degrees = engine.tensor_parallel_size, engine.pipeline_parallel_size, replicas
            self.axes = axes_of(network, *degrees, str(path), network_source)
        ranks = self.axes.ranks(self.network, "tensor")
        self.modelled &= ranks > 1
        self.split: Split = split_of(self.members, path)
        tensor = ranks if network else engine.tensor_parallel_size
        shared = replicas * tensor if engine.enable_expert_parallel else None
        self.shapes = shapes_of(first, tensor, shared, network_source)
        self.experts: ExpertRanks | None = None
        if first.model.is_moe and engine.enable_expert_parallel:
            self.experts = ExpertRanks(replicas, ranks, engine.all2all_backend)
        self.tables = tables_of(run(prepared, steps=True).steps, replicas)

    def __len__(self) -> int:
        return min(map(len, self.tables))

    def numbers(self) -> list[int]:
        """The steps that run something; one that only hands out results has no layers."""
        tokens = zip(*(table["num_tokens"].to_pylist() for table in self.tables), strict=False)
        return [step for step, counts in enumerate(tokens) if any(counts)]

    def step(self, number: int, dialect: Dialect) -> Step:
        """As `dialect` runs it: the fork reads tokens from the host where the network has one.

        Raises InputError for a step that is not there or runs nothing.
        """
        if not 0 <= number < len(self):
            raise InputError(
                self.path, "--step", number, f"a step of the run, 0 to {len(self) - 1}"
            )
        sizes = [StepSize.of(table.slice(number, 1).to_pylist()[0]) for table in self.tables]
        if not any(size.num_tokens for size in sizes):
            raise InputError(self.path, "--step", number, "a step that schedules tokens")
        whole = summed(sizes)
        runs, layers = self.split(sizes)
        share = share_of([size.num_tokens for size in runs])
        replicas = [
            step_rows(
                parts,
                size,
                self.shapes,
                modelled=self.modelled,
                first_blocks=self.split.first_blocks,
                experts=self.experts,
                share=share,
            )
            for size, parts in zip(runs, layers, strict=True)
        ]
        host = dialect == "llmservingsim" and self.network.remote_memory is not None
        trace = rows_trace(replicas, self.network, self.axes, host=host)
        expected = replay(trace, self.network, f"step {number}").rank_ns
        return Step(whole, replicas, trace, expected)


def members_of(prepared: Prepared, path: Path) -> list[Prepared]:
    """The instance, or the replicas of a cluster that is one data-parallel group. Raises InputError."""
    cluster = prepared.cluster
    if cluster is None:
        return [prepared]
    together = [member for group in cluster.groups for member in group]
    if len(cluster.instances) > 1 and len(cluster.groups) * len(together) != len(cluster.instances):
        expected = "one, or replicas of one data_parallel_group: others have no steps in common"
        raise InputError(path, "cluster.instances", len(cluster.instances), expected)
    return list(cluster.instances)


def tables_of(steps: pa.Table | None, replicas: int) -> list[pa.Table]:
    """The columns that say what a step had to do, a table a replica."""
    assert steps is not None
    wanted = {*StepSize.__dataclass_fields__, *WHO_RAN, "start_ns", "end_ns"}
    kept = steps.select([n for n in steps.column_names if n in wanted])
    if "instance" not in steps.column_names:
        return [kept]
    numbers = steps["instance"].to_numpy()
    return [kept.filter(pa.array(numbers == replica)) for replica in range(replicas)]


def links_of(point: Point, path: Path, replicas: int) -> NetworkConfig:
    """The point's links as a network, without dimensions of one rank."""
    if point.links is None:
        raise InputError(path, "links", None, "links between the ranks, or --network")
    whole = network_of(point, path, replicas)
    several = tuple(d for d in whole.dimensions if d.ranks > 1)
    return whole.model_copy(update={"dimensions": several})


def summed(sizes: Sequence[StepSize]) -> StepSize:
    """What all replicas had to do together; they end together."""
    if len(sizes) == 1:
        return sizes[0]
    adding = (
        "num_tokens",
        "num_requests",
        "prefill_tokens",
        "num_decodes",
        "kv_prefill",
        "kv_decode",
    )
    totals: dict[str, Any] = {name: sum(getattr(one, name) for one in sizes) for name in adding}
    return replace(sizes[0], device_ns=max(one.device_ns for one in sizes), **totals)


def shapes_of(
    point: Point, ranks: int, expert_ranks: int | None = None, network_source: str = "network"
) -> LayerShapes:
    model, engine = point.model, point.engine
    for field in ("num_attention_heads", "intermediate_size"):
        if getattr(model, field) % ranks:
            expected = f"a divisor of the model's {field} ({getattr(model, field)})"
            raise InputError(network_source, "dimensions[0].ranks", ranks, expected)
    dtype, kv_dtype = element_types(point)
    return LayerShapes(
        model=model,
        ranks=ranks,
        element_bytes=model.bytes_per_element(dtype),
        kv_element_bytes=model.bytes_per_element(kv_dtype),
        matrix_element_bytes=model.bytes_per_element(engine.quantization or dtype),
        expert_ranks=expert_ranks,
    )
