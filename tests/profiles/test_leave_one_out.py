from __future__ import annotations

import math

import numpy as np
import pytest

from profiles.bundle import AttentionGrid, LayerTable
from profiles.leave_one_out import Errors, grid_errors, layer_errors
from profiles.lookup import attention_ns, layer_ns

CODES = np.zeros(4, np.uint8)
# (prefill_chunk, n_decode, kv_prefill, kv_decode, ns): decodes only, and one chunk alone.
ROWS = [
    (0, 1, 0, 10, 100),
    (0, 1, 0, 20, 300),
    (0, 1, 0, 40, 400),
    (0, 2, 0, 10, 150),
    (0, 2, 0, 40, 500),
    (16, 0, 0, 0, 700),
]


def grid() -> AttentionGrid:
    columns = [np.array(column) for column in zip(*ROWS, strict=True)]
    return AttentionGrid(*columns, np.zeros(len(ROWS), np.uint8))


def test_a_layer_from_its_neighbours() -> None:
    table = LayerTable(np.array([1, 2, 4, 5]), np.array([10, 30, 40, 45]), CODES)
    # 2: 10 + 1/3 x 30 = 20 instead of 30; 4: 30 + 2/3 x 15 = 40.
    assert layer_errors(table).tolist() == pytest.approx([1 / 3, 0.0])
    found = Errors.of("layer", "tokens", layer_errors(table))
    assert (found.samples, found.mean) == (2, pytest.approx(1 / 6))


def test_a_grid_along_each_axis() -> None:
    # 20 between 10 and 40: 100 + 1/3 x 300 = 200 instead of 300. Nothing else has two neighbours.
    assert grid_errors(grid(), "kv_decode").tolist() == pytest.approx([1 / 3])
    for axis in ("prefill_chunk", "n_decode", "kv_prefill"):
        assert len(grid_errors(grid(), axis)) == 0
    assert Errors.of("attention", "n_decode", grid_errors(grid(), "n_decode")).samples == 0


def test_reading_at_a_point() -> None:
    assert attention_ns(grid(), 0, 1, 0, 30) == 350
    assert attention_ns(grid(), 0, 1, 0, 60) == 500  # extrapolated
    assert attention_ns(grid(), 0, 1, 0, 1) == 100  # clamped
    assert attention_ns(grid(), 16, 0, 0, 0) == 700
    assert math.isfinite(attention_ns(grid(), 0, 2, 0, 25))
    table = LayerTable(np.array([1, 2, 4, 5]), np.array([10, 30, 40, 45]), CODES)
    assert [layer_ns(table, n) for n in (0, 3, 7)] == [10, 35, 55]
