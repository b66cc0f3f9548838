"""Blocks of large arrays, computed in threads: their order, their sums, what they raise."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from tasks.arrays.blocks import (
    BLOCK,
    SHARE,
    add_as_numpy,
    map_blocks,
    map_in_threads,
    split_as_numpy_adds,
    split_evenly,
)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_their_order_from_so_many_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads)))
    sizes = (0, 3, BLOCK, 5 * SHARE + 1)
    found = map_blocks(lambda *block: block, [split_evenly(n) for n in sizes])
    assert found == [[(k, *block) for block in split_evenly(n)] for k, n in enumerate(sizes)]
    places = threading.Barrier(threads)
    names = map_in_threads(lambda _: (places.wait(60), threading.get_ident())[1], range(threads))
    assert len(set(names)) == threads


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_that_raises_is_raised(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads)))
    taken = list[int]()

    def fail(k: int) -> None:
        taken.append(k)
        if k in (2, 3):
            raise ValueError(k)

    with pytest.raises(ValueError, match="2"):
        map_in_threads(fail, range(10_000))
    assert len(taken) < 10_000, "what is left is not computed"


@pytest.mark.parametrize("shape", [(), (0,), (5,), (BLOCK,), (BLOCK + 1,), (999, 777), (3 * BLOCK + 17,), (1 << 20,)])
def test_sums_of_blocks_are_added_to_what_numpy_adds_up(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    flat = np.reshape(x, -1)
    blocks = split_as_numpy_adds(flat.size)
    assert [a for a, _ in blocks] == [0, *(b for _, b in blocks[:-1])] and blocks[-1][1] == flat.size
    assert add_as_numpy([float(flat[a:b].sum()) for a, b in blocks], flat.size) == float(x.sum())
