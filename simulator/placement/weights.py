"""Which memory every layer's weights are in, and how many bytes they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.architecture import Architecture, load_architecture
from profiles.errors import InputError
from profiles.layer_weights import layer_weight_bytes
from profiles.model import ModelConfig, Shard
from simulator.placement.config import DEVICE, Placement, block_numbers

GIB = 2**30
# The order in which vLLM's models name the parameters of a block.
OFFLOAD_ORDER = (
    "qkv_proj",
    "o_proj",
    "qk_norm",
    "gate_up_proj",
    "down_proj",
    "moe",
    "layernorm",
)
BEFORE = -1
"""The block of layers before the first one; those after the last one have the number of blocks."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One run of a layer on one rank: bytes it reads, and bytes of them that are there for it alone."""

    block: int
    layer: str
    num_bytes: int
    held_bytes: int
    place: str = DEVICE


def placed_stages(
    model: ModelConfig,
    dtype: str,
    quantization: str | None,
    placement: Placement,
    stages: list[Shard],
    source: str | Path,
) -> list[list[LayerWeights]]:
    """The layers with weights of every pipeline stage, in the order they run. Raises InputError."""
    architecture = load_architecture(model.model_type, source)
    _check_names(model, architecture, placement, source)
    held = [
        list(_stage(model, architecture, dtype, quantization, shard, len(stages)))
        for shard in stages
    ]
    if placement.cpu_offload_gb:
        budget = int(placement.cpu_offload_gb * GIB)
        return [_offloaded(layers, model.num_hidden_layers, budget) for layers in held]
    by_block = placement.weights.by_block

    def place(one: LayerWeights) -> str:
        by_name = placement.weights.layers.get(one.layer)
        return by_name or by_block.get(one.block, placement.weights.default)

    placed = [[replace(one, place=place(one)) for one in layers] for layers in held]
    _check_tied(placed, source)
    return placed


def stage_order(
    architecture: Architecture, first: int, end: int, num_layers: int
) -> list[tuple[int, str]]:
    """(block, layer) that a stage of the blocks from `first` to before `end` runs, in order."""
    parts = architecture
    block = (*parts.pre_attn, *parts.post_attn, *parts.mlp_dense, *parts.mlp_moe)
    order = [(i, layer) for i in range(first, end) for layer in block]
    if first == 0:
        order = [*((BEFORE, layer) for layer in parts.prologue), *order]
    return [*order, *((end, layer) for layer in parts.head)] if end == num_layers else order


def _stage(
    model: ModelConfig,
    architecture: Architecture,
    dtype: str,
    quantization: str | None,
    shard: Shard,
    num_stages: int,
) -> Iterator[LayerWeights]:
    end_of_all = model.num_hidden_layers
    first, end = shard.layers or (0, end_of_all)
    for i, layer in stage_order(architecture, first, end, end_of_all):
        size = layer_weight_bytes(model, layer, i, shard, dtype, quantization)
        tied = layer == "lm_head" and model.tie_word_embeddings and num_stages == 1
        if size:
            yield LayerWeights(i, layer, size, 0 if tied else size)


def _offloaded(layers: list[LayerWeights], num_blocks: int, budget: int) -> list[LayerWeights]:
    """As vLLM does it: from the first block on, as long as less than the budget has moved.

    vLLM goes parameter by parameter; here the parameters of a layer, its experts say, go together.
    """
    inside = [i for i, one in enumerate(layers) if 0 <= one.block < num_blocks]
    moved, placed = 0, list(layers)
    for i in sorted(inside, key=lambda i: (layers[i].block, OFFLOAD_ORDER.index(layers[i].layer))):
        if moved >= budget:
            break
        placed[i] = replace(layers[i], place="cpu")
        moved += layers[i].held_bytes
    return placed


def _check_names(
    model: ModelConfig, architecture: Architecture, placement: Placement, source: str | Path
) -> None:
    named = dict.fromkeys(
        layer
        for layers in architecture.tables.values()
        for layer in layers
        if layer_weight_bytes(model, layer, 0, Shard())
    )
    for layer in placement.weights.layers:
        if layer not in named:
            expected = f"a layer with weights: {', '.join(named)}"
            raise InputError(source, "placement.weights.layers", layer, expected)
    for text in placement.weights.blocks:
        last = max(block_numbers(text))
        if last >= model.num_hidden_layers:
            expected = f"blocks below {model.num_hidden_layers}, the model's"
            raise InputError(source, "placement.weights.blocks", text, expected)


def _check_tied(stages: list[list[LayerWeights]], source: str | Path) -> None:
    """One matrix is in one place."""
    for layers in stages:
        ends = {one.layer: one for one in layers if one.layer in ("embedding", "lm_head")}
        head = ends.get("lm_head")
        if head is not None and not head.held_bytes and head.place != ends["embedding"].place:
            expected = f"{ends['embedding'].place}, as the embedding that it is tied to"
            raise InputError(source, "placement.weights: lm_head", head.place, expected)
