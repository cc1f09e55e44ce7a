import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.workloads import store
from simulator.workloads.llmservingsim import load_jsonl, read_jsonl
from simulator.workloads.traces import load_csv, load_mooncake

Write = Callable[..., Path]
ROW = {"input_toks": 3, "output_toks": 1, "arrival_time_ns": 5, "input_tok_ids": [5, 6, 7]}


@pytest.fixture
def path(write: Write) -> Path:
    odd = ROW | {"request_id": 'a\0b "ü" \n', "priority": 3}
    return write("a.jsonl", json.dumps(ROW), json.dumps(odd))


@pytest.fixture
def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr("simulator.workloads.llmservingsim.read_jsonl", fail)


def test_the_copy_equals_the_file(
    path: Path, own_store: Path, request: pytest.FixtureRequest
) -> None:
    first = load_jsonl(path)
    assert len(list(own_store.iterdir())) == 1
    request.getfixturevalue("never_read")
    again = load_jsonl(path)
    assert again.content_id == first.content_id == read_jsonl(path).content_id
    assert again.request_ids == first.request_ids
    assert not again.token_ids.flags.writeable


def test_the_key_is_the_content(path: Path, own_store: Path, write: Write) -> None:
    load_jsonl(path)
    moved = path.with_name("moved.jsonl")
    moved.write_bytes(path.read_bytes())
    assert load_jsonl(moved).source == str(moved)
    assert len(list(own_store.iterdir())) == 1
    changed = write("a.jsonl", json.dumps(ROW | {"priority": 9}))
    assert load_jsonl(changed).priority.tolist() == [9]
    assert len(list(own_store.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_copy_is_written_again(
    path: Path, own_store: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    content_id = load_jsonl(path).content_id
    (copy,) = own_store.iterdir()
    good = copy.read_bytes()
    middle = good.index(np.array([5, 6, 7], np.int32).tobytes())
    bad = {
        "cut": good[:-30],
        "flipped": good[:middle] + b"\xff" + good[middle + 1 :],
        "empty": b"",
        "other": b"not a copy",
    }
    copy.write_bytes(bad[damage])
    with caplog.at_level(logging.WARNING, "servesweep"):
        assert load_jsonl(path).content_id == content_id
    assert "is damaged" in caplog.text
    assert copy.read_bytes() == good


def test_a_folder_that_cannot_be_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVESWEEP_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "servesweep"):
        assert len(load_jsonl(path)) == 2
    assert "no copy of" in caplog.text


def test_nothing_is_left_of_a_copy_that_failed(
    path: Path, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(load_jsonl(path)) == 2
    assert list(own_store.iterdir()) == []


def test_the_oldest_copies_go(
    write: Write, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEPT_COPIES", 3)
    for i in range(5):
        load_jsonl(write(f"{i}.jsonl", json.dumps(ROW | {"priority": i})))
    assert len(list(own_store.iterdir())) == 3


def test_options_are_part_of_the_key(write: Write, own_store: Path) -> None:
    row = {"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [4]}
    path = write("m.jsonl", json.dumps(row))
    assert load_mooncake(path).chunk_size == 512
    assert load_mooncake(path, chunk_size=8).chunk_size == 8
    table = write("a.csv", "Timestamp,Request tokens,Response tokens", "1,2,3")
    for name in ("auto", "burstgpt"):
        assert len(load_csv(table, name)) == 1
    assert len(list(own_store.iterdir())) == 4
