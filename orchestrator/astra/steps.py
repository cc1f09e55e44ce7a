"""A point's steps, ready to be written for ASTRA-Sim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from profiles.errors import InputError
from simulator.config import Point, load_point
from simulator.network.config import Dimension, NetworkConfig
from simulator.network.dialect import Dialect
from simulator.network.replay import replay
from simulator.network.step_trace import LayerShapes, Row, rows_trace, step_rows
from simulator.network.trace import Trace
from simulator.profile_tables import element_types
from simulator.simulation import point_bundle, prepare, run
from simulator.step_layers import StepLayers, StepSize

ONE_RANK = NetworkConfig(
    dimensions=(Dimension(ranks=1, bandwidth_gibps=1.0),), local_mem_gbps=1000.0
)
"""Where no network is given: a rank on its own, which never sends anything."""


@dataclass(frozen=True)
class Step:
    """One step of a point: its rows, what every rank runs, and how long that takes in process."""

    size: StepSize
    rows: list[Row]
    trace: Trace
    expected_ns: tuple[int, ...]


class PointSteps:
    """Simulates a point once and splits the steps that are asked for.

    With a network of several ranks the collectives are modelled over it. Raises InputError.
    """

    def __init__(self, path: Path, network: NetworkConfig | None) -> None:
        point = load_point(path)
        self.point, self.path = point, path
        self.network = network or ONE_RANK
        ranks = point.engine.tensor_parallel_size
        if ranks > 1 and network is not None and network.dimensions[0].ranks != ranks:
            expected = f"engine.tensor_parallel_size ({ranks}) of {path}"
            raise InputError(
                "network", "dimensions[0].ranks", network.dimensions[0].ranks, expected
            )
        if point.moved is not None:
            expected = "everything on the device: rows of a step read no other memory"
            raise InputError(path, "placement", point.moved.model_dump(), expected)
        prepared = prepare(point, path)
        self.layers = StepLayers(
            point_bundle(point, path), prepared.latency, point.model.num_hidden_layers
        )
        self.shapes = shapes_of(point, network.dimensions[0].ranks if network else ranks)
        steps = run(prepared, steps=True).steps
        assert steps is not None
        wanted = {*StepSize.__dataclass_fields__, "start_ns", "end_ns"}
        self.table: pa.Table = steps.select([n for n in steps.column_names if n in wanted])

    def __len__(self) -> int:
        return len(self.table)

    def numbers(self) -> list[int]:
        """The steps that run something; one that only hands out results has no layers."""
        tokens = self.table["num_tokens"].to_pylist()
        return [step for step, count in enumerate(tokens) if count]

    def step(self, number: int, dialect: Dialect) -> Step:
        """As `dialect` runs it: the fork reads tokens from the host where the network has one.

        Raises InputError for a step that is not there or runs nothing.
        """
        if not 0 <= number < len(self):
            raise InputError(
                self.path, "--step", number, f"a step of the run, 0 to {len(self) - 1}"
            )
        size = StepSize.of(self.table.slice(number, 1).to_pylist()[0])
        if not size.num_tokens:
            raise InputError(self.path, "--step", number, "a step that schedules tokens")
        rows = step_rows(self.layers.split(size), size, self.shapes, self.network)
        host = dialect == "llmservingsim" and self.network.remote_memory is not None
        trace = rows_trace(rows, self.network, host=host)
        expected = replay(trace, self.network, f"step {number}").rank_ns
        return Step(size, rows, trace, expected)


def shapes_of(point: Point, ranks: int) -> LayerShapes:
    model, engine = point.model, point.engine
    for field in ("num_attention_heads", "intermediate_size"):
        if getattr(model, field) % ranks:
            expected = f"a divisor of the model's {field} ({getattr(model, field)})"
            raise InputError("network", "dimensions[0].ranks", ranks, expected)
    dtype, kv_dtype = element_types(point)
    return LayerShapes(
        model=model,
        ranks=ranks,
        element_bytes=model.bytes_per_element(dtype),
        kv_element_bytes=model.bytes_per_element(kv_dtype),
        matrix_element_bytes=model.bytes_per_element(engine.quantization or dtype),
    )
