"""Where a point keeps weights and KV cache, as it says it.

placement:
  memories:
    cpu: {bandwidth_gbps: 64, capacity_gib: 512}
    "cxl:0": {bandwidth_gbps: 60, latency_ns: 250, capacity_gib: 1024}
  weights: {default: device, blocks: {"0-3,8": cpu}, layers: {lm_head: "cxl:0"}}    # or one memory
  kv_cache: device
  weight_reads: serial
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from profiles.errors import FieldError

DEVICE = "device"
MOST = 1e9

Place = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:[0-9]+)?$")]
Above = Annotated[float, Field(strict=True, gt=0, le=MOST, allow_inf_nan=False)]
WeightReads = Literal["serial", "streamed", "prefetched"]

BLOCKS = re.compile(r"\s*\d{1,4}(\s*-\s*\d{1,4})?\s*(,\s*\d{1,4}(\s*-\s*\d{1,4})?\s*)*")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Memory(Frozen):
    """A memory that the device reaches over a link, in 10^9 bytes a second.

    A read takes latency_ns + floor(bytes / bandwidth). Reads take turns on the link. With `link` shared
    it is one for all tensor-parallel ranks of an engine, whose parts of a layer follow each other as one
    read; with per_rank each rank has one of this bandwidth. The capacity is what all ranks of one engine
    may keep there.
    """

    bandwidth_gbps: Above
    latency_ns: Annotated[int, Field(strict=True, ge=0, le=10**12)] = 0
    capacity_gib: Above
    link: Literal["shared", "per_rank"] = "shared"


class Weights(Frozen):
    """Which memory holds a layer's weights: that of its name, else of its block, else the default.

    `blocks` has lists of transformer blocks as keys, "0-3,8"; `layers` the names of an architecture's
    layers (qkv_proj, lm_head, ...), in every block.
    """

    default: Place = DEVICE
    blocks: dict[str, Place] = {}
    layers: dict[str, Place] = {}

    @model_validator(mode="after")
    def _blocks_are_ranges(self) -> Self:
        seen: set[int] = set()
        for text in self.blocks:
            found = set(block_numbers(text)) if BLOCKS.fullmatch(text) else set()
            if not found:
                expected = 'numbers and ranges of blocks: "0-3,8"'
                raise FieldError("blocks", text, expected)
            if found & seen:
                raise FieldError("blocks", text, f"block {min(found & seen)} once")
            seen |= found
        return self

    @property
    def by_block(self) -> dict[int, str]:
        return {
            block: place for text, place in self.blocks.items() for block in block_numbers(text)
        }

    @property
    def places(self) -> set[str]:
        return {self.default, *self.blocks.values(), *self.layers.values()}


class Placement(Frozen):
    """Weights and KV cache outside the device.

    `weight_reads` says when a step reads the weights that are elsewhere (core/placement.py):
    serial: when a layer's turn comes, and it runs when they are there. streamed: its kernel reads them
    over the link while it runs. prefetched: ahead of the layers that run, from the step's start on.
    """

    memories: dict[Place, Memory] = {}
    weights: Weights = Weights()
    cpu_offload_gb: Annotated[float, Field(strict=True, ge=0, le=MOST)] = 0.0
    """vLLM's: so many GiB of every rank's blocks are in the memory `cpu`, from the first block on."""
    kv_cache: Place = DEVICE
    weight_reads: WeightReads = "serial"
    offload_prefetch_step: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """vLLM's, of prefetched: a block is read when the one so many before it (of those with weights
    elsewhere) has run, into its buffer on the device; a block waits for all of its weights. None: as
    LLMServingSim does, everything is asked for at once, a layer waits for its own, and no buffer is
    counted."""

    @field_validator("weights", mode="before")
    @classmethod
    def _one_place(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _memories_are_there(self) -> Self:
        if DEVICE in self.memories:
            raise FieldError("memories", DEVICE, "another name: the device is the card")
        known = ", ".join((DEVICE, *self.memories))
        places = [("weights", place) for place in sorted(self.weights.places)]
        for field, place in (*places, ("kv_cache", self.kv_cache)):
            if place != DEVICE and place not in self.memories:
                raise FieldError(field, place, f"one of {known} (memories)")
        if self.cpu_offload_gb and "cpu" not in self.memories:
            raise FieldError("memories", list(self.memories), "cpu, because of cpu_offload_gb")
        if self.cpu_offload_gb and self.weights != Weights():
            expected = "nothing beside cpu_offload_gb, which chooses the layers"
            raise FieldError("weights", self.weights.model_dump(), expected)
        if self.offload_prefetch_step is not None and self.weight_reads != "prefetched":
            expected = "nothing, or weight_reads: prefetched"
            raise FieldError("offload_prefetch_step", self.offload_prefetch_step, expected)
        return self

    @property
    def moves_weights(self) -> bool:
        return self.cpu_offload_gb > 0 or self.weights.places != {DEVICE}

    @property
    def moves_anything(self) -> bool:
        return self.moves_weights or self.kv_cache != DEVICE


def block_numbers(text: str) -> list[int]:
    """The blocks of "0-3,8"; a range counts up."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
