"""How many KV blocks a card holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from profiles.card import Card
from profiles.errors import InputError
from profiles.model import ModelConfig, Shard
from simulator.config import EngineConfig
from simulator.parallel import shards


@dataclass(frozen=True)
class Capacity:
    """The KV cache of one rank, in bytes and blocks."""

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
) -> Capacity:
    """KV bytes = memory x gpu_memory_utilization - weights - activation peak - device context.

    blocks = KV bytes // (block_size x KV bytes of a token). vLLM measures the peak and the context;
    they are taken from the card, where they are 0 unless given. All bytes are one rank's; of several
    pipeline stages the one with the fewest blocks decides. `expert_ranks`: how many ranks share the
    experts, where it is not this engine's alone. Raises InputError if no block is left.
    """
    held = [_on_rank(model, card, engine, shard) for shard in shards(model, engine, expert_ranks)]
    if engine.num_gpu_blocks_override is not None:
        blocks, first = engine.num_gpu_blocks_override, held[0]
        return replace(
            first, num_gpu_blocks=blocks, kv_bytes=blocks * first.block_bytes, overridden=True
        )
    found = min(held, key=lambda capacity: capacity.num_gpu_blocks)
    least = 2 if engine.keeps_null_block else 1
    if found.num_gpu_blocks < least:
        reserved = found.weight_bytes + card.activation_peak_bytes + card.context_bytes
        needed = (reserved + least * found.block_bytes) / card.memory_bytes
        expected = (
            f"more than {needed:.4f}: weights, activations and context of {model.name} take "
            f"{reserved / 2**30:.2f} GiB of the {card.memory_bytes / 2**30:.2f} GiB of {card.name}"
            if needed <= 1
            else f"a larger card: {model.name} alone takes {reserved / 2**30:.2f} GiB and "
            f"{card.name} has {card.memory_bytes / 2**30:.2f} GiB"
        )
        raise InputError(
            source, "engine.gpu_memory_utilization", engine.gpu_memory_utilization, expected
        )
    return found


def _on_rank(model: ModelConfig, card: Card, engine: EngineConfig, shard: Shard) -> Capacity:
    kv_dtype = engine.dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    first, end = shard.layers or (0, model.num_hidden_layers)
    token_bytes = model.kv_bytes_per_token(kv_dtype, shard.tensor_parallel, end - first)
    block_bytes = engine.block_size * token_bytes
    weight_bytes = model.weight_bytes(engine.dtype, shard, engine.quantization)
    reserved = weight_bytes + card.activation_peak_bytes + card.context_bytes
    kv_bytes = int(card.memory_bytes * engine.gpu_memory_utilization) - reserved
    return Capacity(kv_bytes // block_bytes, block_bytes, weight_bytes, kv_bytes, False)
