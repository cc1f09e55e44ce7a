"""What of a model and an engine decides a bundle: the shapes of one rank's kernels."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.aiconfigurator.source import Place
from profiles.errors import InputError
from profiles.model import ModelConfig

VOCABULARY_PADDING = 64  # vLLM rounds the vocabulary up to a multiple


@dataclass(frozen=True)
class Shape:
    """One rank's kernels. A dense model has no experts, one with experts no intermediate size."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tp: int = 1
    kv_cache_dtype: str = "bfloat16"
    weight_dtype: str = "bfloat16"  # of matrices within blocks; head and router stay as they are
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        dtype: str,
        kv_cache_dtype: str,
        tp: int,
        place: Place,
        quantization: str | None = None,
    ) -> Shape:
        """The shapes of `model` on one of `tp` ranks. Raises InputError if they do not divide.

        `dtype` and `kv_cache_dtype` are resolved: no auto.
        """
        if dtype != "bfloat16":
            raise InputError(
                place.source, "engine.dtype", dtype, "bfloat16, which the tables are measured in"
            )
        if kv_cache_dtype not in ("bfloat16", "fp8"):
            raise InputError(
                place.source, "engine.kv_cache_dtype", kv_cache_dtype, "bfloat16 or fp8"
            )
        model.check_tensor_parallel(tp, place.source)
        if model.is_moe and not model.all_layers_have_experts:
            expected = "a model with experts in every layer"
            raise InputError(place.source, "model.decoder_sparse_step", model.name, expected)
        padded = -(-model.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
        return cls(
            model_type=model.model_type,
            hidden_size=model.hidden_size,
            intermediate_size=0 if model.is_moe else model.intermediate_size // tp,
            num_heads=model.num_attention_heads // tp,
            num_kv_heads=model.kv_heads_on_rank(tp),
            head_dim=model.head_dim,
            vocab_size=-(-padded // tp),
            tp=tp,
            kv_cache_dtype=kv_cache_dtype,
            weight_dtype=quantization or dtype,
            experts=model.experts if model.is_moe else 0,
            experts_per_token=model.experts_per_token if model.is_moe else 0,
            expert_size=model.expert_size if model.is_moe else 0,
        )

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim
