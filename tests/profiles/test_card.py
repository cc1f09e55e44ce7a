from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.card import Card
from profiles.errors import InputError, parse_model


def test_memory_in_either_unit(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text("name: RTX 4090\nmemory_gib: 24\nmemory_bandwidth_gbps: 1008\n")
    card = Card.from_yaml(path)
    assert card == Card(name="RTX 4090", memory_bytes=24 * 2**30, memory_bandwidth_gbps=1008.0)
    assert (card.activation_peak_bytes, card.context_bytes) == (0, 0)
    assert Card.model_validate({"name": "half", "memory_gib": 0.5}).memory_bytes == 2**29


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_gib": 1}, "memory_bytes: .*exactly one"),
        ({"memory_bytes": None}, "memory_bytes: got None"),
        ({"memory_bytes": 0}, "memory_bytes: got 0"),
        ({"memory_bytes": 1.5}, "memory_bytes: got 1.5"),
        ({"memory_bandwidth_gbps": -1}, "memory_bandwidth_gbps: got -1"),
        ({"memory_bandwidth_gbps": float("inf")}, "memory_bandwidth_gbps: got inf"),
        ({"context_bytes": -1}, "context_bytes: got -1"),
        ({"context_bytes": 600, "activation_peak_bytes": 400}, "less than the card's 1000"),
        ({"name": ""}, "name: got ''"),
        ({"memory_gb": 24}, "memory_gb: got 24, expected no such field"),
    ],
)
def test_wrong_cards(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_model(Card, {"name": "card", "memory_bytes": 1000, **changes}, "card.yaml")


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), "24", True])
def test_wrong_sizes_in_gib(size: Any) -> None:
    with pytest.raises(InputError, match=r"card.yaml: memory_gib: got"):
        parse_model(Card, {"name": "card", "memory_gib": size}, "card.yaml")


def test_no_memory_at_all() -> None:
    with pytest.raises(InputError, match=r"memory_bytes: got None, expected exactly one"):
        parse_model(Card, {"name": "card"}, "card.yaml")
