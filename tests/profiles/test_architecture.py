from __future__ import annotations

import pytest

from profiles.architecture import Architecture, known_architectures, load_architecture
from profiles.errors import InputError, parse_model


def test_known_architectures() -> None:
    assert known_architectures() == ["llama", "mixtral", "phimoe", "qwen3", "qwen3_moe", "step"]


@pytest.mark.parametrize("name", sorted({*known_architectures()} - {"step"}))
def test_every_architecture_is_complete(name: str) -> None:
    architecture = load_architecture(name)
    assert architecture.name == name
    assert architecture.is_moe == (name in ("mixtral", "phimoe", "qwen3_moe"))
    assert architecture.block("attention") == ("attention",)
    assert architecture.once("per_sequence") == ("lm_head", "sampler")
    assert ("qk_norm" in architecture.block("dense")) == name.startswith("qwen3")
    assert bool(architecture.layers("moe")) == architecture.is_moe


def test_a_whole_step_is_one_layer_that_runs_once() -> None:
    step = load_architecture("step")
    assert step.is_whole_step and not load_architecture("llama").is_whole_step
    assert (step.once("attention"), step.block("attention")) == (("step",), ())


def test_order_of_a_llama_step() -> None:
    llama = load_architecture("llama")
    assert llama.pre_attn == ("layernorm", "qkv_proj", "rotary_emb", "attention")
    assert llama.once("dense") == ("embedding", "final_layernorm")
    assert llama.block("dense").count("layernorm") == 2
    assert llama.table_of("sampler") == "per_sequence"
    assert set(llama.tp_stable) == {"layernorm", "final_layernorm", "sampler"}


def test_wrong_architectures() -> None:
    data = load_architecture("llama").model_dump()
    wrong = {**data, "head": ("final_layernorm", "logits")}
    with pytest.raises(InputError, match=r"a.yaml: head: got 'logits', .*exactly one of tables"):
        parse_model(Architecture, wrong, "a.yaml")
    with pytest.raises(InputError, match=r"a.yaml: tp_stable: got 'norm'"):
        parse_model(Architecture, {**data, "tp_stable": ("norm",)}, "a.yaml")
    with pytest.raises(InputError, match=r"meta.yaml: architecture: got '../x', expected one of"):
        load_architecture("../x", "meta.yaml")
