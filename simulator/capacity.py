"""How many KV blocks a card holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.card import Card
from profiles.errors import InputError
from profiles.model import ModelConfig
from simulator.config import EngineConfig


@dataclass(frozen=True)
class Capacity:
    """The KV cache of one rank, in bytes and blocks."""

    num_gpu_blocks: int
    block_bytes: int
    weight_bytes: int
    kv_bytes: int
    overridden: bool


def resolve_capacity(
    model: ModelConfig, card: Card, engine: EngineConfig, source: str | Path
) -> Capacity:
    """KV bytes = memory x gpu_memory_utilization - weights - activation peak - device context.

    blocks = KV bytes // (block_size x KV bytes of a token). vLLM measures the peak and the context;
    they are taken from the card, where they are 0 unless given. All bytes are one rank's. Raises
    InputError if no block is left.
    """
    ranks = engine.tensor_parallel_size
    weight_bytes = model.weight_bytes(engine.dtype, ranks, engine.quantization)
    kv_dtype = engine.dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    block_bytes = engine.block_size * model.kv_bytes_per_token(kv_dtype, ranks)
    reserved = weight_bytes + card.activation_peak_bytes + card.context_bytes
    kv_bytes = int(card.memory_bytes * engine.gpu_memory_utilization) - reserved
    if engine.num_gpu_blocks_override is not None:
        blocks = engine.num_gpu_blocks_override
        return Capacity(blocks, block_bytes, weight_bytes, blocks * block_bytes, True)
    num_gpu_blocks = kv_bytes // block_bytes
    least = 2 if engine.keeps_null_block else 1
    if num_gpu_blocks < least:
        needed = (reserved + least * block_bytes) / card.memory_bytes
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
    return Capacity(num_gpu_blocks, block_bytes, weight_bytes, kv_bytes, False)
