"""Blocks of tokens -> integers, equal exactly when everything up to the end of the block is equal.

A block is a node: its own tokens below the node of the block before it. Nodes are found through an
open-addressing table; what decides is the comparison of parent and tokens, never the hash alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.core.jit import compiled, entry

EMPTY = -1
NO_PARENT = -1
NODE_BITS = 32
NODE_MASK = (1 << NODE_BITS) - 1
TAG_MASK = (1 << 31) - 1
PARENT_FACTOR = 0x1E3779B97F4A7C15

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@compiled
def tag_of_block(parent: int, token_ids: Int32s, start: int, factors: Int32s) -> int:
    """A multilinear hash: its terms don't wait for each other, and its middle bits mix well.

    Compiled sums wrap at 64 bits and uncompiled ones don't; the bits taken are the same.
    """
    total = (parent + 1) * PARENT_FACTOR
    for j in range(factors.size):
        total += int(token_ids[start + j]) * int(factors[j])
    return (total >> 20) & TAG_MASK


@compiled
def same_entries(token_ids: Int32s, a: int, b: int, width: int) -> bool:
    for j in range(width):  # noqa: SIM110 (a generator would not compile)
        if token_ids[a + j] != token_ids[b + j]:
            return False
    return True


@entry
def intern_blocks(
    block_offsets: Int64s,
    num_known_blocks: Int64s,
    token_offsets: Int64s,
    token_ids: Int32s,
    factors: Int32s,
    blocks_per_entry: int,
    slots: Int64s,
    node_parent: Int32s,
    node_start: Int64s,
    node_id: Int32s,
    ids: Int32s,
) -> int:
    """Fill `ids` in order of first appearance and return how many there are.

    A block is `factors.size` entries of `token_ids`; with `blocks_per_entry` > 1 an entry stands
    for so many blocks, which the chain of parents tells apart. Blocks after the known ones get ids
    of their own. A slot holds tag << 32 | node.
    """
    width = factors.size
    slot_mask = slots.size - 1
    num_ids = 0
    num_nodes = 0
    for r in range(num_known_blocks.size):
        parent = NO_PARENT
        start = int(token_offsets[r])
        blocks_left_in_entry = blocks_per_entry
        first = int(block_offsets[r])
        end_of_known = first + int(num_known_blocks[r])
        for at in range(first, end_of_known):
            tag = tag_of_block(parent, token_ids, start, factors)
            slot = tag & slot_mask
            while slots[slot] != EMPTY:
                node = int(slots[slot]) & NODE_MASK
                if (
                    int(slots[slot]) >> NODE_BITS == tag
                    and node_parent[node] == parent
                    and same_entries(token_ids, start, int(node_start[node]), width)
                ):
                    break
                slot = (slot + 1) & slot_mask
            if slots[slot] == EMPTY:
                node = num_nodes
                num_nodes += 1
                slots[slot] = (tag << NODE_BITS) | node
                node_parent[node] = parent
                node_start[node] = start
                node_id[node] = num_ids
                num_ids += 1
            else:
                node = int(slots[slot]) & NODE_MASK
            ids[at] = node_id[node]
            parent = node
            blocks_left_in_entry -= 1
            if blocks_left_in_entry == 0:
                blocks_left_in_entry = blocks_per_entry
                start += width
        for at in range(end_of_known, int(block_offsets[r + 1])):
            ids[at] = num_ids
            num_ids += 1
    return num_ids
