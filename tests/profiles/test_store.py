"""The binary copy of a bundle: equal to what was read, and never trusted when it is not whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles import llmservingsim, store
from profiles.bundle import Bundle
from profiles.llmservingsim import load_bundle
from tests.profiles.bundles import write_variant


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "store"))


def plain(value: Any) -> Any:
    """A bundle as nested dictionaries and lists, with types."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Bundle]:
    """The bundles that were read from CSV files and not from the store."""
    bundles: list[Bundle] = []
    parse = llmservingsim._parse

    def watched(*arguments: Any) -> Bundle:
        bundles.append(parse(*arguments))
        return bundles[-1]

    monkeypatch.setattr(llmservingsim, "_parse", watched)
    return bundles


@pytest.mark.parametrize(
    "changes", [{}, {"skew_fit": {"enabled": False}}, {"architecture": "mixtral"}]
)
def test_comes_back_as_it_was(tmp_path: Path, parsed: list[Bundle], changes: dict) -> None:
    variant = write_variant(tmp_path, **changes)
    (variant / "tp1/moe.csv").write_text("tokens,activated_experts,time_us\n1,2,3.5\n")
    first, second = load_bundle(variant), load_bundle(variant)
    assert len(parsed) == 1
    assert plain(first) == plain(second)
    assert not second.attention.ns.flags.writeable


def test_is_found_by_content_not_by_place(tmp_path: Path, parsed: list[Bundle]) -> None:
    first = load_bundle(write_variant(tmp_path / "a"))
    second = load_bundle(write_variant(tmp_path / "b"))
    assert len(parsed) == 1
    assert first.content_id == second.content_id
    assert second.source.is_relative_to(tmp_path / "b")
    load_bundle(write_variant(tmp_path / "b", seed=1))
    assert len(parsed) == 2


def test_a_changed_architecture_is_another_bundle(
    tmp_path: Path, parsed: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = write_variant(tmp_path)
    load_bundle(variant)
    monkeypatch.setattr(llmservingsim, "architectures_digest", lambda: b"others")
    load_bundle(variant)
    assert len(parsed) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"no checksum at all\n{}",
        lambda content: content[: len(content) // 2],
        lambda content: content[:200] + b"X" + content[201:],
        lambda content: content[:-8] + b"\0" * 8,
        lambda content: b"0" * len(content),
    ],
)
def test_damaged_copy_is_ignored_and_written_anew(
    tmp_path: Path, parsed: list[Bundle], damage: Any
) -> None:
    variant = write_variant(tmp_path)
    first = load_bundle(variant)
    (path,) = store.folder().iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert plain(load_bundle(variant)) == plain(first)
    assert len(parsed) == 2
    assert path.read_bytes() == whole
    assert [p.name for p in store.folder().iterdir()] == [path.name]


def test_copy_of_another_bundle_is_ignored(tmp_path: Path, parsed: list[Bundle]) -> None:
    variant = write_variant(tmp_path)
    load_bundle(variant)
    (path,) = store.folder().iterdir()
    other = store.encode("another key", parsed[0])
    path.write_bytes(other)
    load_bundle(variant)
    assert len(parsed) == 2


def test_unwritable_store_is_no_error(
    tmp_path: Path, parsed: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "file"))
    variant = write_variant(tmp_path)
    assert plain(load_bundle(variant)) == plain(load_bundle(variant))
    assert len(parsed) == 2
