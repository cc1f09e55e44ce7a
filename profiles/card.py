"""A card: what the engine may use of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.errors import FieldError, parse_model, read_yaml

GIB = 2**30

Bytes = Annotated[int, Field(strict=True, ge=0)]
FinitePositive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Card(BaseModel):
    """Memory and bandwidth of one card, and what of its memory the engine cannot use.

    Written with memory_bytes or memory_gib, exactly one of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    memory_bytes: Annotated[int, Field(strict=True, gt=0, le=1 << 60)]
    memory_bandwidth_gbps: FinitePositive | None = None  # 10^9 bytes a second
    bfloat16_tflops: FinitePositive | None = None  # 10^12 FLOP a second of dense matrix products
    activation_peak_bytes: Bytes = 0
    context_bytes: Bytes = 0

    @model_validator(mode="before")
    @classmethod
    def _memory_in_one_unit(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = [field for field in ("memory_bytes", "memory_gib") if field in data]
        if len(given) != 1:
            value = {field: data[field] for field in given} or None
            raise FieldError("memory_bytes", value, "exactly one of memory_bytes and memory_gib")
        if given == ["memory_bytes"]:
            return data
        gib = data["memory_gib"]
        number = isinstance(gib, int | float) and not isinstance(gib, bool)
        if not number or not 0 < gib < 2**20:
            raise FieldError("memory_gib", gib, "a size in GiB above 0")
        rest = {field: value for field, value in data.items() if field != "memory_gib"}
        return {**rest, "memory_bytes": round(gib * GIB)}

    @model_validator(mode="after")
    def _something_is_left(self) -> Card:
        taken = self.activation_peak_bytes + self.context_bytes
        if taken >= self.memory_bytes:
            expected = f"with context_bytes less than the card's {self.memory_bytes} bytes"
            raise FieldError("activation_peak_bytes", self.activation_peak_bytes, expected)
        return self

    @classmethod
    def from_yaml(cls, path: Path) -> Card:
        return parse_model(cls, read_yaml(path), path)
