"""Bundles composed from the package: known steps, what they are made of, and what is not covered."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from profiles import store
from profiles.aiconfigurator import compose
from profiles.aiconfigurator.attention import decode_table, prefill_table
from profiles.aiconfigurator.compose import load_bundle
from profiles.aiconfigurator.gemm import GemmTables, weights
from profiles.aiconfigurator.grid import LARGEST_RATIO, refined
from profiles.aiconfigurator.mixed import Batches
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import Place, find_system, known_systems, load_card
from profiles.bundle import Bundle
from profiles.errors import InputError
from profiles.llmservingsim import load_bundle as read_bundle
from profiles.lookup import attention_ns, layer_ns
from profiles.model import ModelConfig
from profiles.provenance import ASSUMED, DERIVED, INTERPOLATED, MEASURED
from tests.profiles.bundles import REFERENCE, needs_package, needs_reference
from tests.profiles.models import LLAMA_8B, MIXTRAL, QWEN_30B

pytestmark = needs_package
PRO_6000 = REFERENCE / "perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16"


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def shape_of(model: ModelConfig = LLAMA_8B, tp: int = 1, kv: str = "bfloat16") -> Shape:
    return Shape.of(model, "bfloat16", kv, tp, Place())


def bundle_of(system: str, model: ModelConfig = LLAMA_8B, tp: int = 1) -> Bundle:
    return load_bundle(system, None, shape_of(model, tp), Place())


def step_ms(bundle: Bundle, layers: int, prefill: int, n_decode: int, kv: int) -> float:
    """One prompt without a history, or decodes; the layers read one by one."""
    tokens = prefill + n_decode
    sequences = n_decode + (prefill > 0)
    block, once = bundle.architecture.block("dense"), bundle.architecture.once("dense")
    ns = sum(
        (layers * block.count(name) + once.count(name)) * layer_ns(table, tokens)
        for name, table in bundle.dense.items()
    )
    ns += sum(layer_ns(table, sequences) for table in bundle.per_sequence.values())
    return (ns + layers * attention_ns(bundle.attention, prefill, n_decode, 0, kv)) / 1e6


@pytest.mark.parametrize(
    ("system", "decode_ms", "prefill_ms"),
    [
        ("a100_sxm", 17.83, 125.2),
        ("l40s", 38.28, 144.9),
        ("h100_sxm", 10.35, 43.5),
        ("h200_sxm", 7.57, 43.4),
        ("b200_sxm", 4.89, 22.3),
        ("rtx_pro_6000_server", 17.62, 87.6),
    ],
)
def test_known_steps(system: str, decode_ms: float, prefill_ms: float) -> None:
    """Steps of Llama-3.1-8B as the package's own engine composes them, with its own elementwise model,
    rotary embedding and cache write in attention: 64 decodes of 1024 tokens, a prompt of 2048.
    """
    bundle = bundle_of(system)
    assert step_ms(bundle, 32, 0, 64, 1023) == pytest.approx(decode_ms, rel=0.05)
    assert step_ms(bundle, 32, 2048, 0, 0) == pytest.approx(prefill_ms, rel=0.05)


def test_rows_say_where_they_come_from() -> None:
    bundle = bundle_of("h100_sxm")
    source = {layer: set(table.source.tolist()) for layer, table in bundle.dense.items()}
    assert source["qkv_proj"] == source["o_proj"] == {MEASURED}
    assert source["gate_up_proj"] == source["down_proj"] == {INTERPOLATED}
    assert source["layernorm"] == source["act_fn"] == {ASSUMED}
    assert set(bundle.per_sequence["lm_head"].source.tolist()) == {DERIVED}  # beyond 65536 outputs
    grid = bundle.attention
    fresh = (grid.n_decode == 0) & (grid.kv_prefill == 0)
    at = dict(zip(grid.prefill_chunk[fresh].tolist(), grid.source[fresh].tolist(), strict=True))
    assert at[2048] == MEASURED
    assert at[1254] == INTERPOLATED
    assert set(grid.source[(grid.n_decode == 0) & (grid.kv_prefill > 0)].tolist()) == {DERIVED}
    # FlashAttention-3 runs prompts and decodes in one launch: that they add up is assumed.
    mixed = (grid.n_decode > 0) & (grid.prefill_chunk > 0)
    assert set(grid.source[mixed].tolist()) == {ASSUMED}
    flashinfer = bundle_of("b200_sxm").attention
    mixed = (flashinfer.n_decode > 0) & (flashinfer.prefill_chunk > 0)
    assert set(flashinfer.source[mixed].tolist()) == {DERIVED}


def test_measured_rows_are_the_packages() -> None:
    """h100_sxm, bfloat16, (m, n, k) = (64, 4096, 4096) and 64 decodes with step = 1023."""
    import pyarrow.parquet as pq

    system, bundle = find_system("h100_sxm", None), bundle_of("h100_sxm")
    rows = pq.read_table(system.path("gemm")).to_pandas()
    chosen = rows.query("gemm_dtype == 'bfloat16' and m == 64 and n == 4096 and k == 4096")
    assert layer_ns(bundle.dense["o_proj"], 64) == round(chosen.latency.item() * 1e6)
    rows = pq.read_table(system.path("generation_attention")).to_pandas()
    chosen = rows.query(
        "batch_size == 64 and step == 1023 and num_heads == 32 and num_key_value_heads == 8 "
        "and head_dim == 128 and window_size == 0 and kv_cache_dtype == 'bfloat16'"
    )
    expected = round(chosen.latency.item() * 1e6)
    assert attention_ns(bundle.attention, 0, 64, 0, 1023) == expected


def test_weights_of_a_size_between_samples() -> None:
    samples = np.array([4, 8, 16])
    assert weights(samples, 8) == ([(1, 1.0)], MEASURED)
    assert weights(samples, 10) == ([(1, 0.75), (2, 0.25)], INTERPOLATED)
    assert weights(samples, 24) == ([(2, 1.5)], DERIVED)
    assert weights(samples, 2) == ([(0, 1.0)], DERIVED)


def test_lines_between_chunks_follow_the_curve() -> None:
    """Half way between two chunks of the grid a line is within 2 % of the rule itself."""
    assert refined(np.array([1, 8, 16, 32])).tolist() == [1, 8, 16, 19, 23, 27, 32]
    for name in ("a100_sxm", "h100_sxm", "b200_sxm"):
        system, shape = find_system(name, None), shape_of()
        prefill = prefill_table(system, shape)
        batches = Batches(system, shape, prefill, decode_table(system, shape))
        chunks = refined(prefill.tokens)
        assert (chunks[1:] / chunks[:-1])[chunks[:-1] >= 32].max() < LARGEST_RATIO + 0.02
        zero = np.zeros(1, np.int64)
        middle = (chunks[:-1] + chunks[1:]) // 2
        direct = batches.prefill_ns(middle, zero)
        line = np.interp(middle, chunks, batches.prefill_ns(chunks, zero))
        assert np.abs(line / direct - 1)[middle > 16].max() < 0.02


@needs_reference
def test_products_agree_with_another_measurement() -> None:
    """Of the same card by LLMServingSim, eager, at the token counts that both measured."""
    ours, theirs = bundle_of("rtx_pro_6000_server"), read_bundle(PRO_6000)
    for layer in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
        one, other = ours.dense[layer], theirs.dense[layer]
        keys = np.intersect1d(one.keys, other.keys)
        ratio = one.ns[np.isin(one.keys, keys)] / other.ns[np.isin(other.keys, keys)]
        assert len(keys) == 34
        assert 0.94 < ratio.mean() < 1.02
        assert ratio.min() > 0.87
        assert ratio.max() < 1.06


@needs_reference
def test_attention_agrees_with_another_measurement() -> None:
    ours, theirs = bundle_of("rtx_pro_6000_server").attention, read_bundle(PRO_6000).attention
    large = (theirs.n_decode >= 4) & (theirs.kv_decode >= 512)

    def ratios(chosen: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(chosen)
        keys = (theirs.prefill_chunk, theirs.n_decode, theirs.kv_prefill, theirs.kv_decode)
        found = [attention_ns(ours, *(int(k[i]) for k in keys)) / theirs.ns[i] for i in rows]
        return np.array(found)

    decode = ratios((theirs.prefill_chunk == 0) & large)
    assert np.median(np.abs(decode - 1)) < 0.12
    history = ratios((theirs.n_decode == 0) & (theirs.kv_prefill > 0))
    assert np.mean(np.abs(history - 1)) < 0.08
    mixed = (theirs.prefill_chunk > 0) & (theirs.n_decode > 0) & (theirs.kv_prefill == 0)
    every_tenth = np.zeros(len(mixed), bool)
    every_tenth[np.flatnonzero(mixed)[::10]] = True
    together = ratios(every_tenth)
    assert abs(np.median(together) - 1) < 0.05
    assert np.mean(np.abs(together - 1)) < 0.15


def test_comes_from_the_store_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = bundle_of("l40s")
    monkeypatch.setattr(compose, "compose", None)  # calling it would fail
    second = bundle_of("l40s")
    assert second.content_id == first.content_id
    assert second.architecture == first.architecture
    for name in ("prefill_chunk", "n_decode", "kv_prefill", "kv_decode", "ns", "source"):
        one, other = getattr(first.attention, name), getattr(second.attention, name)
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype


def test_content_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {bundle_of("l40s").content_id, bundle_of("l40s", tp=2).content_id}
    ids.add(bundle_of("h100_sxm").content_id)
    ids.add(load_bundle("l40s", None, shape_of(kv="fp8"), Place()).content_id)
    monkeypatch.setattr(compose, "RECIPE", compose.RECIPE + 1)
    ids.add(bundle_of("l40s").content_id)
    assert len(ids) == 5
    assert store.folder().is_dir()


def test_ranks_share_the_work() -> None:
    alone, rank = bundle_of("h100_sxm"), bundle_of("h100_sxm", tp=2)
    assert rank.architecture.block("dense").count("all_reduce") == 2
    assert rank.architecture.once("dense").count("all_reduce") == 1
    gemm = GemmTables(find_system("h100_sxm", None))
    assert np.array_equal(rank.dense["down_proj"].ns, gemm.layer(4096, 7168).ns)
    assert rank.dense["layernorm"].ns.tolist() == alone.dense["layernorm"].ns.tolist()
    # 1 token of 4096 elements and 2048 of them, under a graph: 4.4 us and 81.4 us.
    reduce = rank.dense["all_reduce"]
    assert layer_ns(reduce, 1) == pytest.approx(4400, abs=100)
    assert layer_ns(reduce, 2048) == pytest.approx(81_400, abs=100)
    assert reduce.source[reduce.keys == 2048].tolist() == [MEASURED]


@needs_reference
def test_experts_agree_with_another_measurement() -> None:
    """LLMServingSim's table of the same card, at the experts that so many tokens wake."""
    from profiles.routing import Routing, experts_by_tokens

    folder = REFERENCE / "perf/RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16"
    moe = read_bundle(folder).moe
    assert moe is not None
    theirs = experts_by_tokens(moe, Routing(128, 8))
    ours = bundle_of("rtx_pro_6000_server", QWEN_30B).dense["moe"]
    for tokens in (4, 8, 16, 64, 128, 256, 512, 1024, 2048):
        assert layer_ns(ours, tokens) == pytest.approx(layer_ns(theirs, tokens), rel=0.1)


def test_experts_are_a_layer_by_tokens() -> None:
    bundle = bundle_of("a100_sxm", MIXTRAL, tp=4)
    assert bundle.architecture.block("dense")[-2:] == ("moe", "all_reduce")
    assert set(bundle.dense["moe"].source.tolist()) == {DERIVED}  # a skewed routing was measured
    balanced = bundle_of("h100_sxm", MIXTRAL).dense["moe"]
    assert balanced.source[balanced.keys == 64].tolist() == [MEASURED]
    assert balanced.source[balanced.keys == 2].tolist() == [DERIVED]


def test_cards_are_the_data_sheets() -> None:
    card = load_card("h100_sxm")
    assert card.memory_bytes == 80 * 2**30
    assert card.memory_bandwidth_gbps == 3350
    assert card.bfloat16_tflops == 989
    assert {"a100_sxm", "l40s", "b200_sxm", "rtx_pro_6000_server"} <= set(known_systems())


@pytest.mark.parametrize(
    ("system", "version", "shape", "said"),
    [
        ("h100", None, {}, "profile.aiconfigurator.system: got 'h100', expected one of a100_sxm"),
        ("h100_sxm", "0.19.0", {}, "profile.aiconfigurator.version: got '0.19.0', expected one of"),
        ("h100_sxm", None, {"num_heads": 28}, "got '28 heads, 8 KV heads of 128 on a rank'"),
        ("a100_sxm", None, {"head_dim": 64}, "expected a head_dim measured on a100_sxm: 128"),
        ("a100_sxm", None, {"kv_cache_dtype": "fp8"}, "engine.kv_cache_dtype: got 'fp8'"),
        ("gb200", None, {"tp": 8}, "engine.tensor_parallel_size: got 8, expected one of 1, 2, 4,"),
        ("b60", None, {"experts": 8, "experts_per_token": 2, "expert_size": 14336},
         "got 'experts of hidden size 4096, 14336 inside, 2 of 8 per token'"),
    ],
)  # fmt: skip
def test_what_is_not_covered(system: str, version: str | None, shape: dict, said: str) -> None:
    changed = dataclasses.replace(shape_of(), **shape)
    if "experts" in shape:
        changed = dataclasses.replace(changed, model_type="mixtral")
    with pytest.raises(InputError) as caught:
        load_bundle(system, version, changed, Place("point.yaml"))
    assert str(caught.value).startswith("point.yaml: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "kv", "tp", "field"),
    [
        ("float16", "float16", 1, "engine.dtype"),
        ("bfloat16", "float32", 1, "engine.kv_cache_dtype"),
        ("bfloat16", "bfloat16", 3, "engine.tensor_parallel_size"),
        ("bfloat16", "bfloat16", 64, "engine.tensor_parallel_size"),
    ],
)
def test_what_cannot_be_asked(dtype: str, kv: str, tp: int, field: str) -> None:
    with pytest.raises(InputError, match=f"point.yaml: {field}: got"):
        Shape.of(LLAMA_8B, dtype, kv, tp, Place("point.yaml"))


def test_products_of_a_type_that_was_not_measured() -> None:
    shape = Shape.of(LLAMA_8B, "bfloat16", "bfloat16", 1, Place(), quantization="fp8")
    with pytest.raises(InputError, match=r"engine.quantization: got 'fp8', expected products that"):
        load_bundle("a100_sxm", None, shape, Place())
    small, large = load_bundle("h100_sxm", None, shape, Place()), bundle_of("h100_sxm")
    assert small.variant == "fp8"
    assert np.array_equal(small.per_sequence["lm_head"].ns, large.per_sequence["lm_head"].ns)
    for layer in ("qkv_proj", "gate_up_proj", "down_proj"):
        assert 0.4 < layer_ns(small.dense[layer], 8192) / layer_ns(large.dense[layer], 8192) < 0.85


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install aiconfigurator-core"):
        find_system("h100_sxm", None)
