"""The scheduler's rules, each in the smallest simulation that shows it.

The pool has ten blocks of 16 tokens and a step takes 1000 ns, unless a test says otherwise. Steps
are written as `tests.simulator.make.Played.steps` explains.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.result import requests_table
from simulator.step_tables import linear_law
from tests.simulator.make import STEP_NS, Ask, Played, play


def times(played: Played, name: str) -> dict[str, Any]:
    """The request's row of the result."""
    table = requests_table(played.engine, played.workload, played.refused)
    return next(row for row in table.to_pylist() if row["request_id"] == name)


def test_prompts_then_a_token_a_step() -> None:
    played = play(Ask(20, 3), Ask(30, 2))
    assert played.steps == [
        "+a:20 +b:30",
        "a:1 b:1 done:b",
        "a:1 done:a",
    ]
    expected = {
        "request_id": "a",
        "arrival_ns": 0,
        "queued_ns": 0,
        "first_scheduled_ns": 0,
        "first_token_ns": 1000,
        "last_token_ns": 3000,
        "prompt_tokens": 20,
        "requested_output_tokens": 3,
        "output_tokens": 3,
        "hit_tokens_gpu": 0,
        "preemptions": 0,
        "finished": True,
        "capped": False,
        "refused": None,
    }
    row = times(played, "a")
    assert {name: row[name] for name in expected} == expected


def test_one_output_token_ends_with_the_prompt() -> None:
    played = play(Ask(20, 1), Ask(40, 1), max_num_batched_tokens=32, max_num_seqs=8)
    assert played.steps == ["+a:20 +b:12 done:a", "b:28 done:b"]
    assert times(played, "b")["first_token_ns"] == times(played, "b")["last_token_ns"] == 2000


def test_requests_are_seen_when_the_next_batch_is_formed() -> None:
    played = play(Ask(10, 3), Ask(10, 1, arrival=1), Ask(10, 1, arrival=2000))
    assert played.steps == ["+a:10", "a:1 +b:10 done:b", "a:1 +c:10 done:a done:c"]
    assert (times(played, "b")["arrival_ns"], times(played, "b")["queued_ns"]) == (1, 1000)
    assert (times(played, "c")["arrival_ns"], times(played, "c")["queued_ns"]) == (2000, 2000)


def test_an_idle_engine_jumps_to_the_next_arrival() -> None:
    played = play(Ask(10, 1, arrival=70), Ask(10, 1, arrival=123_456_789))
    assert played.steps == ["+a:10 done:a", "+b:10 done:b"]
    assert times(played, "a")["last_token_ns"] == 1070
    assert times(played, "b")["last_token_ns"] == 123_457_789


def test_file_order_does_not_matter_but_for_equal_arrivals() -> None:
    played = play(Ask(10, 1, arrival=5), Ask(10, 1, arrival=0), Ask(10, 1, arrival=5))
    assert played.steps == ["+b:10 done:b", "+a:10 +c:10 done:a done:c"]


def test_step_time_depends_on_the_batch() -> None:
    law = linear_law(1000, 10, 1, 100)
    played = play(Ask(20, 2), Ask(30, 1), latency=law)
    # base, then 50 tokens, 50 of KV and 2 requests; then 1 token, 21 of KV and 1 request
    assert played.logged_steps.end_ns.tolist() == [1750, 1750 + 1000 + 10 + 21 + 100]


class TestBudget:
    def test_running_requests_come_first_and_prompts_take_what_is_left(self) -> None:
        played = play(Ask(20, 3), Ask(30, 2), max_num_batched_tokens=24, max_num_seqs=8)
        assert played.steps == ["+a:20 +b:4", "a:1 b:23", "a:1 b:3 done:a", "b:1 done:b"]

    def test_never_more_tokens_than_the_budget(self) -> None:
        played = play(*(Ask(7, 9) for _ in range(12)), max_num_batched_tokens=5, max_num_seqs=5)
        assert max(played.logged_steps.num_tokens) == 5

    def test_threshold_cuts_long_prompts(self) -> None:
        played = play(Ask(50, 2), Ask(10, 2), long_prefill_token_threshold=20)
        assert played.steps == ["+a:20 +b:10", "a:20 b:1 done:b", "a:10", "a:1 done:a"]

    def test_threshold_applies_after_the_hit(self) -> None:
        shared = range(40)
        played = play(
            Ask(40, 1, tokens=shared),
            Ask(60, 1, tokens=shared, arrival=1),
            long_prefill_token_threshold=25,
        )
        assert played.steps == ["+a:25", "a:15 +b:25 done:a", "b:3 done:b"]

    def test_max_num_seqs(self) -> None:
        played = play(Ask(10, 2), Ask(10, 3), Ask(10, 1), max_num_seqs=2)
        assert played.steps == ["+a:10 +b:10", "a:1 b:1 done:a", "b:1 +c:10 done:b done:c"]

    def test_without_chunks_a_big_prompt_ends_admission(self) -> None:
        """c would fit beside a, but b is before it and does not."""
        limits = {"max_num_batched_tokens": 50, "max_num_seqs": 8, "max_model_len": 50}
        asks = (Ask(30, 2), Ask(40, 2), Ask(5, 1))
        assert play(*asks, enable_chunked_prefill=False, **limits).steps == [
            "+a:30",
            "a:1 +b:40 +c:5 done:a done:c",
            "b:1 done:b",
        ]
        assert play(*asks, **limits).steps == [
            "+a:30 +b:20",
            "a:1 b:20 +c:5 done:a done:c",
            "b:1 done:b",
        ]

    def test_without_chunks_the_threshold_still_cuts(self) -> None:
        played = play(
            Ask(45, 1),
            enable_chunked_prefill=False,
            long_prefill_token_threshold=20,
            max_num_batched_tokens=50,
            max_num_seqs=8,
            max_model_len=50,
        )
        assert played.steps == ["+a:20", "a:20", "a:5 done:a"]


class TestPreemption:
    """Four blocks; a and b hold two each until one of them needs a third."""

    def test_from_the_tail(self) -> None:
        played = play(Ask(31, 6), Ask(31, 6), num_gpu_blocks=5)
        assert played.steps == [
            "+a:31 +b:31",
            "a:1 b:1",
            "a:1 -b",  # a needs its third block: b goes
            "a:1",
            "a:1",
            "a:1 done:a",
            "^b:17",  # its first block is still there, its second one became a's third
            "b:1",
            "b:1",
            "b:1 done:b",
        ]
        assert played.counters.num_preemptions == 1
        assert played.counters.hit_tokens_all_admissions == 16

    def test_of_itself(self) -> None:
        played = play(Ask(20, 4), Ask(31, 4), num_gpu_blocks=5)
        assert played.steps == [
            "+a:20 +b:31",
            "a:1 b:1",
            "a:1 -b",  # a needs nothing; b is the tail and goes itself
            "a:1 done:a",
            "^b:1",  # both its blocks are still there
            "b:1 done:b",
        ]

    def test_several_victims_until_it_fits(self) -> None:
        """c's blocks are shared with b, so c's leaving helps nobody."""
        shared = range(31)
        played = play(
            Ask(31, 4),
            Ask(31, 4, tokens=shared),
            Ask(15, 3),
            num_gpu_blocks=6,
            max_num_batched_tokens=200,
        )
        assert played.steps[:3] == ["+a:31 +b:31 +c:15", "a:1 b:1 c:1", "a:1 -b -c"]

    def test_nobody_is_admitted_in_a_step_that_preempted(self) -> None:
        asks = (Ask(31, 4), Ask(31, 4), Ask(4, 1, arrival=1500))
        played = play(*asks, num_gpu_blocks=5)
        # When a took its third block, one of b's was left: enough for c, but not in that step.
        assert played.steps[2:] == [
            "a:1 -b",
            "a:1 done:a",
            "^b:17 +c:4 done:c",
            "b:1 done:b",
        ]
        assert played.logged_steps.free_after_schedule[2] == 1

    def test_resumed_before_fresh(self) -> None:
        """b came before c and again before it: c would fit from step 3 on, but b does not."""
        asks = (Ask(31, 6), Ask(31, 6), Ask(4, 1, arrival=1500))
        played = play(*asks, num_gpu_blocks=5, enable_prefix_caching=False)
        assert played.steps[2:7] == ["a:1 -b", "a:1", "a:1", "a:1 done:a", "^b:33 +c:4 done:c"]

    def test_the_last_preempted_is_the_first_to_resume(self) -> None:
        """a takes c's block, and b, which is the tail then, goes itself."""
        asks = (Ask(47, 5), Ask(15, 6), Ask(15, 6))
        played = play(*asks, num_gpu_blocks=6, enable_prefix_caching=False)
        assert played.steps[:6] == [
            "+a:47 +b:15 +c:15",
            "a:1 b:1 c:1",
            "a:1 -b -c",
            "a:1",
            "a:1 done:a",
            "^b:17 ^c:17",
        ]

    def test_the_first_token_keeps_its_time(self) -> None:
        played = play(Ask(31, 6), Ask(31, 6), num_gpu_blocks=5)
        row = times(played, "b")
        assert row["preemptions"] == 1
        assert row["first_scheduled_ns"] == 0
        assert row["first_token_ns"] == 1000
        assert row["last_token_ns"] == 10_000
        assert row["output_tokens"] == 6
        assert row["hit_tokens_gpu"] == 0  # of its first admission; resuming hit 16

    def test_recomputation_is_a_chunk_like_any_other(self) -> None:
        played = play(
            Ask(31, 6),
            Ask(31, 6),
            num_gpu_blocks=5,
            enable_prefix_caching=False,
            long_prefill_token_threshold=31,
        )
        assert played.steps[6:8] == ["^b:31", "b:2"]

    def test_inter_token_time_spans_a_preemption(self) -> None:
        played = play(Ask(31, 6), Ask(31, 6), num_gpu_blocks=5)
        log = played.engine.log
        intervals = log.intervals[: log.sizes[0].num_intervals]
        waits: dict[int, int] = {}
        for interval in intervals:
            waits[int(interval.ns)] = waits.get(int(interval.ns), 0) + int(interval["count"])
        assert waits == {STEP_NS: 9, 5 * STEP_NS: 1}


class TestReserveFullIsl:
    """a holds four of ten blocks; b's prompt needs all ten."""

    asks = (Ask(60, 3), Ask(150, 1))
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 4}  # noqa: RUF012

    def test_on_waits_until_all_of_it_fits(self) -> None:
        assert play(*self.asks, **self.limits).steps == [
            "+a:60",
            "a:1",
            "a:1 done:a",
            "+b:64",
            "b:64",
            "b:22 done:b",
        ]

    def test_off_starts_and_may_lose_it_again(self) -> None:
        off = {"scheduler_reserve_full_isl": False}
        played = play(*self.asks, **self.limits, **off)
        assert played.steps == [
            "+a:60 +b:4",
            "a:1 b:63",
            "a:1 -b done:a",
            "^b:64",
            "b:22 done:b",
        ]


class TestPriority:
    def test_order_of_the_queue(self) -> None:
        played = play(
            Ask(10, 1, priority=2),
            Ask(10, 1, priority=1),
            Ask(10, 1, priority=-3),
            max_num_seqs=1,
            policy="priority",
        )
        assert played.steps == ["+c:10 done:c", "+b:10 done:b", "+a:10 done:a"]

    def test_fcfs_ignores_priorities(self) -> None:
        played = play(Ask(10, 1, priority=2), Ask(10, 1, priority=1), max_num_seqs=1)
        assert played.steps == ["+a:10 done:a", "+b:10 done:b"]

    def test_ties_of_priority_and_arrival_go_by_id_as_text(self) -> None:
        names = ("req-2", "req-10", "req-1")
        played = play(*(Ask(10, 1, name=n) for n in names), max_num_seqs=1, policy="priority")
        assert played.steps == [
            "+req-1:10 done:req-1",
            "+req-10:10 done:req-10",
            "+req-2:10 done:req-2",
        ]

    def test_admission_never_preempts(self) -> None:
        played = play(
            Ask(10, 3, priority=5),
            Ask(10, 1, priority=0, arrival=1),
            max_num_seqs=1,
            policy="priority",
        )
        assert played.steps == ["+a:10", "a:1", "a:1 done:a", "+b:10 done:b"]

    def test_victim_is_the_least_urgent(self) -> None:
        """b needs a block; by fcfs c would go, by priority it is a, which was in the batch."""
        asks = (
            Ask(20, 4, priority=9),
            Ask(31, 4, priority=0, arrival=1),
            Ask(15, 2, priority=1, arrival=1),
        )
        played = play(*asks, num_gpu_blocks=6, policy="priority")
        assert played.steps == [
            "+a:20",
            "a:1 +b:31 +c:15",
            "a:1 b:1 c:1 done:c",
            "a:1 b:1 done:a",
            "b:1 done:b",
        ]

    def test_victim_in_the_batch_gives_its_tokens_back(self) -> None:
        """b needs its second block when a is in the batch already: a's token goes to c's prompt."""
        asks = (
            Ask(2, 30, priority=9),
            Ask(10, 9, priority=0, arrival=1),
            Ask(60, 1, priority=1, arrival=4500),
        )
        played = play(
            *asks,
            num_gpu_blocks=5,
            policy="priority",
            scheduler_reserve_full_isl=False,
            max_num_batched_tokens=8,
            max_num_seqs=3,
        )
        assert played.steps[7:10] == ["a:1 b:1 c:6", "a:1 b:1 c:6", "b:1 c:7 -a"]

    def test_preempting_itself_ends_the_step(self) -> None:
        """a stands first and is the least urgent: it goes itself, and b gets nothing either."""
        asks = (Ask(31, 4, priority=1), Ask(20, 4, priority=0, arrival=1))
        played = play(*asks, num_gpu_blocks=5, policy="priority")
        assert played.steps == [
            "+a:31",
            "a:1 +b:20",
            "-a",
            "b:1",
            "b:1",
            "b:1 done:b",
            "^a:1",
            "a:1 done:a",
        ]

    def test_of_tied_ones_the_first_goes(self) -> None:
        asks = (Ask(20, 4), Ask(31, 4))
        played = play(*asks, num_gpu_blocks=5, policy="priority")
        # b needs a third block; a came as early and stands before it.
        assert played.steps[:3] == ["+a:20 +b:31", "a:1 b:1", "b:1 -a"]
        assert times(played, "a")["finished"]

    def test_waiting_preempted_ones_have_no_advantage(self) -> None:
        asks = (
            Ask(31, 6, priority=0),
            Ask(31, 6, priority=2),
            Ask(4, 1, priority=1, arrival=1500),
        )
        played = play(*asks, num_gpu_blocks=5, policy="priority")
        assert played.steps[2:4] == ["a:1 -b", "a:1 +c:4 done:c"]


class TestMaxModelLen:
    def test_output_ends_at_max_model_len(self) -> None:
        played = play(Ask(20, 30), max_model_len=24)
        assert played.steps == ["+a:20", "a:1", "a:1", "a:1 done:a"]
        row = times(played, "a")
        assert (row["output_tokens"], row["requested_output_tokens"]) == (4, 30)
        assert row["finished"]
        assert row["capped"]

    def test_longest_prompt_gets_one_token(self) -> None:
        played = play(Ask(23, 5), max_model_len=24)
        assert played.steps == ["+a:23 done:a"]
        assert not played.refused

    def test_exact_length_is_not_capped(self) -> None:
        assert not times(play(Ask(20, 4), max_model_len=24), "a")["capped"]

    def test_it_counts_for_what_fits_the_pool(self) -> None:
        """160 slots are enough for 161 tokens, of which the last needs none."""
        assert not play(Ask(100, 900), max_model_len=161).refused
        assert play(Ask(100, 900), max_model_len=162).refused


class TestRefusals:
    def test_prompt_without_room_for_a_token(self) -> None:
        played = play(Ask(24, 1), Ask(10, 1), Ask(30, 1), max_model_len=24)
        assert played.refused == {
            0: "prompt of 24 tokens, max_model_len is 24",
            2: "prompt of 30 tokens, max_model_len is 24",
        }
        assert played.steps == ["+b:10 done:b"]
        row = times(played, "a")
        assert row["refused"] == played.refused[0]
        assert not row["finished"]
        assert row["queued_ns"] is row["first_token_ns"] is row["last_token_ns"] is None
        assert row["output_tokens"] == 0

    @pytest.mark.parametrize("reserve", [True, False])
    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_larger_than_the_pool(self, reserve: bool, policy: str) -> None:
        played = play(
            Ask(200, 1),
            Ask(100, 62),
            Ask(10, 1),
            scheduler_reserve_full_isl=reserve,
            policy=policy,
        )
        assert played.refused == {
            0: "needs 13 blocks, the pool has 10",
            1: "needs 11 blocks, the pool has 10",
        }
        assert played.steps == ["+c:10 done:c"]

    def test_a_request_as_large_as_the_pool_runs(self) -> None:
        """161 tokens in 160 slots: the last token is never computed."""
        played = play(Ask(100, 61), Ask(20, 2))
        assert not played.refused
        assert times(played, "a")["finished"]
        assert times(played, "b")["finished"]
        assert played.pool.min_free_blocks == 0

    def test_null_block_makes_the_difference(self) -> None:
        assert play(Ask(160, 2), null_block=True).refused
        assert not play(Ask(160, 2), null_block=False).refused

    def test_a_session_ends_with_its_refused_call(self) -> None:
        played = play(
            Ask(10, 1),
            Ask(300, 1, after=0),
            Ask(10, 1, after=1),
            Ask(10, 1, after=2),
            Ask(10, 1),
        )
        assert played.refused == {
            1: "needs 19 blocks, the pool has 10",
            2: "the call before it, b, was refused",
            3: "the call before it, c, was refused",
        }
        assert played.steps == ["+a:10 +e:10 done:a done:e"]
        assert times(played, "c")["arrival_ns"] is None

    def test_everybody(self) -> None:
        played = play(Ask(2000, 1), Ask(2000, 1))
        assert played.steps == []
        assert len(played.refused) == 2


class TestPrefixCache:
    def test_a_finished_request_is_hit(self) -> None:
        tokens = range(50)
        played = play(Ask(50, 1, tokens=tokens), Ask(70, 1, tokens=tokens, arrival=1))
        assert played.steps == ["+a:50 done:a", "+b:22 done:b"]
        assert times(played, "b")["hit_tokens_gpu"] == 48

    def test_blocks_are_there_from_the_step_that_computes_them(self) -> None:
        """Within one step: b is admitted after a and finds what a is about to compute."""
        tokens = range(40)
        assert play(Ask(40, 1, tokens=tokens), Ask(40, 1, tokens=tokens)).steps == [
            "+a:40 +b:8 done:a done:b"
        ]

    def test_a_prompt_of_whole_blocks_computes_its_last_one_again(self) -> None:
        tokens = range(48)
        played = play(Ask(48, 1, tokens=tokens), Ask(48, 1, tokens=tokens, arrival=1))
        assert played.steps == ["+a:48 done:a", "+b:16 done:b"]

    def test_output_is_hit_by_the_next_turn(self) -> None:
        tokens = range(64)
        played = play(Ask(20, 30, tokens=tokens[:50]), Ask(63, 1, tokens=tokens, arrival=10**6))
        # 49 of a's tokens were computed, so three blocks of it are full.
        assert played.steps[-1] == "+b:15 done:b"

    def test_the_token_that_ended_a_request_was_not_computed(self) -> None:
        tokens = range(64)
        played = play(Ask(20, 28, tokens=tokens[:48]), Ask(63, 1, tokens=tokens, arrival=10**6))
        assert played.steps[-1] == "+b:31 done:b"

    def test_off(self) -> None:
        tokens = range(50)
        played = play(
            Ask(50, 1, tokens=tokens),
            Ask(50, 1, tokens=tokens, arrival=1),
            enable_prefix_caching=False,
        )
        assert played.steps == ["+a:50 done:a", "+b:50 done:b"]

    def test_every_retry_of_a_blocked_admission_is_a_query(self) -> None:
        """vLLM's own counters; a request's hit is of its first admission all the same."""
        played = play(Ask(100, 4), Ask(100, 1), max_num_batched_tokens=200)
        assert played.steps == ["+a:100", "a:1", "a:1", "a:1 done:a", "+b:100 done:b"]
        assert played.pool.queries == 100 + 5 * 100
        assert played.pool.failed_allocations == 4
        assert played.logged_steps.prefix_queries.tolist() == [200, 100, 100, 100, 100]


class TestAsync:
    """A batch is formed when the one before it starts."""

    def test_a_freed_seat_is_seen_one_batch_later(self) -> None:
        asks = (Ask(10, 4), Ask(10, 1), Ask(10, 1))
        sync = play(*asks, max_num_seqs=2)
        assert sync.steps == [
            "+a:10 +b:10 done:b",
            "a:1 +c:10 done:c",
            "a:1",
            "a:1 done:a",
        ]
        overlapped = play(*asks, max_num_seqs=2, async_scheduling=True)
        assert overlapped.steps == [
            "+a:10 +b:10 done:b",
            "a:1",  # formed while b's token was in flight
            "a:1 +c:10 done:c",
            "a:1 done:a",
            "",
            "",
        ]
        assert times(sync, "c")["first_token_ns"] == 2000
        assert times(overlapped, "c")["first_token_ns"] == 3000
        assert times(overlapped, "a")["last_token_ns"] == 4000

    def test_freed_blocks_are_seen_one_batch_later(self) -> None:
        asks = (Ask(10, 4), Ask(100, 1), Ask(100, 1))
        sync = play(*asks, max_num_batched_tokens=200)
        overlapped = play(*asks, max_num_batched_tokens=200, async_scheduling=True)
        assert sync.steps[1] == "a:1 +c:100 done:c"
        assert overlapped.steps[1:3] == ["a:1", "a:1 +c:100 done:c"]

    def test_an_arrival_is_seen_when_the_next_batch_is_formed(self) -> None:
        """b comes while a's first batch runs; the second was formed before."""
        asks = (Ask(10, 4), Ask(10, 1, arrival=500))
        played = play(*asks, async_scheduling=True)
        assert played.steps[:3] == ["+a:10", "a:1", "a:1 +b:10 done:b"]
        assert times(played, "b")["queued_ns"] == 1000
        assert times(played, "b")["first_scheduled_ns"] == 1000
        assert played.logged_steps.formed_ns.tolist()[:4] == [0, 0, 1000, 2000]
        assert played.logged_steps.start_ns.tolist()[:4] == [0, 1000, 2000, 3000]

    def test_one_token_is_not_scheduled_again_while_in_flight(self) -> None:
        played = play(Ask(20, 1), async_scheduling=True)
        # The batch in between and the one after the last request finished are empty.
        assert played.steps == ["+a:20 done:a", "", ""]
        assert times(played, "a")["last_token_ns"] == 1000
        assert played.counters.now_ns == 1000

    def test_tokens_and_lengths_are_those_of_sync(self) -> None:
        asks = tuple(Ask(7 * r + 3, 5 + r % 4, arrival=700 * r) for r in range(9))
        rows = [
            [(row["output_tokens"], row["finished"]) for row in self._rows(play(*asks, **mode))]
            for mode in ({}, {"async_scheduling": True})
        ]
        assert rows[0] == rows[1] == [(5 + r % 4, True) for r in range(9)]

    @staticmethod
    def _rows(played: Played) -> list[dict[str, Any]]:
        return requests_table(played.engine, played.workload, played.refused).to_pylist()

    def test_host_time_adds_to_a_step_or_hides_behind_the_one_before(self) -> None:
        host = {"host_ns_per_step": 300, "host_ns_per_request": 5}
        sync = play(Ask(10, 3), Ask(10, 3), **host)
        assert sync.logged_steps.start_ns.tolist() == [310, 1310 + 310, 2620 + 310]
        assert sync.logged_steps.end_ns.tolist() == [1310, 2620, 3930]
        overlapped = play(Ask(10, 3), Ask(10, 3), **host, async_scheduling=True)
        assert overlapped.logged_steps.end_ns.tolist()[:3] == [1310, 2310, 3310]

    @pytest.mark.parametrize("host_ns", [0, 300, 1500])
    def test_a_step_starts_when_host_and_device_are_ready(self, host_ns: int) -> None:
        played = play(Ask(10, 6), host_ns_per_step=host_ns, async_scheduling=True)
        steps = played.logged_steps[:6]
        device_free = 0
        for step in steps:
            assert step.start_ns == max(step.formed_ns + host_ns, device_free)
            device_free = step.end_ns


def test_every_request_is_reported_once() -> None:
    asks = tuple(Ask(5 + r, 1 + r % 5, arrival=300 * r, priority=r % 3) for r in range(25))
    for policy in ("fcfs", "priority"):
        for overlapped in (False, True):
            played = play(*asks, num_gpu_blocks=6, policy=policy, async_scheduling=overlapped)
            words = " ".join(played.steps).split()
            assert sorted(w for w in words if w.startswith("done:")) == sorted(
                f"done:{name}" for name in played.workload.request_ids
            )
            assert sorted(w[1] for w in words if w[0] == "+") == sorted(played.workload.request_ids)
