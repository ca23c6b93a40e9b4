"""The numbers of the source rows that a merge inserts."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.incremental.plan import _numbers_where


@pytest.mark.parametrize("rows", [0, 5, 1 << 20, (3 << 20) + 7])
def test_row_numbers_take_half_the_memory_of_flatnonzero(rows: int) -> None:
    chosen = np.random.default_rng(1).random(rows) < 0.3
    numbers = _numbers_where(chosen)
    assert numbers.dtype == np.int32
    assert np.array_equal(numbers, np.flatnonzero(chosen))
