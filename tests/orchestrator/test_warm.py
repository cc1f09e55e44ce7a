"""Parts of the core are loaded before points need them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import warm
from orchestrator.warm import PARTS, compile_what_is_missing, parts_of
from simulator.config import point_from_mapping
from simulator.core.jit import JIT, is_kept
from simulator.simulation import prepare, simulate
from tests.simulator.point import make_point

TIER = {"prefix_storage": "cpu", "tiers": warm.TIER["tiers"]}
CLUSTERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("alone",)),
    (TIER, ("lmcache",)),
    (TIER | {"kv_connector": "OffloadingConnector"}, ("offloading",)),
    ({"cluster": {"instances": [{"count": 2}]}}, ("alone", "cluster")),
    (TIER | {"cluster": {"instances": [{}, {}]}}, ("lmcache", "cluster")),
    (
        {"cluster": {"instances": [{"count": 2, "data_parallel_group": "A"}]}},
        ("alone", "cluster", "group"),
    ),
    (
        {"cluster": {"instances": [{"count": 2}], "routing": {"policy": "prefix_aware"}}},
        ("alone", "cluster", "prefix_aware"),
    ),
]


@pytest.mark.parametrize(("changes", "parts"), CLUSTERS)
def test_what_a_point_needs(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert parts_of(prepare(make_point(**changes))) == parts


def test_prompts_computed_apart_need_loads_beside_steps() -> None:
    cluster = PARTS["kv_transfer"][0]["cluster"]
    assert parts_of(prepare(make_point(cluster=cluster))) == ("alone", "cluster", "kv_transfer")
    assert "advance_offloading" in PARTS["kv_transfer"][1]


@pytest.mark.parametrize("part", PARTS)
def test_the_smallest_point_runs_what_the_part_needs(part: str) -> None:
    changes, names = PARTS[part]
    point = point_from_mapping(warm.POINT | changes, warm.Path(), part)
    assert part in parts_of(prepare(point))
    assert simulate(point).summary["requests"]["finished"] == 1
    assert all(is_kept(name) for name in names)
    assert not JIT or not is_kept("advance")


def test_only_what_is_not_kept_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(warm, "_load", loaded.append)
    monkeypatch.setattr(warm, "is_kept", lambda name: name != "advance_lmcache")
    compile_what_is_missing(prepare(make_point(**changes)) for changes, _ in CLUSTERS)
    assert loaded == ["lmcache"]
