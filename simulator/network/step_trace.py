"""One serving step as rows: what LLMServingSim's text trace says, and what every rank runs.

All ranks run the same rows. Tensor-parallel ranks add up partial results over the innermost dimension:
where the tables have a layer for it, else after REDUCED_LAYERS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiles.architecture import ALL_REDUCE
from profiles.errors import InputError
from profiles.model import ModelConfig
from simulator.network.config import CollectiveKind, NetworkConfig
from simulator.network.trace import Collective, Compute, MemoryAccess, Node, Trace
from simulator.step_layers import LayerTime, StepSize

REDUCED_LAYERS = ("o_proj", "down_proj", "moe")
"""After these LLMServingSim's tensor-parallel ranks add up what they have."""
TOKEN_BYTES = 4
"""Of a token id."""


@dataclass(frozen=True, slots=True)
class Row:
    """A layer of a rank: sizes in bytes; the collective that follows it, if one does."""

    name: str
    ns: int
    input_bytes: int
    weight_bytes: int
    output_bytes: int
    collective: CollectiveKind | None = None
    collective_bytes: int = 0


@dataclass(frozen=True)
class LayerShapes:
    """Bytes in, of weights and out of a layer on one of `ranks` tensor-parallel ranks.

    Bytes of an element are those of activations, of the KV cache, and of the weights of projections
    and experts, which quantization makes smaller.
    """

    model: ModelConfig
    ranks: int
    element_bytes: int
    kv_element_bytes: int
    matrix_element_bytes: int

    def sizes(self, layer: str, size: StepSize) -> tuple[int, int, int]:
        """Layers that are not known here pass the hidden states on and have no weights."""
        m, e, r = self.model, self.element_bytes, self.ranks
        w = self.matrix_element_bytes
        tokens, sequences = size.num_tokens, size.num_requests
        q = m.num_attention_heads * m.head_dim // r
        kv = max(1, m.num_key_value_heads // r) * m.head_dim
        mlp = m.intermediate_size // r
        hidden = tokens * m.hidden_size * e
        kv_read = 2 * kv * (size.kv_prefill + size.kv_decode + tokens) * self.kv_element_bytes
        expert = 3 * m.hidden_size * (m.moe_intermediate_size or m.intermediate_size) // r
        vocab = m.vocab_size // r
        known = {
            "embedding": (tokens * TOKEN_BYTES, vocab * m.hidden_size * e, hidden),
            "layernorm": (hidden, m.hidden_size * e, hidden),
            "qkv_proj": (hidden, m.hidden_size * (q + 2 * kv) * w, tokens * (q + 2 * kv) * e),
            "qk_norm": (tokens * (q + kv) * e, 2 * m.head_dim * e, tokens * (q + kv) * e),
            "rotary_emb": (tokens * (q + kv) * e, 0, tokens * (q + kv) * e),
            "attention": (tokens * q * e + kv_read, 0, tokens * q * e),
            "o_proj": (tokens * q * e, q * m.hidden_size * w, hidden),
            "gate_up_proj": (hidden, 2 * m.hidden_size * mlp * w, 2 * tokens * mlp * e),
            "act_fn": (2 * tokens * mlp * e, 0, tokens * mlp * e),
            "down_proj": (tokens * mlp * e, mlp * m.hidden_size * w, hidden),
            "moe": (hidden, m.experts * (m.hidden_size * e + expert * w), hidden),
            "final_layernorm": (hidden, m.hidden_size * e, hidden),
            "lm_head": (
                sequences * m.hidden_size * e,
                vocab * m.hidden_size * e,
                sequences * vocab * e,
            ),
            "sampler": (sequences * vocab * e, 0, sequences * TOKEN_BYTES),
        }
        return known.get(layer, (hidden, 0, hidden))


def step_rows(
    layers: Iterable[LayerTime], size: StepSize, shapes: LayerShapes, network: NetworkConfig | None
) -> list[Row]:
    """The rows of a step. With a network its all-reduces are modelled, measured ones left out."""
    given = list(layers)
    measured = any(layer.layer == ALL_REDUCE for layer in given)
    modelled = network is not None and network.dimensions[0].ranks > 1
    if modelled and measured:
        followed = {i - 1 for i, layer in enumerate(given) if layer.layer == ALL_REDUCE}
    else:
        followed = {i for i, layer in enumerate(given) if layer.layer in REDUCED_LAYERS}
    rows: list[Row] = []
    for i, layer in enumerate(given):
        if modelled and layer.layer == ALL_REDUCE:
            continue
        row = Row(f"{layer.layer}_{len(rows)}", layer.ns, *shapes.sizes(layer.layer, size))
        if modelled and i in followed:
            num_bytes = size.num_tokens * shapes.model.hidden_size * shapes.element_bytes
            row = replace(row, collective="all_reduce", collective_bytes=num_bytes)
        rows.append(row)
    # The host hands token ids to the first row and takes the sampled ones from the last.
    ids, sampled = size.num_tokens * TOKEN_BYTES, size.num_requests * TOKEN_BYTES
    rows[0] = replace(rows[0], input_bytes=ids)
    rows[-1] = replace(rows[-1], output_bytes=sampled)
    return rows


def rows_trace(rows: Sequence[Row], network: NetworkConfig, *, host: bool) -> Trace:
    """What every rank runs: each row after the one before it and its collective.

    With `host` the token ids are loaded from remote memory first and the sampled ones stored last,
    as LLMServingSim's converter makes of a text trace.
    """
    if host and network.remote_memory is None:
        raise InputError("network", "remote_memory", None, "the host's memory, to read tokens from")
    dims = (0,) if len(network.dimensions) > 1 else None
    nodes: list[Node] = []

    def after() -> tuple[int, ...]:
        return (len(nodes) - 1,) if nodes else ()

    if host:
        nodes.append(MemoryAccess(f"{rows[0].name}_input", "remote", rows[0].input_bytes))
    for row in rows:
        nodes.append(Compute(row.name, row.ns, after()))
        if row.collective:
            name = f"{row.name}_{row.collective}"
            nodes.append(Collective(name, row.collective, row.collective_bytes, dims, after()))
    if host:
        last = rows[-1]
        store = MemoryAccess(f"{last.name}_output", "remote", last.output_bytes, True, 0, after())
        nodes.append(store)
    return Trace((tuple(nodes),) * network.ranks)
