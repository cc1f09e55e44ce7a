"""Ids: the same wherever the files are and whatever they are called, others for other content."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import identity
from orchestrator.identity import digest
from simulator.simulation import Prepared
from tests.orchestrator.sweep_make import (
    BLOCKS,
    MODEL,
    TRUTH,
    UTILIZATION,
    base,
    points_of,
    write_sweep,
)

ROOT = Path(__file__).resolve().parents[2]


def ids(path: Path) -> list[tuple[str, str, str]]:
    return [(p.point_id, p.run_id, p.pool_id) for p in points_of(path)]


def study(folder: Path, *, lengths: tuple[int, ...] = (20, 40, 60)) -> Path:
    """A sweep over files: a workload, a model and a table of measured percentiles."""
    (folder / "data").mkdir(parents=True)
    lines = [
        {"input_toks": n, "output_toks": 9, "arrival_time_ns": 1000 * i}
        for i, n in enumerate(lengths)
    ]
    (folder / "data" / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "data" / "m.json").write_text(json.dumps(MODEL))
    (folder / "data" / "truth.yaml").write_text(json.dumps(TRUTH["percentiles"]))
    return write_sweep(
        folder,
        base=base(model="data/m.json", workload=None) | {"workload": {"jsonl": "data/w.jsonl"}},
        axes={BLOCKS: [20, 40], "engine.async_scheduling": [True, False]},
        truth={"percentiles": {"file": "data/truth.yaml"}},
    )


def test_moved_copied_renamed_or_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study(tmp_path / "a")
    before = ids(path)
    assert len(set(before)) == 4
    copy = tmp_path / "far" / "away"
    shutil.copytree(tmp_path / "a", copy)
    for name in ("w.jsonl", "m.json", "truth.yaml"):
        (copy / "data" / name).rename(copy / "data" / f"renamed-{name}")
    text = (copy / "small.yaml").read_text().replace("data/", "data/renamed-")
    (copy / "small.yaml").unlink()
    (copy / "other.yaml").write_text(text)
    assert ids(copy / "other.yaml") == before
    monkeypatch.chdir(copy)
    assert ids(Path("other.yaml")) == before


def test_stable_across_processes(tmp_path: Path) -> None:
    path = study(tmp_path / "a")
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.orchestrator.test_expand_ids import ids\n"
        "print(ids(Path(sys.argv[1])))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(ids(path))


def test_other_content_is_another_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids(study(tmp_path / "a"))

    def differ(found: list[tuple[str, str, str]], parts: str) -> None:
        for old, new in zip(before, found, strict=True):
            same = [
                name
                for name, a, b in zip(("point", "run", "pool"), old, new, strict=True)
                if a == b
            ]
            assert same == [name for name in ("point", "run", "pool") if name not in parts]

    differ(ids(study(tmp_path / "b", lengths=(20, 40, 61))), "point run pool")
    folder = tmp_path / "c"
    path = study(folder)
    truth = (folder / "data" / "truth.yaml").read_text()
    (folder / "data" / "truth.yaml").write_text(truth.replace("10.0", "10.5"))
    differ(ids(path), "point")
    monkeypatch.setattr(identity, "code_stamp", lambda: "another version")
    differ(ids(study(tmp_path / "d")), "point run pool")


def test_the_order_of_fields_and_defaults_that_are_written_do_not_matter(tmp_path: Path) -> None:
    plain = base()
    turned = dict(reversed(list(plain.items())))
    turned["engine"] = dict(reversed(list(plain["engine"].items()))) | {"policy": "fcfs"}
    assert ids(write_sweep(tmp_path, base=turned)) == ids(write_sweep(tmp_path, base=plain))


def test_reading_profiles_by_content(tmp_path: Path) -> None:
    one, other = ({"linear": {"base_ns": 5, "per_token_ns": n}} for n in (0, 1))
    first, second, third = ids(write_sweep(tmp_path, axes={"profile": [one, other, one]}))
    assert first == third
    assert len({*first, *second}) == 6


def test_every_field_of_a_point_counts(tmp_path: Path) -> None:
    """Whatever can be configured is in a point's id, unless its resolved content is."""
    changes: list[tuple[str, list[Any]]] = [
        ("card.name", ["a", "b"]),
        ("card.context_bytes", [0, 4096]),
        ("check_invariants", [True, False]),
        ("profile.unfitted_skew", ["pooled", "zero"]),
        ("overhead.pad_to_capture_size", [True, False]),
        ("tiers", [{}, {"cpu": {"capacity_gib": 1.0, "bandwidth_gbps": 1.0}}]),
        ("engine.max_model_len", [None, 512]),
    ]
    for axis, values in changes:
        first, second = ids(write_sweep(tmp_path, axes={axis: values}))
        assert first[0] != second[0], axis
        same_run = axis not in ("card.context_bytes", "check_invariants")
        assert (first[1] == second[1]) == same_run, axis


def test_a_connector_without_a_tier_is_no_other_run(tmp_path: Path) -> None:
    """And two tiers of equal numbers are two runs: their metrics have other names."""
    connectors = {"kv_connector": ["LMCacheConnectorV1", "OffloadingConnector"]}
    first, second = ids(write_sweep(tmp_path, axes=connectors))
    assert first[0] != second[0] and first[1] == second[1]
    tier = {"capacity_gib": 1.0, "bandwidth_gbps": 1.0}
    tiers = base(tiers={"cpu": tier, "cxl": tier})
    axes = {"prefix_storage": ["cpu", "cxl"]}
    first, second = ids(write_sweep(tmp_path, base=tiers, axes=axes))
    assert first[1] != second[1]
    axes = {"prefix_storage": ["cpu"], **connectors}
    first, second = ids(write_sweep(tmp_path, base=tiers, axes=axes))
    assert first[1] != second[1]


def test_everything_prepared_is_in_an_id() -> None:
    """A field that is added to Prepared is part of the run's id by itself, or implied on purpose."""
    names = {field.name for field in dataclasses.fields(Prepared)}
    assert set(identity.IMPLIED) < names


def test_points_with_the_same_blocks_are_one_run(tmp_path: Path) -> None:
    first, second, third = ids(write_sweep(tmp_path, axes={UTILIZATION: [0.5, 0.5001, 0.6]}))
    assert first[1] == second[1] != third[1]
    assert first[2] == second[2] == third[2]
    assert len({first[0], second[0], third[0]}) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (1, "1"),
        (None, "None"),
        ((1, 2), (12,)),
        (("a", "b"), ("a', 'b",)),
        ([], {}),
        ({"a": 1}, {"a": 2}),
        (np.zeros(2, np.int64), np.zeros(2, np.float64)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        ([np.zeros(1), np.zeros(2)], [np.zeros(2), np.zeros(1)]),
    ],
)
def test_digests_differ(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_what_has_no_content_has_no_digest() -> None:
    with pytest.raises(TypeError, match="no content id for object"):
        digest(object())
