"""Sessions: a call arrives when the call before it has ended and its tool has run (closed loop)."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.result import requests_table
from tests.simulator.make import Ask, Played, play


def column(played: Played, name: str) -> Any:
    table = requests_table(played.engine, played.workload, played.refused)
    return table[name].to_pylist()


def test_next_call_arrives_at_the_end_plus_the_tool() -> None:
    played = play(Ask(10, 2, tool=700), Ask(15, 1, after=0, tool=9), Ask(20, 1, after=1))
    assert played.steps == ["+a:10", "a:1 done:a", "+b:15 done:b", "+c:20 done:c"]
    assert column(played, "arrival_ns") == [0, 2700, 3709]
    assert column(played, "queued_ns") == [0, 2700, 3709]
    assert column(played, "last_token_ns") == [2000, 3700, 4709]


def test_no_tool_time_means_the_next_step() -> None:
    played = play(Ask(10, 1), Ask(10, 1, after=0))
    assert played.steps == ["+a:10 done:a", "+b:10 done:b"]
    assert column(played, "arrival_ns") == [0, 1000]


def test_arrival_of_a_later_call_in_the_workload_does_not_count() -> None:
    played = play(Ask(10, 1, tool=5), Ask(10, 1, after=0, arrival=10**9))
    assert column(played, "arrival_ns") == [0, 1005]


def test_next_call_hits_the_blocks_of_the_one_before() -> None:
    tokens = range(60)
    played = play(
        Ask(20, 20, tokens=tokens[:40]),
        Ask(60, 1, tokens=tokens, after=0),
    )
    assert played.steps[-1] == "+b:28 done:b"
    assert column(played, "hit_tokens_gpu") == [0, 32]


def test_it_waits_its_turn_like_everybody() -> None:
    """c came before b was released, so c is admitted first."""
    played = play(
        Ask(10, 1, tool=100),
        Ask(10, 1, after=0),
        Ask(10, 3, arrival=1),
        Ask(10, 1, arrival=2),
        max_num_seqs=1,
    )
    assert played.steps == [
        "+a:10 done:a",
        "+c:10",
        "c:1",
        "c:1 done:c",
        "+d:10 done:d",
        "+b:10 done:b",
    ]


@pytest.mark.parametrize("arrival", [1099, 1100, 1101])
def test_released_and_known_arrivals_in_order_of_time_then_file(arrival: int) -> None:
    played = play(
        Ask(10, 1, tool=100),
        Ask(10, 1, arrival=arrival),
        Ask(10, 1, after=0),
        Ask(10, 9, arrival=1),  # keeps the engine busy
    )
    first, second = ("b", "c") if arrival <= 1100 else ("c", "b")
    admitted = [word for line in played.steps for word in line.split() if word[0] == "+"]
    assert admitted == ["+a:10", "+d:10", f"+{first}:10", f"+{second}:10"]


def test_released_before_known_of_equal_time_if_it_stands_first_in_the_file() -> None:
    played = play(Ask(10, 1, tool=100), Ask(10, 1, after=0), Ask(10, 1, arrival=1100))
    assert played.steps[-1] == "+b:10 +c:10 done:b done:c"


def test_many_sessions_released_together_keep_file_order() -> None:
    firsts = [Ask(5, 1, tool=50) for _ in range(6)]
    played = play(*firsts, *(Ask(5, 1, after=r) for r in (3, 0, 5, 1, 4, 2)))
    assert played.steps[1].startswith("+g:5 +h:5 +i:5 +j:5 +k:5 +l:5")


def test_asynchronously_the_end_is_when_the_output_arrives() -> None:
    played = play(Ask(10, 1, tool=700), Ask(15, 1, after=0), async_scheduling=True)
    assert column(played, "arrival_ns") == [0, 1700]
    assert column(played, "last_token_ns") == [1000, 2700]


def test_by_priority_a_released_call_is_ordered_by_its_own_arrival() -> None:
    played = play(
        Ask(10, 1, tool=500),
        Ask(10, 1, after=0),
        Ask(10, 1, arrival=1400),
        Ask(10, 2, arrival=1, priority=-1),
        max_num_seqs=1,
        policy="priority",
    )
    assert played.steps == ["+a:10 done:a", "+d:10", "d:1 done:d", "+c:10 done:c", "+b:10 done:b"]


def test_a_capped_call_is_followed_all_the_same() -> None:
    played = play(Ask(20, 30), Ask(10, 1, after=0), max_model_len=24)
    assert column(played, "capped") == [True, False]
    assert column(played, "finished") == [True, True]


def test_latency_of_a_call_counts_from_its_release() -> None:
    played = play(Ask(10, 1, tool=123), Ask(10, 2, after=0))
    arrival, last = column(played, "arrival_ns"), column(played, "last_token_ns")
    assert [b - a for a, b in zip(arrival, last, strict=True)] == [1000, 2000]
