"""The parts of a step add up to the time it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.simulation import point_bundle, prepare, run
from simulator.step_layers import LayerTime, StepLayers, StepSize, taken_off
from tests.profiles.bundles import write_two_ranks, write_variant
from tests.simulator.point import make_point
from tests.simulator.points import MODES, PRESSURE

TIER = {
    "prefix_storage": "cpu",
    "tiers": {"cpu": {"capacity_gib": 0.01, "bandwidth_gbps": 0.5, "chunk_tokens": 32}},
}


def split(**changes: Any) -> list[tuple[StepSize, list[LayerTime]]]:
    point = make_point(**changes)
    prepared = prepare(point)
    layers = StepLayers(point_bundle(point), prepared.latency, point.model.num_hidden_layers)
    table = run(prepared, steps=True).steps
    assert table is not None
    sizes = [StepSize.of(row) for row in table.to_pylist() if row["num_tokens"]]
    return [(size, layers.split(size)) for size in sizes]


@pytest.mark.parametrize(
    "changes", [{}, MODES, {**PRESSURE, **TIER}], ids=["plain", "modes", "tier"]
)
def test_layers_add_up_to_every_step(tmp_path: Path, changes: dict[str, Any]) -> None:
    bundle = write_variant(tmp_path, seed=5)
    steps = split(profile={"bundle": str(bundle)}, **changes)
    assert len(steps) > 50
    for size, layers in steps:
        assert sum(layer.ns for layer in layers) == size.device_ns
        assert min(layer.ns for layer in layers) >= 1
    names = {layer.layer for _, layers in steps for layer in layers}
    assert ("execution_mode" in names) == (changes is MODES)
    assert ("prefix_load" in names) == ("tiers" in changes)


def test_layers_run_in_the_models_order(tmp_path: Path) -> None:
    bundle = write_variant(tmp_path, seed=5)
    _, layers = split(profile={"bundle": str(bundle)})[0]
    block = [
        "layernorm",
        "qkv_proj",
        "rotary_emb",
        "attention",
        "o_proj",
        "layernorm",
        "gate_up_proj",
        "act_fn",
        "down_proj",
    ]
    head = ["final_layernorm", "lm_head", "sampler"]
    assert [layer.layer for layer in layers] == ["embedding", *block, *block, *head]
    assert [layer.block for layer in layers] == [-1, *[0] * 9, *[1] * 9, -1, -1, -1]
    attention = {layer.ns for layer in layers if layer.layer == "attention"}
    assert len(attention) == 1


def test_measured_all_reduces_are_parts(tmp_path: Path) -> None:
    steps = split(
        profile={"bundle": str(write_two_ranks(tmp_path))}, engine__tensor_parallel_size=2
    )
    for size, layers in steps:
        assert sum(layer.ns for layer in layers) == size.device_ns
    names = [layer.layer for layer in steps[0][1]]
    assert names.count("all_reduce") == 1 + 2 * 2
    assert names[:2] == ["embedding", "all_reduce"]


def test_a_law_is_one_part() -> None:
    for size, layers in split()[:20]:
        assert layers == [LayerTime("step", -1, size.device_ns)]


def test_what_a_mode_saves_is_taken_off_in_proportion() -> None:
    layers = [LayerTime("a", -1, 101), LayerTime("b", 0, 1), LayerTime("c", -1, 301)]
    assert [layer.ns for layer in taken_off(layers, 40)] == [91, 1, 271]
    assert [layer.ns for layer in taken_off(layers, 400)] == [1, 1, 1]
    assert taken_off(layers, 0) == layers
