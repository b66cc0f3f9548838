"""Blocks of large arrays: their order, and their sums."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.arrays.blocks import BLOCK, add_as_numpy, map_blocks, split_as_numpy_adds, split_evenly


def test_results_come_in_the_order_of_the_blocks() -> None:
    sizes = (0, 3, BLOCK, 5 * BLOCK + 1)
    found = map_blocks(lambda *block: block, [split_evenly(n) for n in sizes])
    assert found == [[(k, *block) for block in split_evenly(n)] for k, n in enumerate(sizes)]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (BLOCK,), (BLOCK + 1,), (999, 777), (3 * BLOCK + 17,), (1 << 20,)])
def test_sums_of_blocks_are_added_to_what_numpy_adds_up(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    flat = np.reshape(x, -1)
    blocks = split_as_numpy_adds(flat.size)
    assert [a for a, _ in blocks] == [0, *(b for _, b in blocks[:-1])] and blocks[-1][1] == flat.size
    assert add_as_numpy([float(flat[a:b].sum()) for a, b in blocks], flat.size) == float(x.sum())
