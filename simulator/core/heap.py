"""A binary heap of request indices; `before(infos, a, b)` is its order, which must be total."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.core.jit import compiled
from simulator.core.state import Records

Order = Callable[[Records, int, int], bool]


@compiled
def push(heap: NDArray[np.int32], size: int, infos: Records, before: Order, r: int) -> int:
    """Returns the new size."""
    heap[size] = r
    sift_up(heap, infos, before, size)
    return size + 1


@compiled
def remove(heap: NDArray[np.int32], size: int, infos: Records, before: Order, i: int) -> int:
    """Remove the element at position i. Returns the new size."""
    size -= 1
    if i < size:
        heap[i] = heap[size]
        sift_down(heap, size, infos, before, i)
        sift_up(heap, infos, before, i)
    return size


@compiled
def sift_up(heap: NDArray[np.int32], infos: Records, before: Order, i: int) -> None:
    while i > 0:
        parent = (i - 1) // 2
        if not before(infos, heap[i], heap[parent]):
            break
        heap[i], heap[parent] = heap[parent], heap[i]
        i = parent


@compiled
def sift_down(heap: NDArray[np.int32], size: int, infos: Records, before: Order, i: int) -> None:
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and before(infos, heap[child + 1], heap[child]):
            child += 1
        if not before(infos, heap[child], heap[i]):
            break
        heap[i], heap[child] = heap[child], heap[i]
        i = child
