"""A model: the subset of Hugging Face's config.json that serving needs, and what follows from it.

Parameter counts follow the shapes of the families' published implementations: llama, qwen3,
mixtral, phimoe and qwen3_moe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from profiles.errors import MISSING, FieldError, InputError, parse_model
from profiles.foreign import json_object, read_file

Positive = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]

# vLLM's names for what an element is stored in.
BYTES_PER_ELEMENT = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "int8": 1,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}

MOE_TYPES = ("mixtral", "phimoe", "qwen3_moe")


def _first_of(*names: str) -> Any:
    """The first name is ours, the others are what configurations call it as well."""
    return AliasChoices(*names)


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a model.

    `tensor_parallel` ranks share every matrix. With `expert_parallel` above 1 so many ranks share whole
    experts instead of parts of each. `layers`: (first, end) of its transformer blocks, None: all.
    """

    tensor_parallel: int = 1
    expert_parallel: int = 1
    layers: tuple[int, int] | None = None


WHOLE = Shard()


class ModelConfig(BaseModel):
    """Shapes of one model. `name` only identifies it."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: Annotated[str, Field(min_length=1)]
    model_type: Literal["llama", "qwen3", "mixtral", "phimoe", "qwen3_moe"]
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    vocab_size: Positive
    torch_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        validation_alias=_first_of("torch_dtype", "dtype")
    )
    tie_word_embeddings: Flag = False
    max_position_embeddings: Positive
    attention_bias: Flag = False
    mlp_bias: Flag = False
    lm_head_bias: Flag = False
    num_experts: Positive | None = Field(
        None, validation_alias=_first_of("num_experts", "num_local_experts")
    )
    num_experts_per_tok: Positive | None = None
    moe_intermediate_size: Positive | None = None  # of one expert; absent: intermediate_size
    decoder_sparse_step: Positive = 1  # every how many layers have experts
    mlp_only_layers: tuple[int, ...] = ()  # layers that have none in any case

    @model_validator(mode="before")
    @classmethod
    def _head_dim_follows(cls, data: Any) -> Any:
        """Configurations leave head_dim out where it is hidden_size / num_attention_heads."""
        if not isinstance(data, dict) or data.get("head_dim") is not None:
            return data
        hidden, heads = data.get("hidden_size"), data.get("num_attention_heads")
        if type(hidden) is int and type(heads) is int and heads > 0:
            if hidden % heads:
                expected = f"a value, as {hidden} is not a multiple of {heads} heads"
                raise FieldError("head_dim", MISSING, expected)
            return {**data, "head_dim": hidden // heads}
        return {field: value for field, value in data.items() if field != "head_dim"}

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            expected = f"a divisor of num_attention_heads ({self.num_attention_heads})"
            raise FieldError("num_key_value_heads", self.num_key_value_heads, expected)
        if self.is_moe:
            for field in ("num_experts", "num_experts_per_tok"):
                if getattr(self, field) is None:
                    raise FieldError(field, MISSING, f"a value, {self.model_type} has experts")
            if self.experts_per_token > self.experts:
                expected = f"at most num_experts ({self.experts})"
                raise FieldError("num_experts_per_tok", self.experts_per_token, expected)
        return self

    @classmethod
    def from_hf(cls, path: Path, name: str | None = None) -> ModelConfig:
        """Read a Hugging Face config.json (or the folder that holds it); other fields are ignored.

        The name is the file's, or the folder's where the file is called config.json.
        """
        path = Path(path)
        if path.is_dir():
            path /= "config.json"
        data = json_object(read_file(path), path)
        subset: dict[str, Any] = {}
        for field, names in _CHOICES.items():
            given = [name for name in names if data.get(name) is not None]
            if given:
                subset[field] = data[given[0]]
        default_name = path.resolve().parent.name if path.stem == "config" else path.stem
        return parse_model(cls, {**subset, "name": name or default_name}, path)

    @property
    def is_moe(self) -> bool:
        return self.model_type in MOE_TYPES

    @property
    def experts(self) -> int:
        return self.num_experts or 0

    @property
    def experts_per_token(self) -> int:
        return self.num_experts_per_tok or 0

    @property
    def num_parameters(self) -> int:
        """Elements of all weights: embedding, blocks, final norm, and the head where it is own."""
        return self.parameters_of(WHOLE)

    def parameters_of(self, shard: Shard) -> int:
        """Elements of the weights that one rank holds.

        Every rank has all norms and routers and its share of the rest; KV heads are repeated where
        there are fewer than ranks. The first stage has the embedding, the last one the final norm and
        the head, for which a tied embedding is held twice. The ranks must divide the shapes
        (`check_tensor_parallel`).
        """
        ranks = shard.tensor_parallel
        first, end = shard.layers or (0, self.num_hidden_layers)
        vocabulary = -(-self.vocab_size // ranks)
        embedding = vocabulary * self.hidden_size
        count = 0
        if first == 0:
            count += embedding
        if end == self.num_hidden_layers:
            own = first > 0 or not self.tie_word_embeddings
            count += self.norm_parameters + (embedding if own else 0)
            count += vocabulary if self.lm_head_bias else 0
        moe_layers = sum(map(self.has_experts, range(first, end)))
        count += (end - first) * (self._attention_parameters(ranks) + 2 * self.norm_parameters)
        count += (end - first - moe_layers) * self._mlp_parameters(ranks)
        return count + moe_layers * self._moe_parameters(shard)

    @property
    def all_layers_have_experts(self) -> bool:
        return all(map(self.has_experts, range(self.num_hidden_layers)))

    def has_experts(self, layer: int) -> bool:
        on_step = (layer + 1) % self.decoder_sparse_step == 0
        return self.is_moe and on_step and layer not in self.mlp_only_layers

    @property
    def norm_parameters(self) -> int:
        """Phi MoE's norms are LayerNorm, with a bias; the others' have a scale only."""
        return self.hidden_size * (2 if self.model_type == "phimoe" else 1)

    def kv_heads_on_rank(self, ranks: int) -> int:
        """Fewer KV heads than ranks are repeated, one on every rank, as vLLM does."""
        return max(1, self.num_key_value_heads // ranks)

    def _attention_matrices(self, ranks: int) -> int:
        q = self.num_attention_heads * self.head_dim // ranks
        kv = self.kv_heads_on_rank(ranks) * self.head_dim
        return self.hidden_size * (q + 2 * kv) + q * self.hidden_size

    def _attention_parameters(self, ranks: int) -> int:
        q = self.num_attention_heads * self.head_dim // ranks
        kv = self.kv_heads_on_rank(ranks) * self.head_dim
        count = self._attention_matrices(ranks)
        if self.attention_bias:
            count += q + 2 * kv + self.hidden_size
        if self.model_type in ("qwen3", "qwen3_moe"):
            count += 2 * self.head_dim  # norms of q and k
        return count

    def _mlp_parameters(self, ranks: int) -> int:
        inner = self.intermediate_size // ranks
        bias = 2 * inner + self.hidden_size if self.mlp_bias else 0
        return 3 * self.hidden_size * inner + bias

    def _moe_parameters(self, shard: Shard) -> int:
        """The router, and the experts."""
        return self.experts * self.hidden_size + self.expert_parameters(shard)

    def expert_parameters(self, shard: Shard) -> int:
        """Of whole experts, or of a part of each."""
        matrix = self.hidden_size * self.expert_size
        if shard.expert_parallel > 1:
            return self.experts // shard.expert_parallel * 3 * matrix
        return self.experts * 3 * (matrix // shard.tensor_parallel)

    @property
    def expert_size(self) -> int:
        """Inside one expert."""
        return self.moe_intermediate_size or self.intermediate_size

    def check_tensor_parallel(self, ranks: int, source: str | Path) -> None:
        """The divisions that vLLM asks for; raises InputError naming the engine's field."""
        field = "engine.tensor_parallel_size"
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % ranks:
            raise InputError(source, field, ranks, f"a divisor of the {heads} attention heads")
        if kv_heads % ranks and ranks % kv_heads:
            expected = f"a divisor or a multiple of the {kv_heads} KV heads"
            raise InputError(source, field, ranks, expected)
        inner = "moe_intermediate_size" if self.moe_intermediate_size else "intermediate_size"
        size = self.expert_size if self.is_moe else self.intermediate_size
        if size % ranks:
            raise InputError(source, field, ranks, f"a divisor of {inner} ({size})")

    def bytes_per_element(self, dtype: str) -> int:
        """Of weights or KV cache stored as `dtype`; "auto" is the model's own."""
        stored = self.torch_dtype if dtype == "auto" else dtype
        if stored not in BYTES_PER_ELEMENT:
            expected = f"auto or one of {', '.join(BYTES_PER_ELEMENT)}"
            raise InputError(self.name, "dtype", dtype, expected)
        return BYTES_PER_ELEMENT[stored]

    def weight_bytes(
        self,
        dtype: str = "auto",
        shard: Shard | None = None,
        quantization: str | None = None,
    ) -> int:
        """Of the weights that one rank holds; without a shard, of all.

        `quantization` fp8 stores the matrices of attention, MLPs and experts in one byte; embedding,
        head, norms, routers and biases stay as they are. Its scales are left out.
        """
        held = shard or WHOLE
        small = self._quantized(held) if quantization else 0
        kept = self.parameters_of(held) - small
        return kept * self.bytes_per_element(dtype) + small * BYTES_PER_ELEMENT["fp8"]

    def _quantized(self, shard: Shard) -> int:
        ranks = shard.tensor_parallel
        first, end = shard.layers or (0, self.num_hidden_layers)
        moe_layers = sum(map(self.has_experts, range(first, end)))
        mlp = 3 * self.hidden_size * (self.intermediate_size // ranks)
        count = (end - first) * self._attention_matrices(ranks)
        count += (end - first - moe_layers) * mlp
        return count + moe_layers * self.expert_parameters(shard)

    def kv_bytes_per_token(
        self, kv_cache_dtype: str = "auto", ranks: int = 1, num_layers: int | None = None
    ) -> int:
        """Keys and values of one token on one of `ranks` tensor-parallel ranks."""
        heads = self.num_key_value_heads
        if ranks < 1 or (heads % ranks and ranks % heads):
            expected = f"a divisor or a multiple of the {heads} KV heads"
            raise InputError(self.name, "ranks", ranks, expected)
        element = self.bytes_per_element(kv_cache_dtype)
        layers = self.num_hidden_layers if num_layers is None else num_layers
        return 2 * self.kv_heads_on_rank(ranks) * self.head_dim * layers * element


_CHOICES: dict[str, tuple[str, ...]] = {
    name: tuple(map(str, field.validation_alias.choices))
    if isinstance(field.validation_alias, AliasChoices)
    else (name,)
    for name, field in ModelConfig.model_fields.items()
    if name != "name"
}
