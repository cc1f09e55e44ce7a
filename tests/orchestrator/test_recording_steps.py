"""The log of an engine's steps, and the file it becomes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from orchestrator.recording.check import without_empty
from orchestrator.recording.inside.log import request_name, request_number
from orchestrator.recording.steps import Step, from_log, host_ns, read_steps, write_steps
from profiles.errors import InputError
from tests.orchestrator.recording_make import LOG, START


def test_a_log_becomes_steps() -> None:
    first, second, third = from_log(LOG, START)
    assert first == Step(
        t_ns=10,
        schedule_ns=2,
        execute_ns=103,
        update_ns=3,
        formed_before_update=1,
        sched=[(0, 64, 0)],
        preempted=[],
        finished=[],
        running=1,
        waiting=0,
        free=9,
        running_after=1,
        waiting_after=0,
        free_after=9,
        added=[(0, 5)],
        device_ns=(13, 113),
    )
    assert first.end_ns == 118
    assert (second.sched, second.added) == ([(0, 6, 64), (1, 30, 16)], [(1, 119)])
    assert (third.preempted, third.finished, third.free_after) == ([1], [0], 10)


def test_a_batch_in_flight_is_applied_after_the_next_was_formed() -> None:
    scheduled = [1, 0, START, START, 1, 0, 9, 1, 0, 0, 5, 0]
    after = [1, 1, START, START, 1, 0, 9, 1, 0, 0, 1, 5]
    updates = [3, 0, START, START, 1, 0, 9, 0, 3, 1, START, START, 0, 0, 9, 1, 0]
    first, second = from_log([*scheduled, *after, *updates], START)
    assert (first.formed_before_update, second.formed_before_update) == (2, 2)


def test_a_log_cut_short_is_told() -> None:
    with pytest.raises(ValueError, match="record at 3 needs 9 values, 2 are left"):
        from_log(LOG[:5], START)
    with pytest.raises(ValueError, match="record at 3 needs 12 values, 10 are left"):
        from_log(LOG[:13], START)
    with pytest.raises(ValueError, match="step 2 of 3 was formed and never applied"):
        from_log(LOG[:-9], START)
    with pytest.raises(ValueError, match="record of kind 7 at 0"):
        from_log([7, 0, 0], START)


def test_written_steps_are_read_back_and_bytes_are_the_same(tmp_path: Path) -> None:
    steps = from_log(LOG, START)
    path = tmp_path / "steps.jsonl.gz"
    write_steps(path, steps)
    content = path.read_bytes()
    write_steps(path, steps)
    assert path.read_bytes() == content
    assert read_steps(path, 2) == steps
    lines = [json.loads(line) for line in gzip.decompress(content).splitlines()]
    # What follows from the batch before is left out.
    assert [line["sched"] for line in lines] == [[[0, 64, 0]], [[0, 6], [1, 30, 16]], [[0, 1]]]


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (1, {"step": 5}, "line 2: step: got 5, expected 1"),
        (1, {"t_ns": "soon"}, "line 2: t_ns: got 'soon', expected a valid integer"),
        (1, {"sched": [[1, 30]]}, "sched: got (1, 30), expected computed tokens"),
        (0, {"preempted": [2]}, "line 1: request: got 2, expected less than 2"),
    ],
)
def test_a_wrong_line_is_told(tmp_path: Path, line: int, change: dict, message: str) -> None:
    path = tmp_path / "steps.jsonl.gz"
    write_steps(path, from_log(LOG, START))
    rows = [json.loads(text) for text in gzip.decompress(path.read_bytes()).splitlines()]
    rows[line].update(change)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    with pytest.raises(InputError) as caught:
        read_steps(path, 2)
    assert message in str(caught.value)


def test_a_file_that_is_no_gzip_is_told(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl.gz"
    path.write_text("{}")
    with pytest.raises(InputError, match="a whole gzip file"):
        read_steps(path, 1)


def test_empty_steps_are_left_out_and_who_came_before_them_is_kept() -> None:
    steps = from_log(LOG, START)
    steps[1].sched = []
    kept = list(without_empty(steps))
    assert [step.sched for step in kept] == [[(0, 64, 0)], [(0, 1, 70)]]
    assert [step.added for step in kept] == [[(0, 5)], [(1, 119)]]
    assert [step.formed_before_update for step in kept] == [1, 2]


def test_host_time_is_what_a_step_takes_beside_the_device() -> None:
    host, requests = host_ns(from_log(LOG, START))
    assert host.tolist() == [120 - 10 - 100, 231 - 120 - 100]
    assert requests.tolist() == [1, 2]


def test_names_of_requests() -> None:
    assert request_number(request_name(17)) == 17
    assert request_number("r17-1a2b3c4d") == 17
    assert request_number("warm-64") == -1
    assert request_number("r17x") == -1
