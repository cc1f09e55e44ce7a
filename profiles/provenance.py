"""Where a row of a table comes from: one code a row, beside its time.

measured      the kernel was timed at this shape
interpolated  between (or just beyond) timed shapes of the same kernel
derived       worked out from timed kernels by a rule that was checked against measurements
assumed       a formula or a constant that was not checked on this card
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]

MEASURED, INTERPOLATED, DERIVED, ASSUMED = range(4)
NAMES = ("measured", "interpolated", "derived", "assumed")


def all_of(code: int, like: npt.NDArray[Any]) -> Codes:
    """`code` for every row of `like`."""
    return np.full(len(like), code, np.uint8)
