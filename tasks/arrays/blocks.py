"""Large arrays a block at a time, in as many threads as there are processors: no number hangs on how many these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from tasks.relay import count_usable_processors

S = TypeVar("S")
T = TypeVar("T")

#: Elements that are computed together: a processor's cache holds some of these blocks, and in so many NumPy computes for
#: longer without the interpreter than with it.
BLOCK = 1 << 14
#: Elements, of one array or of several, that a thread takes at a time.
SHARE = 1 << 18
#: Threads at most: each holds some twenty blocks.
THREADS = 16


def map_in_threads(function: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """The results of a function that waits for nobody, in the order of the items; NumPy warns of nothing in it. Raises
    what it raises of the first of them that it does not take."""

    def take(item: S) -> T:
        with np.errstate(all="ignore"):  # each thread has its own
            return function(item)

    if len(items) < 2 or (threads := min(count_usable_processors(), THREADS, len(items))) < 2:
        return [take(x) for x in items]  # of small arrays, without asking the system for its processors
    with ThreadPoolExecutor(threads, "judge") as pool:
        return list(pool.map(take, items))


def map_blocks(function: Callable[[int, int, int], T], blocks: Sequence[Sequence[tuple[int, int]]]) -> list[list[T]]:
    """The results of function(k, begin, end) of each block (begin, end) of the kth of some arrays, in order. Raises as
    `map_in_threads`."""

    def take(share: list[tuple[int, int, int]]) -> list[T]:
        return [function(*one) for one in share]

    shares, room = list[list[tuple[int, int, int]]](), 0
    for k, some in enumerate(blocks):
        for begin, end in some:
            if room <= 0:
                shares.append([])
                room = SHARE
            shares[-1].append((k, begin, end))
            room -= end - begin
    found = (x for some in map_in_threads(take, shares) for x in some)
    return [[next(found) for _ in some] for some in blocks]


def split_evenly(size: int) -> list[tuple[int, int]]:
    """(begin, end) of blocks of a flat array."""
    return [(at, min(at + BLOCK, size)) for at in range(0, size, BLOCK)]


def split_as_numpy_adds(size: int) -> list[tuple[int, int]]:
    """(begin, end) of blocks of a flat array whose sums are numbers that NumPy's own sum of all of it adds up
    (`add_as_numpy`): it halves an array, at a multiple of 8, until little is left."""

    def split(begin: int, n: int) -> Iterator[tuple[int, int]]:
        if n <= BLOCK:
            yield begin, begin + n
            return
        half = n // 2 - n // 2 % 8
        yield from split(begin, half)
        yield from split(begin + half, n - half)

    return list(split(0, size))


def add_as_numpy(sums: Sequence[float], size: int) -> float:
    """The sum of an array of so many elements, to the last bit, of the sums of its blocks (`split_as_numpy_adds`)."""
    rest = iter(sums)

    def add(n: int) -> float:
        if n <= BLOCK:
            return next(rest)
        half = n // 2 - n // 2 % 8
        return add(half) + add(n - half)

    return add(size)
