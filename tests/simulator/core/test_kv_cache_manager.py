"""Blocks of requests: hits and their cap, the gates, slots, and the order in which blocks go back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulator.core.manager import Manager

COMMON = list(range(48))  # three blocks of 16


def unique(request: int, count: int) -> list[int]:
    """Tokens that no other request has."""
    return list(range(1000 * request, 1000 * request + count))


def test_prefill_and_reuse_as_in_vllm() -> None:
    """vLLM's test_prefill: two requests share three blocks, a third evicts what they left."""
    manager = Manager(
        COMMON + unique(1, 7),
        COMMON + unique(2, 5),
        COMMON + unique(3, 6),
        unique(4, 16 * 10),
    )
    assert manager.hit(0) == []
    assert manager.admit(0) == [0, 1, 2, 3]
    assert manager.hit(1) == [0, 1, 2]
    assert manager.admit(1) == [0, 1, 2, 4]
    assert [manager.kv.blocks[b].ref_cnt for b in range(5)] == [2, 2, 2, 1, 1]

    manager.free(0)
    manager.free(1)
    # Never used, then each request's own tail, then the common blocks tail first.
    assert manager.free_queue == [5, 6, 7, 8, 9, 3, 4, 2, 1, 0]

    assert manager.admit(2) == [0, 1, 2, 5]
    assert manager.free_queue == [6, 7, 8, 9, 3, 4]
    manager.free(2)
    assert manager.free_queue == [6, 7, 8, 9, 3, 4, 5, 2, 1, 0]

    assert manager.hit(3) == []
    assert manager.admit(3) == [6, 7, 8, 9, 3, 4, 5, 2, 1, 0]
    assert manager.free_queue == []
    assert manager.pool.evicted_blocks == 3
    manager.free(3)
    assert manager.hit(2) == []


def test_blocks_are_indexed_when_they_are_full() -> None:
    manager = Manager(unique(1, 40))
    manager.admit(0, 15)
    assert manager.index() == {}
    assert manager.compute(0, 1) == 0
    assert manager.index() == {0: [0]}
    assert manager.compute(0, 16) == 1
    assert manager.index() == {0: [0], 1: [1]}
    assert manager.compute(0, 8) == 1
    assert manager.index() == {0: [0], 1: [1]}
    manager.decode(0, 7)
    assert manager.index() == {0: [0], 1: [1]}
    manager.decode(0)
    assert manager.index() == {0: [0], 1: [1], 2: [2]}
    assert manager.blocks(0) == [0, 1, 2]


def test_output_can_be_hit() -> None:
    answer = unique(2, 20)
    manager = Manager(COMMON + answer[:1], COMMON + answer)
    # The first request's tokens after its prompt are unknown here, so only the prompt matches.
    manager.admit(0)
    manager.decode(0, 20)
    assert manager.hit(1) == [0, 1, 2]


@pytest.mark.parametrize("tokens", [47, 48, 49, 63, 64, 65])
def test_at_least_one_token_is_computed(tokens: int) -> None:
    """A prompt of exactly k blocks that is cached entirely computes its last block again."""
    prompt = unique(1, 80)
    manager = Manager(prompt, prompt[:tokens])
    manager.admit(0)
    assert len(manager.hit(1)) == (tokens - 1) // 16
    blocks = manager.admit(1)
    assert blocks is not None
    assert len(blocks) == -(-tokens // 16)
    if tokens % 16 == 0:
        last = tokens // 16 - 1
        assert blocks[-1] == 5
        assert manager.index()[manager.hash_of(0, last)] == [last, 5]


def test_first_of_two_equal_blocks_is_hit_and_the_second_after_it_is_gone() -> None:
    prompt = unique(1, 40)
    manager = Manager(prompt, prompt, prompt, unique(2, 48), unique(3, 32), num_gpu_blocks=7)
    # In chunks side by side: neither finds the other's second block, so both index their own.
    assert manager.admit(0, 20) == [0, 1]
    assert manager.admit(1, 10) == [0, 2]
    manager.compute(1, 14)
    manager.compute(0, 20)
    first, second = manager.hash_of(0, 0), manager.hash_of(0, 1)
    assert manager.index() == {first: [0], second: [2, 1]}
    assert manager.hit(2) == [0, 2]

    manager.free(1)
    assert manager.free_queue == [5, 3, 2]
    assert manager.admit(3) == [5, 3, 2]
    assert manager.index()[second] == [1]
    assert manager.hit(2) == [0, 1]


def test_hit_uses_up_free_blocks() -> None:
    """Blocks that are hit in the free queue are no longer there for the rest of the request."""
    shared = unique(1, 64)
    manager = Manager(shared, unique(2, 90), shared + unique(3, 32), num_gpu_blocks=11)
    manager.admit(0)
    manager.free(0)
    manager.admit(1)
    assert manager.free_queue == [3, 2, 1, 0]
    # Four blocks are free and four are hit: nothing is left for the other two.
    assert manager.hit(2) == [0, 1, 2, 3]
    before = manager.contents()
    assert manager.admit(2, 1) is None
    after = manager.contents()
    assert before[:3] == after[:3]
    assert manager.free_queue == [3, 2, 1, 0]
    assert manager.pool.failed_allocations == 1
    manager.free(1)
    assert manager.admit(2) == [0, 1, 2, 3, 9, 8]


def test_hit_on_a_held_block_costs_nothing() -> None:
    shared = unique(1, 64)
    manager = Manager(shared, shared + unique(3, 16), num_gpu_blocks=6)
    manager.admit(0)
    assert manager.admit(1) == [0, 1, 2, 3, 4]
    assert manager.free_queue == []


def test_a_failed_allocation_changes_nothing() -> None:
    manager = Manager(unique(1, 40), unique(2, 100), num_gpu_blocks=9)
    manager.admit(0)
    manager.admit(1, 70)
    assert manager.free_queue == []
    before = manager.contents()
    assert manager.compute(1, 11) is None
    assert manager.contents() == before
    assert manager.pool.failed_allocations == 1
    assert manager.compute(1, 10) == 0


def test_an_allocation_is_whole_or_nothing() -> None:
    manager = Manager(unique(1, 100), num_gpu_blocks=5)
    manager.admit(0, 16)
    before = manager.contents()
    assert manager.compute(0, 49) is None  # four more blocks, three are free
    assert manager.contents() == before
    assert manager.compute(0, 48) == 3


@pytest.mark.parametrize(("reserve", "blocks"), [(False, [0, 1]), (True, None)])
def test_whole_sequence_gate(reserve: bool, blocks: list[int] | None) -> None:
    manager = Manager(unique(1, 100), num_gpu_blocks=5)
    assert manager.admit(0, 20, reserve_full_isl=reserve) == blocks


def test_whole_sequence_gate_counts_hits_and_ends_at_max_model_len() -> None:
    shared = unique(1, 48)
    manager = Manager(shared, shared + unique(2, 16), num_gpu_blocks=5)
    manager.admit(0)
    assert manager.admit(1, 1, reserve_full_isl=True) == [0, 1, 2, 3]
    manager = Manager(unique(1, 63), num_gpu_blocks=5, max_model_len=64)
    manager.kv.requests[0].num_tokens = 90
    assert manager.admit(0, 10, reserve_full_isl=True) == [0]


def test_without_caching_nothing_is_indexed_or_hit() -> None:
    manager = Manager(COMMON, COMMON, enable_prefix_caching=False)
    assert manager.admit(0) == [0, 1, 2]
    assert manager.index() == {}
    assert manager.hit(1) == []
    assert manager.admit(1) == [3, 4, 5]
    assert manager.pool.queries == manager.pool.hits == 0


def test_same_block_under_another_prefix_is_another_block() -> None:
    manager = Manager(unique(1, 16) + COMMON, unique(2, 16) + COMMON)
    manager.admit(0)
    assert manager.hit(1) == []


def test_a_hit_ends_at_the_first_block_that_is_gone() -> None:
    manager = Manager(unique(1, 64), unique(2, 16 * 8))
    manager.admit(0)
    manager.free(0)
    assert manager.free_queue == [4, 5, 6, 7, 8, 9, 3, 2, 1, 0]
    assert manager.admit(1) == [4, 5, 6, 7, 8, 9, 3, 2]
    assert manager.hit(0) == [0, 1]


def test_a_preempted_request_hits_its_own_blocks_and_is_counted_apart() -> None:
    manager = Manager(unique(1, 40))
    manager.admit(0)
    manager.decode(0, 10)
    manager.free(0)
    manager.kv.requests[0].num_preemptions = 1
    assert manager.hit(0) == [0, 1, 2]
    pool = manager.pool
    assert (pool.queries, pool.hits) == (40, 0)
    assert (pool.preempted_queries, pool.preempted_hits) == (50, 48)


def test_blocks_of_one_token() -> None:
    manager = Manager([1, 2, 3, 4], [1, 2, 9, 4], block_size=1)
    assert manager.admit(0) == [0, 1, 2, 3]
    assert manager.admit(1) == [0, 1, 4, 5]


@pytest.mark.parametrize("prompts", [([1] * 32, [1] * 32), ([1] * 33, [1] * 40)])
def test_everybody_leaves(prompts: Sequence[Sequence[int]]) -> None:
    manager = Manager(*prompts)
    for r in range(2):
        manager.admit(r)
    for r in range(2):
        manager.free(r)
    assert sorted(manager.free_queue) == list(range(10))
    assert (manager.kv.blocks.ref_cnt == 0).all()
