"""Models that tests name."""

from __future__ import annotations

from profiles.model import ModelConfig

LLAMA_8B = ModelConfig(
    name="meta-llama/Llama-3.1-8B",
    model_type="llama",
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    torch_dtype="bfloat16",
    max_position_embeddings=131072,
)
MIXTRAL = ModelConfig(
    name="mistralai/Mixtral-8x7B",
    model_type="mixtral",
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=32000,
    torch_dtype="bfloat16",
    max_position_embeddings=32768,
    num_experts=8,
    num_experts_per_tok=2,
)
QWEN_30B = ModelConfig(
    name="Qwen/Qwen3-30B-A3B",
    model_type="qwen3_moe",
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=151936,
    torch_dtype="bfloat16",
    max_position_embeddings=262144,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)
