"""Prefix hashes: every full block of every request as an integer, once per workload and block size.

All tokens of a workload are known beforehand, so vLLM's chained block hashes can be numbered, and
the engine's index from hash to block is an array. All points of a sweep share the numbers.

Difference from vLLM: tokens are compared exactly, so there are no collisions; and tokens that a
workload doesn't know (the output of a trace without tokens) belong to one request alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError
from simulator.core.interning import EMPTY, intern_blocks
from simulator.workloads.workload import Workload


@dataclass(frozen=True, eq=False)
class BlockHashes:
    """`ids[offsets[r] + i]` stands for the i-th full block of request r and all before it."""

    offsets: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    count: int  # ids are 0..count-1

    def of_requests(self, rows: npt.NDArray[np.integer[Any]]) -> BlockHashes:
        """Those of some of the requests, in the order given, numbered as before."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        first = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        ids = self.ids[first + np.arange(offsets[-1])]
        return BlockHashes(_read_only(offsets), _read_only(ids), self.count)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("offsets", "ids"):
            state[name].flags.writeable = False
        self.__dict__.update(state)


def block_hashes(workload: Workload, block_size: int) -> BlockHashes:
    """Number the full blocks of `workload`, in order of first appearance in file order."""
    if block_size < 1:
        raise InputError(workload.source, "block_size", block_size, "at least 1")
    entries_per_block, blocks_per_entry = 1, 1
    if block_size % workload.chunk_size == 0:
        entries_per_block = block_size // workload.chunk_size
    elif workload.chunk_size % block_size == 0:
        blocks_per_entry = workload.chunk_size // block_size
    else:
        expected = f"a divisor or a multiple of {workload.chunk_size}, the chunk size of the trace"
        raise InputError(workload.source, "block_size", block_size, expected)

    offsets = np.zeros(len(workload) + 1, np.int64)
    np.cumsum(workload.num_tokens // block_size, out=offsets[1:])
    num_known_blocks = workload.num_known_tokens // block_size
    num_blocks, num_known = int(offsets[-1]), int(num_known_blocks.sum())

    ids = np.empty(num_blocks, np.int32)
    count = intern_blocks(
        _read_only(offsets),
        _read_only(num_known_blocks),
        workload.token_offsets,
        workload.token_ids,
        _factors(entries_per_block),
        blocks_per_entry,
        np.full(_table_size(num_known), EMPTY, np.int64),
        np.empty(num_known, np.int32),
        np.empty(num_known, np.int64),
        np.empty(num_known, np.int32),
        ids,
    )
    return BlockHashes(_read_only(offsets), _read_only(ids), int(count))


def _table_size(entries: int) -> int:
    """A power of two that leaves at least a third of the slots empty."""
    return 1 << max(4, (entries * 3 // 2).bit_length())


def _factors(width: int) -> npt.NDArray[np.int32]:
    """Odd and large: a change of one token by one reaches the bits that the table uses."""
    random = np.random.Generator(np.random.PCG64(0))
    return _read_only(random.integers(1 << 28, 1 << 31, width, dtype=np.int32) | np.int32(1))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
