"""The block pool: order of the free queue, touch, release, duplicates, eviction."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.core import block_pool
from simulator.core.state import NONE
from simulator.invariants import check_invariants
from tests.simulator.core.calls import callable_from_python
from tests.simulator.core.manager import Manager


class Pool(Manager):
    """A pool whose blocks are handed around by hand."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(range(160), **changes)

    def new(self) -> int:
        return int(callable_from_python(block_pool.get_new_block)(self.kv))

    def touch(self, b: int) -> None:
        callable_from_python(block_pool.touch)(self.kv, b)

    def release(self, *blocks: int) -> None:
        for b in blocks:
            callable_from_python(block_pool.release)(self.kv, b)

    def cache(self, b: int, block_hash: int) -> None:
        callable_from_python(block_pool.cache_block)(self.kv, b, block_hash)

    def cached(self, block_hash: int) -> int:
        return int(callable_from_python(block_pool.get_cached_block)(self.kv, block_hash))


@pytest.mark.parametrize(("null_block", "usable"), [(True, 10), (False, 11)])
def test_null_block_is_never_handed_out(null_block: bool, usable: int) -> None:
    pool = Pool(null_block=null_block)
    assert pool.free_queue == list(range(usable))
    assert [pool.new() for _ in range(usable)] == list(range(usable))
    assert pool.free_queue == []
    assert pool.pool.num_free_blocks == pool.pool.min_free_blocks == 0


def test_blocks_come_back_at_the_end() -> None:
    pool = Pool()
    taken = [pool.new() for _ in range(4)]
    pool.release(taken[2], taken[0])
    assert pool.free_queue == [4, 5, 6, 7, 8, 9, 2, 0]
    assert pool.new() == 4
    pool.release(3)
    assert pool.free_queue == [5, 6, 7, 8, 9, 2, 0, 3]


def test_queue_can_run_empty_and_fill_again() -> None:
    pool = Pool(num_gpu_blocks=3)
    assert [pool.new(), pool.new()] == [0, 1]
    pool.release(1)
    assert pool.free_queue == [1]
    pool.touch(1)
    assert pool.free_queue == []
    pool.release(0, 1)
    assert pool.free_queue == [0, 1]


@pytest.mark.parametrize("b", [0, 3, 9])
def test_touch_takes_a_free_block_out_of_the_queue(b: int) -> None:
    pool = Pool()
    pool.touch(b)
    assert pool.free_queue == [other for other in range(10) if other != b]
    assert pool.kv.blocks[b].ref_cnt == 1
    assert pool.pool.num_free_blocks == 9
    assert pool.pool.min_free_blocks == 9


def test_touch_of_a_held_block_only_counts() -> None:
    pool = Pool()
    b = pool.new()
    pool.touch(b)
    assert pool.kv.blocks[b].ref_cnt == 2
    pool.release(b)
    assert b not in pool.free_queue
    pool.release(b)
    assert pool.free_queue[-1] == b


def test_content_stays_until_the_block_is_reused() -> None:
    pool = Pool(num_gpu_blocks=3)
    b = pool.new()
    pool.cache(b, 5)
    pool.release(b)
    assert pool.cached(5) == b
    assert pool.new() == 1
    assert pool.cached(5) == b
    assert pool.pool.evicted_blocks == 0
    assert pool.new() == b
    assert pool.cached(5) == NONE
    assert pool.kv.blocks[b].block_hash == NONE
    assert pool.pool.evicted_blocks == pool.pool.reused_blocks == 1


def test_reuse_without_content_is_no_eviction() -> None:
    pool = Pool(num_gpu_blocks=2)
    pool.release(pool.new())
    pool.new()
    assert pool.pool.reused_blocks == 1
    assert pool.pool.evicted_blocks == 0


def test_first_indexed_of_equal_blocks_is_found() -> None:
    pool = Pool()
    for b in (pool.new(), pool.new(), pool.new()):
        pool.cache(b, 7)
    assert pool.index() == {7: [0, 1, 2]}
    assert pool.cached(7) == 0


@pytest.mark.parametrize(
    ("freed", "left"),
    [
        ([0], [1, 2]),  # the first: the second is found from now on
        ([1], [0, 2]),
        ([2], [0, 1]),
        ([0, 1], [2]),
        ([2, 1, 0], []),
    ],
)
def test_eviction_of_one_of_equal_blocks(freed: list[int], left: list[int]) -> None:
    pool = Pool(num_gpu_blocks=4)
    for b in (pool.new(), pool.new(), pool.new()):
        pool.cache(b, 7)
    pool.release(*freed)
    assert [pool.new() for _ in freed] == freed
    assert pool.index() == ({7: left} if left else {})
    assert pool.cached(7) == (left[0] if left else NONE)


def test_a_block_indexed_again_is_the_last_of_its_equals() -> None:
    pool = Pool(num_gpu_blocks=4)
    for b in (pool.new(), pool.new()):
        pool.cache(b, 7)
    pool.release(0)
    assert [pool.new(), pool.new()] == [2, 0]
    pool.cache(0, 7)
    assert pool.index() == {7: [1, 0]}


def test_invariants_notice_a_lost_block() -> None:
    pool = Pool()
    check_invariants(pool.engine)
    pool.new()  # taken by nobody
    with pytest.raises(AssertionError, match="block 0: 0 holders, reference count 1"):
        check_invariants(pool.engine)


def test_invariants_notice_a_wrong_index() -> None:
    pool = Pool()
    pool.kv.blocks[3].block_hash = 5
    with pytest.raises(AssertionError, match="indexed blocks"):
        check_invariants(pool.engine)


def test_invariants_notice_a_wrong_count() -> None:
    pool = Pool()
    pool.pool.num_free_blocks -= 1
    with pytest.raises(AssertionError, match="free queue and number of free blocks: 10 != 9"):
        check_invariants(pool.engine)
