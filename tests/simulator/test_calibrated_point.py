"""Tables with a residual scale, and a point that names a calibrated card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from orchestrator.expand import expand
from orchestrator.sweep import load_sweep
from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from simulator import Point, load_point, simulate
from simulator.simulation import prepare
from tests.profiles.bundles import write_variant
from tests.simulator.point import NOTHING, make_point, point_data


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def tables(tmp_path: Path, **scale: float) -> Point:
    return make_point(profile={"bundle": str(write_variant(tmp_path)), "scale": scale})


def test_each_kind_of_table_has_its_factor(tmp_path: Path) -> None:
    bundle = load_bundle(write_variant(tmp_path))
    scaled = bundle.scaled(dense=2.0, per_sequence=0.5, attention=1e-12, moe=1.0)
    for name, table in bundle.dense.items():
        assert (scaled.dense[name].ns == 2 * table.ns).all()
        assert (scaled.dense[name].keys == table.keys).all()
    for name, table in bundle.per_sequence.items():
        assert (scaled.per_sequence[name].ns == np.maximum(1, np.rint(table.ns / 2))).all()
    assert (scaled.attention.ns == 1).all()
    assert scaled.content_id == bundle.content_id


def test_a_scaled_point_takes_longer_and_says_so(tmp_path: Path) -> None:
    plain, doubled = tables(tmp_path), tables(tmp_path, dense=2.0, per_sequence=2.0, attention=2.0)
    ours, theirs = prepare(plain).latency, prepare(doubled).latency
    # Interpolated times are cut to whole ns, layer by layer.
    assert np.abs(theirs.sequences_ns - 2 * ours.sequences_ns).max() <= 2
    assert (theirs.grid_ns == 2 * ours.grid_ns).all()
    summary = simulate(doubled).summary
    assert summary["profile"]["scale"] == {
        "dense": 2.0,
        "per_sequence": 2.0,
        "attention": 2.0,
        "moe": 1.0,
    }
    assert summary["end_ns"] > simulate(plain).summary["end_ns"]


@pytest.mark.parametrize(
    ("profile", "field", "expected"),
    [
        ({"linear": {"base_ns": 5}, "scale": {"dense": 2.0}}, "profile.scale", "linear has no"),
        ({"bundle": "x", "scale": {"dense": 0}}, "profile.scale.dense", "0.01"),
        ({"bundle": "x", "scale": {"mood": 1.0}}, "profile.scale.mood", "known fields: attention"),
    ],
)
def test_wrong_scales(profile: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        make_point(profile=profile)
    assert caught.value.field == field


CARD: dict[str, Any] = {
    "name": "test-card",
    "card": "TestCard",
    "model": "test/model",
    "parameters": {
        "decode_ms": {"fields": ["overhead.full_graph_ms"], "value": 0.25},
        "prefill_ms": {
            "fields": ["overhead.piecewise_ms", "overhead.no_graph_ms"],
            "value": 1.5,
            "low": 1.0,
            "high": 2.0,
        },
        "blocks": {"fields": ["engine.num_gpu_blocks_override"], "value": 55},
    },
}


def written(tmp_path: Path, card: dict[str, Any], **changes: Any) -> Path:
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    path = tmp_path / "point.yaml"
    data = point_data(engine__num_gpu_blocks_override=NOTHING, calibration="card.yaml") | changes
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_calibrated_card_is_applied_and_recorded(tmp_path: Path) -> None:
    point = load_point(written(tmp_path, CARD))
    assert point.overhead.full_graph_ms == 0.25
    assert point.overhead.piecewise_ms == point.overhead.no_graph_ms == 1.5
    assert point.engine.num_gpu_blocks_override == 55
    by_hand = make_point(
        engine__num_gpu_blocks_override=55,
        overhead={"full_graph_ms": 0.25, "piecewise_ms": 1.5, "no_graph_ms": 1.5},
    )
    result, expected = simulate(point), simulate(by_hand)
    assert result.requests.equals(expected.requests)
    recorded = result.summary["calibration"]
    assert recorded["name"] == "test-card"
    assert recorded["applied"] == {
        "overhead.full_graph_ms": 0.25,
        "overhead.piecewise_ms": 1.5,
        "overhead.no_graph_ms": 1.5,
        "engine.num_gpu_blocks_override": 55,
    }
    assert result.summary["notes"] == expected.summary["notes"]


def test_what_the_point_says_itself_stands(tmp_path: Path) -> None:
    path = written(tmp_path, CARD, overhead={"full_graph_ms": 0.0})
    data = yaml.safe_load(path.read_text())
    data["engine"]["gpu_memory_utilization"] = 0.9
    path.write_text(yaml.safe_dump(data))
    point = load_point(path)
    assert point.overhead.full_graph_ms == 0.0
    assert point.engine.num_gpu_blocks_override is None
    note = simulate(point).summary["notes"][0]
    assert note.endswith("engine.num_gpu_blocks_override, overhead.full_graph_ms stand")


def test_another_card_is_noted(tmp_path: Path) -> None:
    point = load_point(written(tmp_path, CARD | {"card": "Other"}))
    assert "is of test/model on Other, applied to test/model on TestCard" in " ".join(
        prepare(point).notes
    )


def test_a_card_of_several_runs_is_of_all_their_cards(tmp_path: Path) -> None:
    data = {
        "first": {"card": "Other", "model": "test/model"},
        "second": {"card": "TestCard", "model": "test/model"},
    }
    card = CARD | {"card": "Other", "data": data}
    point = load_point(written(tmp_path, card))
    assert point.calibration is not None
    assert point.calibration.others == (("TestCard", "test/model"),)
    assert not any("calibration" in note for note in prepare(point).notes)
    assert point.calibration.notes("Third", "test/model") == [
        "calibration test-card is of test/model on Other and test/model on TestCard, applied to "
        "test/model on Third"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": ["workload.limit"]}, "a field of card, engine, overhead, profile, tiers"),
        ({"fields": ["overhead"]}, "a field of card, engine, overhead, profile, tiers"),
        ({"fields": ["overhead.piecewise_ms"]}, "a field set once"),
        ({"fields": ["overhead.mood"]}, "overhead.mood: .*known fields"),
        ({"value": "fast"}, "decode_ms.value: got 'fast', expected a number"),
        ({"value": True}, "decode_ms.value: got True, expected a number"),
        ({"value": float("inf")}, "decode_ms.value: got inf, expected a finite number"),
    ],
)
def test_wrong_cards(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    parameters = CARD["parameters"]
    decode = parameters["decode_ms"] | change
    card = CARD | {"parameters": parameters | {"decode_ms": decode}}
    with pytest.raises(InputError, match=message):
        load_point(written(tmp_path, card))


def test_a_missing_file_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"point.yaml, calibration: .*none.yaml: file: got nothing"
    ):
        load_point(written(tmp_path, CARD, calibration="none.yaml"))


def test_an_axis_of_calibrated_cards(tmp_path: Path) -> None:
    """Each cell has its own card's values, although all have the same section `overhead`."""
    base = point_data(engine__num_gpu_blocks_override=NOTHING, overhead={})
    for name, value in (("a", 0.1), ("b", 0.2)):
        decode = {"fields": ["overhead.full_graph_ms"], "value": value}
        content = CARD | {"name": name, "parameters": {"decode_ms": decode}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    sweep = tmp_path / "sweep.yaml"
    axes = {"calibration": ["a.yaml", "b.yaml"]}
    sweep.write_text(yaml.safe_dump({"name": "s", "base": base, "axes": axes}))
    points = expand(load_sweep(sweep), sweep)
    assert [p.prepared.point.overhead.full_graph_ms for p in points] == [0.1, 0.2]
    assert points[0].run_id != points[1].run_id
