"""One serving step of a replica as rows, which rank_trace.py lays on ranks and text_trace.py writes.

Tensor-parallel ranks add up partial results: where the tables have a layer for it, else after
REDUCED_LAYERS. Ranks that share experts exchange tokens before and after them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiles.architecture import ALL_REDUCE
from profiles.model import ModelConfig
from simulator.network.config import CollectiveKind
from simulator.network.experts import Exchange, ExpertRanks
from simulator.step_layers import LayerTime, StepSize

EXPERTS = "moe"
REDUCED_LAYERS = ("o_proj", "down_proj", EXPERTS)
"""After these LLMServingSim's tensor-parallel ranks add up what they have."""
TOKEN_BYTES = 4
"""Of a token id."""


@dataclass(frozen=True, slots=True)
class Row:
    """A layer of a rank of one pipeline stage, sizes in bytes.

    `collective` follows it, over the tensor-parallel ranks; exchanges before and after are of experts.
    """

    name: str
    ns: int
    input_bytes: int
    weight_bytes: int
    output_bytes: int
    collective: CollectiveKind | None = None
    collective_bytes: int = 0
    stage: int = 0
    before: tuple[Exchange[int], ...] = ()
    after: tuple[Exchange[int], ...] = ()


@dataclass(frozen=True)
class LayerShapes:
    """Bytes in, of weights and out of a layer on one of `ranks` tensor-parallel ranks.

    Bytes of an element are those of activations, of the KV cache, and of the weights of projections
    and experts, which quantization makes smaller. Experts are cut by `expert_ranks`; None: as the rest.
    """

    model: ModelConfig
    ranks: int
    element_bytes: int
    kv_element_bytes: int
    matrix_element_bytes: int
    expert_ranks: int | None = None

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
        expert = 3 * m.hidden_size * (m.moe_intermediate_size or m.intermediate_size)
        experts = m.experts * expert // (self.expert_ranks or r)
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
            "moe": (hidden, m.experts * m.hidden_size * e + experts * w, hidden),
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
    layers: Iterable[LayerTime],
    size: StepSize,
    shapes: LayerShapes,
    *,
    modelled: bool,
    first_blocks: Sequence[int] = (0,),
    experts: ExpertRanks | None = None,
    share: int = 0,
) -> list[Row]:
    """The rows of a step. `modelled`: all-reduces are collectives, measured ones left out.

    `experts` are shared with replicas, each of which runs `share` tokens. A row is in the stage of its
    block, by the first block of every stage; one outside of blocks in that of the row before it.
    """
    given = list(layers)
    measured = any(layer.layer == ALL_REDUCE for layer in given)
    if modelled and measured:
        followed = {i - 1 for i, layer in enumerate(given) if layer.layer == ALL_REDUCE}
    else:
        followed = {i for i, layer in enumerate(given) if layer.layer in REDUCED_LAYERS}
    rows: list[Row] = []
    stage = 0
    for i, layer in enumerate(given):
        if modelled and layer.layer == ALL_REDUCE:
            continue
        if layer.block >= 0:
            stage = bisect_right(first_blocks, layer.block) - 1
        sizes = shapes.sizes(layer.layer, size)
        row = Row(f"{layer.layer}_{len(rows)}", layer.ns, *sizes, stage=stage)
        if layer.layer == EXPERTS and experts is not None:
            before, after = experts.around(shapes.model, shapes.element_bytes, share)
            row = replace(row, before=before, after=after)
        if modelled and i in followed and not row.after:
            num_bytes = size.num_tokens * shapes.model.hidden_size * shapes.element_bytes
            row = replace(row, collective="all_reduce", collective_bytes=num_bytes)
        rows.append(row)
    # The host hands token ids to the first row and takes the sampled ones from the last.
    ids, sampled = size.num_tokens * TOKEN_BYTES, max(1, size.num_requests) * TOKEN_BYTES
    rows[0] = replace(rows[0], input_bytes=ids)
    rows[-1] = replace(rows[-1], output_bytes=sampled)
    return rows
