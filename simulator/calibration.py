"""A calibrated card laid under a point: its values stand where the point says nothing itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from profiles.calibrated import load_calibrated_card
from profiles.errors import InputError, named

# Two ways to say the same: a point that says one of them has said both.
SAME = {
    "engine.num_gpu_blocks_override": "engine.gpu_memory_utilization",
    "engine.gpu_memory_utilization": "engine.num_gpu_blocks_override",
    "card.memory_bytes": "card.memory_gib",
}


class AppliedCalibration(BaseModel):
    """What a point took from a calibrated card, and what it kept of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    card: str
    model: str
    content_id: str
    applied: dict[str, int | float]
    kept: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    """Further cards it was fitted to, each with its model."""

    def notes(self, card: str, model: str) -> list[str]:
        """What a reader should know; nothing if all of it was applied to a card and model that it
        was fitted to."""
        notes = []
        pairs = ((self.card, self.model), *self.others)
        if (card, _short(model)) not in [(c, _short(m)) for c, m in pairs]:
            fitted = " and ".join(f"{m} on {c}" for c, m in pairs)
            notes.append(f"calibration {self.name} is of {fitted}, applied to {model} on {card}")
        if self.kept:
            notes.append(f"calibration {self.name}: the point's own {', '.join(self.kept)} stand")
        return notes


def with_calibration(mapping: dict[str, Any], base: Path, source: str | Path) -> dict[str, Any]:
    """The point's mapping with the values of the file its `calibration` names; the same without one.

    Raises InputError. A mapping that has been through it passes unchanged.
    """
    given = mapping.get("calibration")
    if given is None or isinstance(given, AppliedCalibration):
        return mapping
    if not isinstance(given, str):
        expected = "the path of a calibrated card, as `servesweep calibrate` writes it"
        raise InputError(source, "calibration", given, expected)
    with named(source, "calibration"):
        card = load_calibrated_card(Path(os.path.abspath(base / given)))  # noqa: PTH100
    mapping = dict(mapping)
    applied: dict[str, int | float] = {}
    kept = []
    for field, value in card.field_values().items():
        if _says(mapping, field) or (field in SAME and _says(mapping, SAME[field])):
            kept.append(field)
        else:
            _assign(mapping, field, value, source)
            applied[field] = value
    mapping["calibration"] = AppliedCalibration(
        name=card.name,
        card=card.card,
        model=card.model,
        content_id=card.content_id,
        applied=applied,
        kept=tuple(kept),
        # Unset where there are none: points of a card of one run stay what they were.
        **({"others": card.others} if card.others else {}),
    )
    return mapping


def _short(model: str) -> str:
    """A model's name without its organisation."""
    return model.rpartition("/")[2]


def _says(mapping: dict[str, Any], field: str) -> bool:
    inside: Any = mapping
    for part in field.split("."):
        if not isinstance(inside, dict) or part not in inside:
            return False
        inside = inside[part]
    return True


def _assign(mapping: dict[str, Any], field: str, value: Any, source: str | Path) -> None:
    *sections, last = field.split(".")
    for section in sections:
        inner = mapping.get(section)
        if inner is not None and not isinstance(inner, dict):
            raise InputError(source, section, inner, "a section with fields")
        mapping[section] = dict(inner or {})
        mapping = mapping[section]
    mapping[last] = value
