"""How the core's record arrays are made."""

from __future__ import annotations

import numpy as np

from simulator.core import state

CACHE_LINE = 64


def records(shape: int | tuple[int, ...], dtype: np.dtype[np.void]) -> state.Records:
    """Zeroed records that start on a cache line."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape).view(np.recarray)


def one(dtype: np.dtype[np.void]) -> state.Records:
    return records(1, dtype)
