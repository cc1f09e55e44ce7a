"""Models that measurements of aiconfigurator-core name; sizes as in their config.json."""

from __future__ import annotations

from typing import Any

COMMON = {"torch_dtype": "bfloat16", "num_key_value_heads": 8, "head_dim": 128}
LLAMA_70B: dict[str, Any] = {
    **COMMON,
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
LLAMA_8B: dict[str, Any] = {
    **COMMON,
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
QWEN_32B: dict[str, Any] = {
    **COMMON,
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
MODELS: dict[str, dict[str, Any]] = {
    name: {"name": name, **fields}
    for name, fields in {
        "meta-llama/Llama-3.1-70B": LLAMA_70B,
        "Qwen/Qwen3-32B": QWEN_32B,
        "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_8B,
    }.items()
}
