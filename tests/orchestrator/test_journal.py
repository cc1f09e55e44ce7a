"""The journal after crashes, and the folder's lock."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal import Journal, read_journal
from orchestrator.outcome import ESSENTIAL
from orchestrator.session import Session
from orchestrator.store import SweepStore
from profiles.errors import InputError
from tests.orchestrator.sweep_make import BLOCKS, Watch, rows, run_sweep, write_sweep

LEAST = dict.fromkeys(ESSENTIAL, 1.0)


def outcome(i: int, **more: Any) -> dict[str, Any]:
    metrics = {**LEAST, "ttft_ms/p50": 0.1 + i, "some": 1 / 3}
    whole = {"point_id": f"{i:016x}", "status": "finished", "metrics": metrics, "wall_s": 0.1}
    return whole | more


def write(path: Path, *batches: list[dict[str, Any]]) -> None:
    with Journal(path) as journal:
        for batch in batches:
            journal.append(batch)


def test_outcomes_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "j" / "journal.jsonl"
    odd = outcome(2, metrics=LEAST | {"a": math.nan, "b": math.inf, "c": 5e-324}, notes=["ü\n"])
    write(path, [outcome(0), outcome(1)], [odd], [])
    found = read_journal(path)
    assert list(found) == [outcome(i)["point_id"] for i in range(3)]
    assert found[outcome(1)["point_id"]] == outcome(1)
    metrics = found[odd["point_id"]]["metrics"]
    assert math.isnan(metrics["a"])
    assert (metrics["b"], metrics["c"]) == (math.inf, 5e-324)


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none.jsonl") == {}


def test_the_last_outcome_counts_but_nothing_undoes_a_finished_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    late, early = outcome(0, status="timeout"), outcome(0, status="error")
    write(path, [early, late])
    assert read_journal(path)[late["point_id"]]["status"] == "timeout"
    write(path, [outcome(0), late])
    assert read_journal(path)[late["point_id"]]["status"] == "finished"


def test_cut_off_at_any_byte(tmp_path: Path) -> None:
    """Every length a crash may leave: whole lines are there, and what follows is appended whole."""
    path = tmp_path / "journal.jsonl"
    write(path, [outcome(0)], [outcome(1), outcome(2)])
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert len(read_journal(path)) == whole
        write(path, [outcome(9)])
        assert len(read_journal(path)) == whole + 1
        assert len(path.read_bytes().splitlines()) == whole + 1


@pytest.mark.parametrize(
    "rest", [b"\0" * 100_000, b"\xff\xfe", b'{"point_id": "x', b"x" * 70_000], ids=len
)
def test_what_a_crash_left_behind_is_dropped(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, [outcome(0)])
    path.write_bytes(path.read_bytes() + rest)
    assert len(read_journal(path)) == 1
    write(path, [outcome(1)])
    assert len(read_journal(path)) == 2
    assert len(path.read_bytes()) < 1000


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "3", "{", '{"point_id": 3, "status": "finished"}', '{"point_id": "a"}']
)
def test_lines_that_are_no_outcomes_are_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f"{json.dumps(outcome(0))}\n{line}\n{json.dumps(outcome(1))}\n")
    assert len(read_journal(path)) == 2


def test_a_batch_is_on_the_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with Journal(path) as journal:
        journal.append([outcome(0), outcome(1)])
        journal.append([outcome(2)])
    first, both = synced
    assert both == path.stat().st_size > first > 0


def test_a_sweep_cut_off_at_any_line_ends_the_same(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20, 30, 40, 60, 80, 120]})
    session, _ = run_sweep(path, tmp_path / "whole")
    expected = session.store.results_path.read_bytes()
    content = session.store.journal_path.read_bytes()
    lines = content.splitlines(keepends=True)
    for count in range(len(lines)):
        out = tmp_path / f"cut{count}"
        store = SweepStore(out / "small")
        store.folder.mkdir(parents=True)
        half = lines[count][: len(lines[count]) // 2]
        store.journal_path.write_bytes(b"".join(lines[:count]) + half)
        resumed, watch = run_sweep(path, out)
        assert len(watch.outcomes) == len(lines) - count
        assert resumed.store.results_path.read_bytes() == expected


def test_outcomes_of_other_points_are_left_alone(tmp_path: Path) -> None:
    """A changed sweep in the same folder runs what is new and keeps what is the same."""
    run_sweep(write_sweep(tmp_path, axes={BLOCKS: [10, 20]}), tmp_path / "out")
    session, watch = run_sweep(write_sweep(tmp_path, axes={BLOCKS: [20, 30]}), tmp_path / "out")
    assert [point.axes[BLOCKS] for point in session.plan.points] == [20, 30]
    assert len(watch.outcomes) == 1
    assert [row["status"] for row in rows(session)] == ["finished", "finished"]
    assert len(read_journal(session.store.journal_path)) == 3


def test_one_run_a_folder(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]})
    session = Session.open(path, tmp_path / "out")
    hold = (
        "import sys; from pathlib import Path; from orchestrator.store import SweepStore\n"
        "with SweepStore(Path(sys.argv[1])).locked():\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(session.store.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"in use by: got 'process {other.pid} on ") as caught:
            session.run(Watch(), address=None, serial=True, track=False)
        assert caught.value.source == str(session.store.folder)
        assert not session.store.journal_path.exists()
        other.kill()
    session.run(Watch(), address=None, serial=True, track=False)
    assert session.plan.counts()["finished"] == 2


def test_what_another_run_did_meanwhile_is_done(tmp_path: Path) -> None:
    """Two were started; the second waited for the first and was planned before it ended."""
    path = write_sweep(tmp_path, axes={BLOCKS: [10, 20]})
    second, watch = Session.open(path, tmp_path / "out"), Watch()
    run_sweep(path, tmp_path / "out")
    second.run(watch, address=None, serial=True, track=False)
    assert watch.outcomes == []
    assert second.plan.counts()["finished"] == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"metrics": [1]},
        {"metrics": {"a": "x"}},
        {"metrics": {}},
        {"metrics": {"latency_ms/mean": 1.0}},
        {"metrics": LEAST | {"steps": math.nan}},
        {"metrics": LEAST | {"a": 1 << 2000}},
        {"notes": None},
        {"notes": "abc"},
        {"notes": [5]},
        {"wall_s": None},
        {"wall_s": "1"},
        {"enough_blocks": "a"},
        {"enough_blocks": -1},
    ],
)
def test_a_damaged_outcome_counts_as_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "journal.jsonl"
    whole = {"point_id": "p", "status": "finished", "wall_s": 0.1, "metrics": LEAST}
    path.write_text(
        json.dumps(whole) + "\n" + json.dumps(whole | {"point_id": "q"} | damage) + "\n"
    )
    assert set(read_journal(path)) == {"p"}
