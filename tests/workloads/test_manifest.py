"""Manifests: fixed workloads, known by their content, checked when they are read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.manifests import FOLDER, LENGTHS, manifests
from profiles.errors import InputError, parse_model
from simulator.workloads import WorkloadConfig, load_workload
from simulator.workloads.manifest import Manifest, load_manifest


def written(path: Path, *requests: dict[str, Any], **changes: Any) -> Path:
    """A manifest file; its content id is right if its content is."""
    data = {"name": "small", "block_size": 16, "num_blocks": 8, "requests": list(requests)}
    try:
        manifest = Manifest.model_validate(data)
        data["content_id"] = manifest.content_id
    except ValueError:
        data["content_id"] = "unknown"
    path.write_text(json.dumps(data | changes))
    return path


def ask(name: str, wave: int, **changes: Any) -> dict[str, Any]:
    return {"id": name, "wave": wave, "prompt_tokens": 20, "max_tokens": 5} | changes


@pytest.mark.parametrize("manifest", manifests(), ids=lambda m: m.name)
def test_the_files_are_what_the_rule_gives(manifest: Manifest) -> None:
    path = FOLDER / f"{manifest.name}.json"
    assert path.read_text(encoding="utf-8") == manifest.text()
    assert load_manifest(path) == manifest


def test_the_fixed_workload() -> None:
    manifest = load_manifest(FOLDER / "fixed.json")
    assert manifest.content_id == "28db79c9668e8bd499de3d73aef5798f56416dee9f29aede99897dc5bd5fb19a"
    assert (manifest.block_size, manifest.num_blocks) == (256, 864)
    assert (len(manifest.wave(1)), len(manifest.wave(2)), len(manifest.requests)) == (256, 128, 384)
    for wave in (1, 2):
        prompts = [r.prompt_tokens for r in manifest.wave(wave)]
        assert prompts[:8] == list(LENGTHS) == [64, 128, 192, 256, 320, 512, 768, 1024]
        assert Counter(prompts) == dict.fromkeys(LENGTHS, len(prompts) // 8)
    assert {r.max_tokens for r in manifest.requests} == {128}


def test_as_a_workload(tmp_path: Path) -> None:
    path = written(tmp_path / "m.json", ask("a", 1), ask("b", 1, output_tokens=2), ask("c", 2))
    manifest = load_manifest(path)
    workload = load_workload(WorkloadConfig(manifest=path), Path())
    assert workload.request_ids == ["a", "b", "c"]
    assert workload.num_prompt_tokens.tolist() == [20, 20, 20]
    assert workload.num_output_tokens.tolist() == [5, 2, 5]
    assert workload.max_tokens is not None and workload.max_tokens.tolist() == [5, 5, 5]
    assert workload.wave is not None and workload.wave.tolist() == [0, 0, 1]
    assert workload.manifest_id == manifest.content_id
    assert WorkloadConfig(manifest=path).path == path
    first = load_workload(WorkloadConfig(manifest=path, limit=2), Path())
    assert first.request_ids == ["a", "b"]
    assert first.wave is not None and first.wave.tolist() == [0, 0]
    assert first.max_tokens is not None and first.max_tokens.tolist() == [5, 5]


def test_waves_have_no_rate(tmp_path: Path) -> None:
    path = written(tmp_path / "m.json", ask("a", 1))
    with pytest.raises(InputError, match=r"rate_scale: got 2.0, expected 1, because the waves"):
        parse_model(WorkloadConfig, {"manifest": path, "rate_scale": 2.0}, "point.yaml")


def test_contents_tell_manifests_apart(tmp_path: Path) -> None:
    """The same requests for another pool are another manifest, and another workload."""
    one = written(tmp_path / "one.json", ask("a", 1))
    data = json.loads(one.read_text()) | {"num_blocks": 9}
    other = Manifest.model_validate({k: v for k, v in data.items() if k != "content_id"})
    ours = load_manifest(one)
    assert ours.content_id != other.content_id
    assert ours.workload().content_id != other.workload().content_id


WRONG: list[tuple[list[dict[str, Any]], dict[str, Any], str, str]] = [
    ([ask("a", 1)], {"num_blocks": 9}, "content_id", "the content of this file"),
    ([ask("a", 1)], {"content_id": None}, "content_id", "the content of this file"),
    ([ask("a", 1), ask("a", 1)], {}, r"requests\[1\].id: got 'a'", "an id of its own"),
    ([ask("a", 2)], {}, r"requests\[0\].wave: got 2", "1: wave by wave"),
    ([ask("a", 1), ask("b", 3)], {}, r"requests\[1\].wave: got 3", "1 or 2"),
    ([ask("a", 1), ask("b", 2), ask("c", 1)], {}, r"requests\[2\].wave: got 1", "2 or 3"),
    ([ask("a", 1, max_tokens=0)], {}, r"requests\[0\].max_tokens: got 0", "greater than or equal"),
    ([ask("a", 1, prompt_tokens="20")], {}, r"requests\[0\].prompt_tokens: got '20'", "integer"),
    (
        [ask("a", 1, output_tokens=6)],
        {},
        r"requests\[0\].output_tokens: got 6",
        r"at most max_tokens \(5\)",
    ),
    ([ask("a", 1, seed=3)], {}, r"requests\[0\].seed: got 3", "no such field"),
    ([ask("a", 1)], {"num_block": 8}, "num_block: got 8", "no such field"),
    ([], {}, r"requests: got", "at least 1 item"),
]


@pytest.mark.parametrize(("requests", "changes", "what", "expected"), WRONG)
def test_wrong_manifests(
    tmp_path: Path,
    requests: list[dict[str, Any]],
    changes: dict[str, Any],
    what: str,
    expected: str,
) -> None:
    path = written(tmp_path / "m.json", *requests, **changes)
    with pytest.raises(InputError, match=rf"m\.json: {what}.*, expected .*{expected}"):
        load_manifest(path)


def test_what_is_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an existing file"):
        load_manifest(tmp_path / "none.json")
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(InputError, match=r"line 1, column 2.*valid JSON"):
        load_manifest(tmp_path / "m.json")


def test_max_tokens_of_any_workload() -> None:
    config = {
        "num_requests": 5,
        "arrivals": {"rate": 1.0},
        "output_tokens": {"uniform": [3, 9]},
        "seed": 2,
    }
    plain = load_workload(WorkloadConfig.model_validate({"generate": config}), Path())
    longest = int(plain.num_output_tokens.max())
    asked = WorkloadConfig.model_validate({"generate": config, "max_tokens": longest})
    workload = load_workload(asked, Path())
    assert workload.max_tokens is not None and workload.max_tokens.tolist() == [longest] * 5
    assert workload.content_id != plain.content_id
    with pytest.raises(InputError, match=f"max_tokens: got {longest - 1}, .*at least {longest}"):
        load_workload(asked.model_copy(update={"max_tokens": longest - 1}), Path())
