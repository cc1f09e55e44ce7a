import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.prefix import BlockHashes, block_hashes
from simulator.workloads import Workload
from tests.workloads.make import make_workload

ROOT = Path(__file__).parents[2]


def numbered_prefixes(workload: Workload, block_size: int) -> list[int]:
    """The same by definition: a dict from everything up to the end of a block to a number."""
    numbers: dict[object, int] = {}
    ids = []
    for r, (start, end) in enumerate(pairwise(workload.token_offsets.tolist())):
        entries = workload.token_ids[start:end].tolist()
        tokens: list[object] = [(e, i) for e in entries for i in range(workload.chunk_size)]
        if workload.chunk_size > 1:
            tokens = tokens[: workload.num_prompt_tokens[r]]
        tokens += [("only", r)] * (int(workload.num_tokens[r]) - len(tokens))
        for stop in range(block_size, len(tokens) + 1, block_size):
            ids.append(numbers.setdefault(tuple(tokens[:stop]), len(numbers)))
    return ids


def ids_of(hashes: BlockHashes) -> list[list[int]]:
    return [hashes.ids[a:b].tolist() for a, b in pairwise(hashes.offsets.tolist())]


def test_equal_blocks_under_different_prefixes_differ() -> None:
    workload = make_workload([(1, 1, 7, 7), (2, 2, 7, 7), (1, 1, 7, 7), (1, 1)])
    assert ids_of(block_hashes(workload, 2)) == [[0, 1], [2, 3], [0, 1], [0]]


def test_a_block_is_as_deep_as_it_is_long() -> None:
    workload = make_workload([(5, 5, 5, 5, 5, 5), (5, 5)])
    hashes = block_hashes(workload, 2)
    assert ids_of(hashes) == [[0, 1, 2], [0]]
    assert hashes.count == 3


def test_only_full_blocks_count() -> None:
    hashes = block_hashes(make_workload([(1, 2, 3), (1, 2, 3, 4, 5)]), 2)
    assert hashes.offsets.tolist() == [0, 1, 3]
    assert block_hashes(make_workload([(1, 2, 3)]), 4).ids.size == 0


def test_unknown_tokens_are_unique() -> None:
    workload = make_workload(
        [(), (), (1, 2, 3)], num_prompt_tokens=[4, 4, 6], num_output_tokens=[1, 1, 2]
    )
    hashes = block_hashes(workload, 2)
    # The last request knows three of eight tokens: its second block is only half known.
    assert ids_of(hashes) == [[0, 1], [2, 3], [4, 5, 6, 7]]
    assert hashes.count == 8


def test_output_tokens_belong_to_the_prefix() -> None:
    """The next turn of a conversation repeats prompt and output of the turn before it."""
    turn = make_workload(
        [(1, 2, 3, 4), (1, 2, 3, 4, 9, 9)], num_prompt_tokens=[2, 5], num_output_tokens=[2, 1]
    )
    assert ids_of(block_hashes(turn, 2)) == [[0, 1], [0, 1, 2]]


def test_chunks_of_a_trace() -> None:
    workload = make_workload(
        [(7, 8), (7, 9), (7, 8)],
        chunk_size=8,
        num_prompt_tokens=[14, 16, 10],
        num_output_tokens=[6, 1, 8],
    )
    hashes = block_hashes(workload, 4)
    # 14 prompt tokens fill three blocks; the block across the end of the prompt is unique.
    assert ids_of(hashes) == [[0, 1, 2, 3, 4], [0, 1, 5, 6], [0, 1, 7, 8]]
    assert block_hashes(workload, 8).ids.tolist() == [0, 1, 0, 2, 0, 3]
    assert block_hashes(workload, 16).ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("block_size", [3, 12, 5])
def test_a_block_size_that_does_not_fit_the_chunks(block_size: int) -> None:
    message = f"made: block_size: got {block_size}, expected a divisor or a multiple of 8"
    with pytest.raises(InputError, match=message):
        block_hashes(make_workload([(1, 2)], chunk_size=8), block_size)


def test_a_block_holds_tokens() -> None:
    with pytest.raises(InputError, match="block_size: got 0, expected at least 1"):
        block_hashes(make_workload(), 0)


def test_arrays_are_read_only_also_through_pickle() -> None:
    hashes = block_hashes(make_workload([(1, 2, 3, 4)]), 2)
    for one in (hashes, pickle.loads(pickle.dumps(hashes))):
        assert one.ids.dtype == np.int32 and one.offsets.dtype == np.int64
        assert not one.ids.flags.writeable and not one.offsets.flags.writeable


# Few tokens and copied beginnings, so that blocks do meet.
spans = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(spans, st.integers(1, 5), st.integers(0, 6))
def test_equal_ids_mean_equal_prefixes(
    tokens: list[list[int]], block_size: int, unknown: int
) -> None:
    prompts = [max(1, len(span) + unknown - 1) for span in tokens]
    workload = make_workload(tokens, num_prompt_tokens=prompts)
    hashes = block_hashes(workload, block_size)
    assert hashes.ids.tolist() == numbered_prefixes(workload, block_size)
    assert hashes.count == len(set(hashes.ids.tolist()))


@settings(max_examples=200, deadline=None)
@given(spans, st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 7), st.integers(1, 20))
def test_equal_ids_mean_equal_chunks(
    tokens: list[list[int]], block_size: int, missing: int, output: int
) -> None:
    prompts = [max(1, len(span) * 8 - missing) for span in tokens]
    outputs = [output] * len(tokens)
    workload = make_workload(
        tokens, chunk_size=8, num_prompt_tokens=prompts, num_output_tokens=outputs
    )
    hashes = block_hashes(workload, block_size)
    assert hashes.ids.tolist() == numbered_prefixes(workload, block_size)


def many_blocks(block_size: int) -> tuple[Workload, BlockHashes]:
    random = np.random.Generator(np.random.PCG64(3))
    base = random.integers(0, 2**31 - 1, 400).tolist()
    tokens = [
        base[: random.integers(0, 400)] + random.integers(0, 9, 40).tolist() for _ in range(99)
    ]
    workload = make_workload(tokens)
    return workload, block_hashes(workload, block_size)


def test_large_token_ids_and_a_full_table() -> None:
    workload, hashes = many_blocks(4)
    assert hashes.ids.tolist() == numbered_prefixes(workload, 4)


def test_tokens_decide_where_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.prefix._factors", lambda width: np.zeros(width, np.int32))
    workload, hashes = many_blocks(4)
    assert hashes.ids.tolist() == numbered_prefixes(workload, 4)


@pytest.mark.parametrize("factor", ["interning.PARENT_FACTOR", "0"])
def test_uncompiled_code_gives_the_same_ids(factor: str) -> None:
    """Also where all parents hash alike."""
    program = (
        "from tests.workloads.test_prefix import many_blocks\n"
        "from simulator.core import interning, jit\n"
        f"interning.PARENT_FACTOR = {factor}\n"
        "assert not jit.JIT\n"
        "print(many_blocks(7)[1].ids.tolist())"
    )
    environment = os.environ | {"SERVESWEEP_JIT": "0"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(many_blocks(7)[1].ids.tolist())
