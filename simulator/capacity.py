"""How many KV blocks a card holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from profiles.card import Card
from profiles.errors import InputError
from profiles.model import ModelConfig, Shard
from simulator.config import MAX_BLOCKS, EngineConfig
from simulator.parallel import shards
from simulator.placement.config import DEVICE, Placement
from simulator.placement.memory import Elsewhere, elsewhere, kv_blocks


@dataclass(frozen=True)
class Capacity:
    """The KV cache of one rank, in bytes and blocks; `weight_bytes` are those on its device."""

    num_gpu_blocks: int
    block_bytes: int
    weight_bytes: int
    kv_bytes: int
    overridden: bool


def resolve_capacity(
    model: ModelConfig,
    card: Card,
    engine: EngineConfig,
    source: str | Path,
    expert_ranks: int | None = None,
    placement: Placement | None = None,
) -> Capacity:
    """KV bytes = memory x gpu_memory_utilization - weights - activation peak - device context.

    blocks = KV bytes // (block_size x KV bytes of a token). vLLM measures the peak and the context;
    they are taken from the card, where they are 0 unless given. All bytes are one rank's; of several
    pipeline stages the one with the fewest blocks decides. `expert_ranks`: how many ranks share the
    experts, where it is not this engine's alone. Weights that `placement` puts elsewhere take none of
    the card's memory, but for buffers of what is read ahead; of a KV cache elsewhere there are as many
    blocks as that memory holds. Raises InputError if no block is left, or something does not fit.
    """
    ranks = shards(model, engine, expert_ranks)
    moved = elsewhere(model, engine, placement, ranks, source)
    held = [
        _on_rank(model, card, engine, shard, one) for shard, one in zip(ranks, moved, strict=True)
    ]
    if placement is not None and placement.kv_cache != DEVICE:
        worst = min(held, key=lambda capacity: capacity.kv_bytes)
        if worst.kv_bytes < 0:
            raise _too_small(model, card, engine, worst, 0, source)
        block_bytes = [capacity.block_bytes for capacity in held]
        blocks = kv_blocks(engine, placement, block_bytes, moved, source)
        memory = placement.memories[placement.kv_cache]
        field = f"placement.memories.{placement.kv_cache}.capacity_gib"
        _check_most(blocks, field, memory.capacity_gib, source)
        return _with_blocks(held[0], blocks, engine.num_gpu_blocks_override is not None)
    if engine.num_gpu_blocks_override is not None:
        return _with_blocks(held[0], engine.num_gpu_blocks_override, True)
    found = min(held, key=lambda capacity: capacity.num_gpu_blocks)
    least = 2 if engine.keeps_null_block else 1
    if found.num_gpu_blocks < least:
        raise _too_small(model, card, engine, found, least, source)
    _check_most(found.num_gpu_blocks, "card.memory_bytes", card.memory_bytes, source)
    return found


def _check_most(blocks: int, field: str, value: object, source: str | Path) -> None:
    if blocks > MAX_BLOCKS:
        expected = (
            f"room for at most {MAX_BLOCKS} KV blocks, not {blocks}; or num_gpu_blocks_override"
        )
        raise InputError(source, field, value, expected)


def _with_blocks(capacity: Capacity, blocks: int, overridden: bool) -> Capacity:
    kv_bytes = blocks * capacity.block_bytes
    return replace(capacity, num_gpu_blocks=blocks, kv_bytes=kv_bytes, overridden=overridden)


def _too_small(
    model: ModelConfig,
    card: Card,
    engine: EngineConfig,
    found: Capacity,
    blocks: int,
    source: str | Path,
) -> InputError:
    """The device holds less than `blocks` beside what else it has to."""
    reserved = found.weight_bytes + card.activation_peak_bytes + card.context_bytes
    needed = (reserved + blocks * found.block_bytes) / card.memory_bytes
    expected = (
        f"more than {needed:.4f}: weights, activations and context of {model.name} take "
        f"{reserved / 2**30:.2f} GiB of the {card.memory_bytes / 2**30:.2f} GiB of {card.name}"
        if needed <= 1
        else f"a larger card: {model.name} alone takes {reserved / 2**30:.2f} GiB and "
        f"{card.name} has {card.memory_bytes / 2**30:.2f} GiB"
    )
    return InputError(
        source, "engine.gpu_memory_utilization", engine.gpu_memory_utilization, expected
    )


def _on_rank(
    model: ModelConfig, card: Card, engine: EngineConfig, shard: Shard, moved: Elsewhere
) -> Capacity:
    first, end = shard.layers or (0, model.num_hidden_layers)
    token_bytes = model.kv_bytes_per_token(
        engine.stored_kv_dtype, shard.tensor_parallel, end - first
    )
    block_bytes = engine.block_size * token_bytes
    weight_bytes = model.weight_bytes(engine.dtype, shard, engine.quantization)
    weight_bytes += moved.buffer_bytes - moved.num_bytes
    reserved = weight_bytes + card.activation_peak_bytes + card.context_bytes
    kv_bytes = int(card.memory_bytes * engine.gpu_memory_utilization) - reserved
    return Capacity(kv_bytes // block_bytes, block_bytes, weight_bytes, kv_bytes, False)
