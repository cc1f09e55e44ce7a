"""How the steps of an instance or a group are taken apart into layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulator.cluster.group import common_mode_ns, run_tokens
from simulator.core.latency import Latency
from simulator.network_tables import stages_of
from simulator.simulation import Prepared, point_bundle
from simulator.stage_layers import StageLayers
from simulator.step_layers import LayerTime, StepLayers, StepSize


class Split:
    """Called with a step's size of every replica: what each runs, and its layers."""

    def __init__(self, layers: StepLayers, latency: Latency) -> None:
        self.layers, self.latency = layers, latency

    @property
    def first_blocks(self) -> tuple[int, ...]:
        return self.layers.first_blocks if isinstance(self.layers, StageLayers) else (0,)

    def __call__(self, sizes: Sequence[StepSize]) -> tuple[list[StepSize], list[list[LayerTime]]]:
        if not isinstance(self.layers, StageLayers):
            (size,) = sizes
            return [size], [self.layers.split(size)]
        run = [size.num_tokens for size in sizes]
        if len(sizes) > 1:
            run = run_tokens(self.latency, run)
        chunks = any(size.prefill_tokens for size in sizes)
        mode_ns = common_mode_ns(self.latency, run, chunks)
        runs = [replace(size, num_tokens=n) for size, n in zip(sizes, run, strict=True)]
        return runs, [self.layers.parts(size, sum(run), mode_ns) for size in runs]


def split_of(members: Sequence[Prepared], path: Path) -> Split:
    """Steps of one stage and one replica from the clock, others from the tables. Raises InputError."""
    first = members[0]
    point, latency, replicas = first.point, first.latency, len(members)
    bundle = point_bundle(point, path)
    if replicas == point.engine.pipeline_parallel_size == 1:
        return Split(StepLayers(bundle, latency, point.model.num_hidden_layers), latency)
    blocks = stages_of(point, path).layers or (point.model.num_hidden_layers,)
    return Split(StageLayers(bundle, latency, blocks), latency)
