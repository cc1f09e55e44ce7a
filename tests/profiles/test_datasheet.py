"""Cards by their data sheet: rows scaled by rooflines, and checked between measured cards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profiles.aiconfigurator.compose import load_bundle
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import Place, find_system
from profiles.bundle import AttentionGrid
from profiles.card import Card
from profiles.datasheet import attention_work, layer_work, scaled
from profiles.provenance import DERIVED
from tests.profiles.bundles import needs_package
from tests.profiles.models import LLAMA_8B, MIXTRAL
from tests.profiles.test_aiconfigurator import step_ms

SHAPE = Shape.of(LLAMA_8B, "bfloat16", "bfloat16", 1, Place())


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def card(bandwidth: float, tflops: float) -> Card:
    return Card(
        name="new", memory_bytes=2**36, memory_bandwidth_gbps=bandwidth, bfloat16_tflops=tflops
    )


@needs_package
def test_each_limit_scales_on_its_own() -> None:
    """Twice the bandwidth halves what memory limits, twice the FLOP/s what compute limits."""
    system = find_system("h100_sxm", None)
    bundle = load_bundle("h100_sxm", None, SHAPE, Place())
    same = scaled(bundle, system.card, card(3350, 989), SHAPE)
    assert np.array_equal(same.dense["o_proj"].ns, bundle.dense["o_proj"].ns)
    assert set(same.attention.source.tolist()) == {DERIVED}
    memory = scaled(bundle, system.card, card(6700, 989), SHAPE)
    compute = scaled(bundle, system.card, card(3350, 1978), SHAPE)
    one = bundle.dense["o_proj"]
    for table, few, many in ((memory, 0.5, 1.0), (compute, 1.0, 0.5)):
        ratio = table.dense["o_proj"].ns / one.ns
        assert ratio[one.keys == 1] == pytest.approx(few, abs=1e-3)
        assert ratio[one.keys == 8192] == pytest.approx(many, abs=1e-3)
    assert len({bundle.content_id, same.content_id, memory.content_id, compute.content_id}) == 4


def test_work_of_a_layer() -> None:
    moved, flops = layer_work("o_proj", np.array([3.0]), SHAPE)
    assert moved.tolist() == [2 * (4096 * 4096 + 3 * 4096 + 3 * 4096)]
    assert flops.tolist() == [2 * 3 * 4096 * 4096]
    experts = Shape.of(MIXTRAL, "bfloat16", "bfloat16", 2, Place())
    moved, flops = layer_work("moe", np.array([1.0]), experts)
    expert = 3 * 4096 * 7168
    assert moved.tolist() == pytest.approx([2 * (2 * expert + 2 * 4096)])
    assert flops.tolist() == [2 * 2 * expert]


def test_work_of_attention() -> None:
    """A chunk of 4 after 10 tokens sees 10 x 4 + 1 + 2 + 3 + 4 keys; two decodes of 7 see 16."""
    keys = [np.array([value]) for value in (4, 2, 10, 7)]
    grid = AttentionGrid(*keys, np.array([1]), np.array([0], np.uint8))
    moved, flops = attention_work(grid, SHAPE)
    assert flops.tolist() == [4 * (50 + 16) * 4096]
    assert moved.tolist() == [4 * 6 * 4096 + 4 * (14 + 16) * 8 * 128]


@needs_package
@pytest.mark.parametrize(
    ("target", "nearest", "least", "most"),
    [("h200_sxm", "h100_sxm", 0.88, 1.01), ("h100_sxm", "a100_sxm", 0.9, 1.1)],
)
def test_between_measured_cards(target: str, nearest: str, least: float, most: float) -> None:
    model = load_bundle(nearest, None, SHAPE, Place())
    truth = load_bundle(target, None, SHAPE, Place())
    model = scaled(model, find_system(nearest, None).card, find_system(target, None).card, SHAPE)
    for batch in ((0, 8, 1023), (0, 64, 1023), (512, 0, 0), (2048, 0, 0), (8192, 0, 0)):
        assert least < step_ms(model, 32, *batch) / step_ms(truth, 32, *batch) < most
