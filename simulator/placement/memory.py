"""What fits into the memories outside the device, and what it leaves free on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import InputError
from profiles.model import ModelConfig, Shard
from simulator.config import EngineConfig
from simulator.placement.config import DEVICE, Placement
from simulator.placement.weights import GIB, LayerWeights, placed_stages


@dataclass(frozen=True)
class Elsewhere:
    """Weights of one rank of a pipeline stage that are not on its device, in bytes.

    by_memory: kept there. read: read in a step. buffers: on the device, for what is read ahead.
    """

    by_memory: dict[str, int]
    read_bytes: int = 0
    buffer_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(self.by_memory.values())


NOTHING = Elsewhere({})


def elsewhere(
    model: ModelConfig,
    engine: EngineConfig,
    placement: Placement | None,
    stages: Sequence[Shard],
    source: str | Path,
) -> list[Elsewhere]:
    """Of one rank of every stage. Raises InputError where a memory cannot hold the weights."""
    if placement is None:
        return [NOTHING] * len(stages)
    placed = placed_stages(
        model, engine.dtype, engine.quantization, placement, list(stages), source
    )
    found = [_of_stage(layers, model.num_hidden_layers, placement) for layers in placed]
    for name, memory in placement.memories.items():
        needed = engine.tensor_parallel_size * sum(one.by_memory.get(name, 0) for one in found)
        if needed > memory.capacity_gib * GIB:
            expected = f"at least {needed / GIB:.2f}: the weights of all ranks that are there"
            field = f"placement.memories.{name}.capacity_gib"
            raise InputError(source, field, memory.capacity_gib, expected)
    return found


def kv_blocks(
    engine: EngineConfig,
    placement: Placement,
    block_bytes: Sequence[int],
    moved: Sequence[Elsewhere],
    source: str | Path,
) -> int:
    """Blocks that the memory of the KV cache holds beside its weights; raises InputError if too few.

    `block_bytes`, `moved`: of one rank of every stage. A block is there once for every rank.
    """
    name = placement.kv_cache
    memory, ranks = placement.memories[name], engine.tensor_parallel_size
    weights = ranks * sum(one.by_memory.get(name, 0) for one in moved)
    whole_block = ranks * sum(block_bytes)
    fit = (int(memory.capacity_gib * GIB) - weights) // whole_block
    least = 2 if engine.keeps_null_block else 1
    wanted = engine.num_gpu_blocks_override
    if (wanted or least) > fit:
        needed = (weights + (wanted or least) * whole_block) / GIB
        expected = f"at least {needed:.4f}: {wanted or least} KV blocks of all ranks" + (
            f" beside {weights / GIB:.2f} GiB of weights" if weights else ""
        )
        field = f"placement.memories.{name}.capacity_gib"
        raise InputError(source, field, memory.capacity_gib, expected)
    return wanted or fit


def _of_stage(layers: Sequence[LayerWeights], num_blocks: int, placement: Placement) -> Elsewhere:
    by_memory: Counter[str] = Counter()
    by_block: Counter[int] = Counter()
    read = 0
    for one in layers:
        if one.place != DEVICE:
            by_memory[one.place] += one.held_bytes
            read += one.num_bytes
            if 0 <= one.block < num_blocks:
                by_block[one.block] += one.num_bytes
    buffers = min(placement.offload_prefetch_step or 0, len(by_block))
    return Elsewhere(dict(by_memory), read, buffers * max(by_block.values(), default=0))
