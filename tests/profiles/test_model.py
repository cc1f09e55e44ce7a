"""Model configurations: published sizes, and what a wrong file is answered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError, parse_model
from profiles.model import ModelConfig
from tests.profiles.bundles import REFERENCE, needs_reference

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}


def write_config(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "Llama-8B/config.json"
    path.parent.mkdir(exist_ok=True)
    data = {k: v for k, v in {**LLAMA_8B, **changes}.items() if v != "left out"}
    path.write_text(json.dumps(data))
    return path


def test_llama_8b(tmp_path: Path) -> None:
    model = ModelConfig.from_hf(write_config(tmp_path))
    assert model.name == "Llama-8B"
    assert model.head_dim == 128
    assert model.num_parameters == 8_030_261_248
    assert model.weight_bytes("auto") == model.weight_bytes("bfloat16") == 2 * 8_030_261_248
    assert model.kv_bytes_per_token("auto") == 2 * 8 * 128 * 32 * 2
    assert model.kv_bytes_per_token("fp8", ranks=4) == 2 * 2 * 128 * 32
    assert model.kv_bytes_per_token("fp8", ranks=16) == 2 * 1 * 128 * 32
    assert ModelConfig.from_hf(write_config(tmp_path).parent) == model
    assert ModelConfig(**model.model_dump()) == model


def test_tied_embedding_is_counted_once(tmp_path: Path) -> None:
    model = ModelConfig.from_hf(write_config(tmp_path, tie_word_embeddings=True))
    assert model.num_parameters == 8_030_261_248 - 128256 * 4096


@pytest.mark.parametrize(
    ("file", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30_532_122_624),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("microsoft/Phi-mini-MoE-instruct", 7_647_632_704),
    ],
)
@needs_reference
def test_published_models(file: str, parameters: int) -> None:
    model = ModelConfig.from_hf(REFERENCE / f"models/{file}.json")
    assert model.name == file.rpartition("/")[2]
    assert model.num_parameters == parameters


def test_names_that_configurations_use_as_well(tmp_path: Path) -> None:
    path = write_config(tmp_path, torch_dtype="left out", dtype="float16")
    assert ModelConfig.from_hf(path).torch_dtype == "float16"
    path = write_config(tmp_path, dtype="float16")
    assert ModelConfig.from_hf(path).torch_dtype == "bfloat16"
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert ModelConfig.from_hf(write_config(tmp_path, **experts)).num_experts == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "left out"}, "config.json: hidden_size: got nothing"),
        ({"hidden_size": "4096"}, "config.json: hidden_size: got '4096'"),
        ({"vocab_size": 0}, "config.json: vocab_size: got 0, .*greater than or equal to 1"),
        ({"num_hidden_layers": 1.5}, "config.json: num_hidden_layers: got 1.5"),
        ({"num_key_value_heads": None}, "config.json: num_key_value_heads: got nothing"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: got 5, .*divisor .*32"),
        ({"hidden_size": 4100}, "head_dim: got nothing, .*4100 is not a multiple of 32"),
        ({"model_type": "gpt2"}, "config.json: model_type: got 'gpt2'"),
        ({"torch_dtype": "int4"}, "config.json: torch_dtype: got 'int4'"),
        ({"model_type": "mixtral"}, "config.json: num_experts: got nothing"),
        (
            {"model_type": "mixtral", "num_experts": 2, "num_experts_per_tok": 4},
            "num_experts_per_tok: got 4, expected at most num_experts",
        ),
    ],
)
def test_wrong_configurations(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelConfig.from_hf(write_config(tmp_path, **changes))


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json: file: got nothing"):
        ModelConfig.from_hf(tmp_path)
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": ')
    with pytest.raises(InputError, match=r"config.json: line 1, column"):
        ModelConfig.from_hf(path)
    path.write_text("[1]")
    with pytest.raises(InputError, match=r"config.json: file: .*object"):
        ModelConfig.from_hf(path)


def test_unknown_fields_are_refused_where_we_write_the_file(tmp_path: Path) -> None:
    model = ModelConfig.from_hf(write_config(tmp_path))
    with pytest.raises(InputError, match=r"point.yaml: hiden_size: .*no such field"):
        parse_model(ModelConfig, {**model.model_dump(), "hiden_size": 1}, "point.yaml")


def test_wrong_questions(tmp_path: Path) -> None:
    model = ModelConfig.from_hf(write_config(tmp_path))
    with pytest.raises(InputError, match=r"dtype: got 'int3', expected auto or one of"):
        model.weight_bytes("int3")
    for ranks in (0, 3, 12):
        with pytest.raises(InputError, match=f"ranks: got {ranks}, expected a divisor"):
            model.kv_bytes_per_token("auto", ranks)
