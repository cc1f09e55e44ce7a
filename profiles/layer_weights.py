"""What the weights of one layer take, by the layers' names in `architectures/`.

Over all layers that a rank runs they add up to `ModelConfig.weight_bytes` of its shard.
"""

from __future__ import annotations

from profiles.model import BYTES_PER_ELEMENT, ModelConfig, Shard


def layer_weight_bytes(
    model: ModelConfig,
    layer: str,
    block: int,
    shard: Shard,
    dtype: str = "auto",
    quantization: str | None = None,
) -> int:
    """Bytes of one rank; 0 of a layer that has no weights.

    `block` is the transformer block, of which some models have some without experts; layers outside
    of blocks do not look at it. A head that is tied to the embedding counts as if it had its own.
    """
    element = model.bytes_per_element(dtype)
    matrix = BYTES_PER_ELEMENT["fp8"] if quantization else element
    m, ranks, hidden = model, shard.tensor_parallel, model.hidden_size
    q = m.num_attention_heads * m.head_dim // ranks
    qkv = q + 2 * m.kv_heads_on_rank(ranks) * m.head_dim
    inner = m.intermediate_size // ranks
    vocabulary = -(-m.vocab_size // ranks)
    bias, mlp_bias = int(m.attention_bias) * element, int(m.mlp_bias) * element
    if layer == "embedding":
        return vocabulary * hidden * element
    if layer == "lm_head":
        return vocabulary * (hidden + int(m.lm_head_bias)) * element
    if layer in ("layernorm", "final_layernorm"):
        return m.norm_parameters * element
    if layer == "qk_norm":
        return 2 * m.head_dim * element
    if layer == "qkv_proj":
        return hidden * qkv * matrix + qkv * bias
    if layer == "o_proj":
        return q * hidden * matrix + hidden * bias
    if layer == "gate_up_proj":
        return 2 * hidden * inner * matrix + 2 * inner * mlp_bias
    if layer == "down_proj":
        return inner * hidden * matrix + hidden * mlp_bias
    if layer == "moe" and m.has_experts(block):
        return m.experts * hidden * element + m.expert_parameters(shard) * matrix
    if layer == "moe":
        return 3 * hidden * inner * matrix + (2 * inner + hidden) * mlp_bias
    return 0
