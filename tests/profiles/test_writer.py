"""What is written in LLMServingSim's layout reads back as it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from profiles.aiconfigurator.compose import load_bundle as compose_bundle
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import Place
from profiles.bundle import Bundle
from profiles.errors import InputError
from profiles.llmservingsim import load_bundle
from profiles.model import ModelConfig
from profiles.writer import write_bundles
from tests.profiles.bundles import needs_package, write_variant
from tests.profiles.models import LLAMA_8B, MIXTRAL


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def assert_equal(one: Bundle, other: Bundle) -> None:
    assert one.architecture == other.architecture
    for section in ("dense", "per_sequence"):
        ours, theirs = getattr(one, section), getattr(other, section)
        assert list(ours) == list(theirs)
        for layer in ours:
            for field in ("keys", "ns", "source"):
                first, second = getattr(ours[layer], field), getattr(theirs[layer], field)
                assert np.array_equal(first, second), (layer, field)
    for field in dataclasses.fields(one.attention):
        first, second = getattr(one.attention, field.name), getattr(other.attention, field.name)
        assert np.array_equal(first, second), field.name


@needs_package
@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL], ids=["llama", "mixtral"])
def test_a_composed_bundle(tmp_path: Path, model: ModelConfig) -> None:
    bundles = []
    for tp in (1, 2):
        shape = Shape.of(model, "bfloat16", "bfloat16", tp, Place())
        found = compose_bundle("h100_sxm", None, shape, Place())
        bundles.append(dataclasses.replace(found, model=model.name))
    written = write_bundles(bundles, tmp_path / "perf", {"system": "h100_sxm"})
    folder = tmp_path / "perf/h100_sxm" / model.name / "bf16"
    assert written[-1] == folder / "meta.yaml"
    for tp, bundle in zip((1, 2), bundles, strict=True):
        assert_equal(load_bundle(folder, tp), bundle)
    with pytest.raises(InputError, match="a folder that exists"):
        write_bundles(bundles, tmp_path / "perf", {})


def test_a_bundle_without_the_column_was_measured(tmp_path: Path) -> None:
    bundle = load_bundle(write_variant(tmp_path))
    assert not bundle.attention.source.any()
    assert not bundle.dense["o_proj"].source.any()
    write_bundles([dataclasses.replace(bundle, card="Copy")], tmp_path / "perf", {})
    assert_equal(load_bundle(tmp_path / "perf/Copy/test/model/bf16"), bundle)


def test_an_unknown_source_is_named(tmp_path: Path) -> None:
    folder = write_variant(tmp_path)
    path = folder / "tp1/per_sequence.csv"
    lines = path.read_text().splitlines()
    marked = [lines[0] + ",source", *(line + ",measured" for line in lines[1:-1])]
    path.write_text("\n".join([*marked, lines[-1] + ",guessed"]) + "\n")
    with pytest.raises(
        InputError, match=rf"line {len(lines)}, source: got 'guessed', expected one"
    ):
        load_bundle(folder)
