"""The grid as points: order, cards, paths, and what points share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.expand import SweepPoint
from orchestrator.truth_notes import standing_notes
from profiles.errors import InputError
from simulator import load_point, simulate
from tests.orchestrator.sweep_make import (
    BASE,
    BLOCKS,
    MODEL,
    TRUTH,
    UTILIZATION,
    base,
    points_of,
    write_sweep,
)
from tests.profiles.bundles import write_variant
from tests.simulator.point import point_data

SEQS, TOKENS = "engine.max_num_seqs", "engine.max_num_batched_tokens"


def cells(points: list[SweepPoint]) -> list[tuple[Any, ...]]:
    return [tuple(point.axes.values()) for point in points]


def test_the_last_axis_is_fastest_and_zipped_ones_move_together(tmp_path: Path) -> None:
    path = write_sweep(
        tmp_path,
        axes={BLOCKS: [20, 30], UTILIZATION: {"linspace": [0.5, 0.9, 3]}},
        zipped=[{SEQS: [2, 8], TOKENS: [32, 64]}],
        exclude=[{BLOCKS: 20, SEQS: 8}, {UTILIZATION: 0.7}],
    )
    points = points_of(path)
    assert cells(points) == [
        (20, 0.5, 2, 32),
        (20, 0.9, 2, 32),
        (30, 0.5, 2, 32),
        (30, 0.5, 8, 64),
        (30, 0.9, 2, 32),
        (30, 0.9, 8, 64),
    ]
    assert [point.index for point in points] == list(range(6))
    engine = points[-1].prepared.point.engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (8, 64)
    assert points[-1].name == (
        "num_gpu_blocks_override=30 gpu_memory_utilization=0.9 max_num_seqs=8 "
        "max_num_batched_tokens=64"
    )


def test_values_with_names(tmp_path: Path) -> None:
    """Results call them by their names; points are those of the values."""
    pairs = {"instances": [{"count": 2}], "routing": {"policy": "random"}}
    path = write_sweep(
        tmp_path,
        axes={
            "cluster": {"named": {"alone": {"instances": [{}]}, "two at random": pairs}},
            BLOCKS: [20],
        },
        zipped=[{SEQS: {"named": {"few": 2, "many": 8}}, TOKENS: [32, 64]}],
        exclude=[{"cluster": "alone", SEQS: "many"}],
    )
    points = points_of(path)
    assert cells(points) == [
        ("alone", 20, "few", 32),
        ("two at random", 20, "few", 32),
        ("two at random", 20, "many", 64),
    ]
    assert points[1].name.startswith("cluster=two at random")
    assert [p.prepared.point.engine.max_num_seqs for p in points] == [2, 2, 8]
    two = points[1].prepared.cluster
    assert two is not None and len(two.instances) == 2 and two.routing.policy == "random"
    plain = write_sweep(tmp_path, name="plain", axes={"cluster": [pairs], BLOCKS: [20], SEQS: [8]})
    sole = write_sweep(
        tmp_path, name="sole", axes={"cluster": {"named": {"x": pairs}}, BLOCKS: [20], SEQS: [8]}
    )
    assert [p.point_id for p in points_of(plain)] == [p.point_id for p in points_of(sole)]


def test_a_wrong_value_with_a_name_is_told(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: {"named": {"many": "x"}}})
    with pytest.raises(InputError, match=rf"axes.{BLOCKS}: got 'x', expected "):
        points_of(path)


def test_without_axes_the_base_is_the_one_point(tmp_path: Path) -> None:
    (point,) = points_of(write_sweep(tmp_path))
    assert (point.axes, point.name, point.truth) == ({}, "", None)


AXES: list[tuple[str, list[Any], str]] = [
    ("workload.generate.seed", [1, 2], "workload.generate.seed"),
    ("workload.rate_scale", [0.5, 2.0], "workload.rate_scale"),
    ("workload.generate.prompt_tokens.uniform", [[1, 5], [5, 9]], ""),
    ("overhead.full_graph_ms", [0.0, 0.5], "overhead.full_graph_ms"),
    ("overhead.cudagraph_mode", ["NONE", "PIECEWISE"], "overhead.cudagraph_mode"),
    ("overhead.cudagraph_capture_sizes", [[1, 2], [4]], ""),
    ("engine.num_gpu_blocks_override", [20, None], "engine.num_gpu_blocks_override"),
    ("engine.async_scheduling", [True, False], "engine.async_scheduling"),
    ("engine.policy", ["fcfs", "priority"], "engine.policy"),
    ("model", [MODEL, {**MODEL, "num_hidden_layers": 2}], ""),
    ("model.num_hidden_layers", [1, 2], "model.num_hidden_layers"),
    ("card.memory_bytes", [1 << 20, 1 << 21], "card.memory_bytes"),
    ("profile.linear.base_ns", [5, 6], "profile.linear.base_ns"),
    ("profile", [{"linear": {"base_ns": 5}}, {"linear": {"base_ns": 6}}], ""),
]


@pytest.mark.parametrize(("axis", "values", "reads"), AXES, ids=[axis for axis, _, _ in AXES])
def test_every_field_can_be_an_axis(
    tmp_path: Path, axis: str, values: list[Any], reads: str
) -> None:
    points = points_of(write_sweep(tmp_path, axes={axis: values}))
    assert len({point.point_id for point in points}) == 2
    if reads:
        found = []
        for point in points:
            value: Any = point.prepared.point
            for name in reads.split("."):
                value = getattr(value, name)
            found.append(value)
        assert found == values


def test_a_section_comes_before_its_fields(tmp_path: Path) -> None:
    other = {"generate": {**BASE["workload"]["generate"], "num_requests": 10}}
    path = write_sweep(
        tmp_path, axes={"workload.generate.seed": [1, 2], "workload": [BASE["workload"], other]}
    )
    found = [
        (p.prepared.point.workload.generate.seed, len(p.prepared.workload))
        for p in points_of(path)
        if p.prepared.point.workload.generate
    ]
    assert found == [(1, 30), (1, 10), (2, 30), (2, 10)]


def requests(path: Path, count: int) -> Path:
    lines = [
        {"input_toks": 20 + i, "output_toks": 5, "arrival_time_ns": i * 1000} for i in range(count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests(tmp_path / "traces" / "short.jsonl", 3)
    requests(tmp_path / "traces" / "long.jsonl", 5)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.json").write_text(json.dumps(MODEL))
    path = write_sweep(
        tmp_path,
        base=base(workload=None),
        axes={
            "workload.jsonl": ["traces/short.jsonl", "traces/long.jsonl"],
            "model": ["models/m.json"],
        },
    )
    monkeypatch.chdir(tmp_path / "traces")
    assert [len(point.prepared.workload) for point in points_of(path)] == [3, 5]


CARDS = {
    "small": {"card": {"name": "small", "memory_bytes": 1 << 20}},
    "large": {
        "card": {"name": "large", "memory_bytes": 1 << 21, "memory_bandwidth_gbps": 2000.0},
        "profile": {"linear": {"base_ns": 7}},
        "truth": {"percentiles": {**TRUTH["percentiles"], "num_gpu_blocks": 7}},
        "engine": {"max_num_seqs": 4},
    },
}


def test_what_follows_the_card(tmp_path: Path) -> None:
    path = write_sweep(
        tmp_path, axes={"card": ["small", "large"], SEQS: [8]}, cards=CARDS, truth=TRUTH
    )
    small, large = points_of(path)
    assert small.prepared.point.card.memory_bandwidth_gbps is None
    assert large.prepared.point.card.memory_bandwidth_gbps == 2000.0
    assert large.prepared.point.profile.linear is not None
    assert large.prepared.point.profile.linear.base_ns == 7
    assert large.prepared.point.profile.linear.per_token_ns == 0, "a law is a whole"
    assert small.truth is not None and large.truth is not None
    assert (small.truth.num_gpu_blocks, large.truth.num_gpu_blocks) == (None, 7)
    assert large.prepared.point.engine.max_num_seqs == 8, "the axis, not what follows the card"


def test_a_card_may_have_another_kind_of_profile_and_workload(tmp_path: Path) -> None:
    """One of several alternatives takes the place of another, it does not join it."""
    requests(tmp_path / "r.jsonl", 4)
    cards = {
        "small": {
            "card": {"name": "small", "memory_bytes": 1 << 20},
            "profile": {"linear": {"base_ns": 7}},
            "workload": {"jsonl": "r.jsonl"},
        }
    }
    path = write_sweep(
        tmp_path,
        base=base(profile={"linear": None, "bundles": "perf", "unfitted_skew": "zero"}),
        cards=cards,
        axes={"card": ["small"]},
    )
    (point,) = points_of(path)
    assert point.prepared.point.profile.bundles is None
    assert point.prepared.point.profile.unfitted_skew == "zero"
    assert len(point.prepared.workload) == 4


def test_a_card_of_the_base_may_be_a_value_of_the_axis(tmp_path: Path) -> None:
    small, large = points_of(write_sweep(tmp_path, axes={"card": ["small", "large"]}, cards=CARDS))
    (alone,) = points_of(write_sweep(tmp_path, name="alone"))
    assert small.point_id == alone.point_id
    assert large.point_id != alone.point_id


def test_points_share_what_is_large(tmp_path: Path) -> None:
    """Also where the grid comes back late to a workload or a table; nothing is read per point."""
    seeds = list(range(40))
    path = write_sweep(
        tmp_path, axes={BLOCKS: [20, 30, 40], "workload.generate.seed": seeds, TOKENS: [32, 64]}
    )
    points = points_of(path)
    assert len(points) == 240
    for part, count in (("workload", 40), ("arrival_ns", 40), ("hashes", 40), ("latency", 1)):
        assert len({id(getattr(point.prepared, part)) for point in points}) == count, part
    assert len({id(point.prepared.point.model) for point in points}) == 1
    assert len({id(point.prepared.overhead) for point in points}) == 1


def test_a_point_is_what_simulate_takes(tmp_path: Path) -> None:
    """A cell of a sweep and the same point in a file of its own give the same result."""
    from simulator.simulation import run

    path = write_sweep(tmp_path, axes={BLOCKS: [12, 20], "engine.policy": ["priority"]})
    single = tmp_path / "point.yaml"
    engine = {"num_gpu_blocks_override": 20, "policy": "priority"}
    single.write_text(json.dumps(base(engine=engine)))
    result = run(points_of(path)[1].prepared)
    alone = simulate(load_point(single))
    assert result.summary == alone.summary
    assert result.requests.equals(alone.requests)


def test_notes_of_all_instances_stand_for_a_point(tmp_path: Path) -> None:
    variant = write_variant(tmp_path)
    other = {"card": {"name": "Other", "memory_gib": 1}}
    fields = point_data(profile={"bundle": str(variant)})
    path = write_sweep(tmp_path, base=fields, axes={"cluster": [{"instances": [{}, other]}]})
    (point,) = points_of(path)
    assert "the tables are of TestCard, the card is Other" in standing_notes(point.prepared, None)
