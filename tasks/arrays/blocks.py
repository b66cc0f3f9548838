"""Large arrays a block at a time, which a processor's cache holds, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

#: Elements that are computed together: a processor's cache holds some of these blocks.
BLOCK = 1 << 14


def map_blocks(function: Callable[[int, int, int], T], blocks: Sequence[Sequence[tuple[int, int]]]) -> list[list[T]]:
    """The results of function(k, begin, end) of each block (begin, end) of the kth of some arrays; NumPy warns of nothing
    in it."""
    with np.errstate(all="ignore"):
        return [[function(k, begin, end) for begin, end in some] for k, some in enumerate(blocks)]


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


def add_products(x: np.ndarray, y: np.ndarray) -> float:
    """The sum of x · y of two arrays of one shape, in float64, to the last bit as NumPy adds it up."""
    a, b = x.reshape(-1), y.reshape(-1)

    def add(_: int, begin: int, end: int) -> float:
        return float((_widen(a[begin:end]) * _widen(b[begin:end])).sum())

    return _add_blocks(add, x.size)


def add_squares(x: np.ndarray, y: np.ndarray | None = None) -> float:
    """The sum of squares of all elements of an array, or of its difference from another of its shape, in float64, to the
    last bit as NumPy adds it up."""
    a, b = x.reshape(-1), None if y is None else y.reshape(-1)

    def add(_: int, begin: int, end: int) -> float:
        block = _widen(a[begin:end])
        if b is not None:
            block = block - b[begin:end]
        return float(np.square(block).sum())

    return _add_blocks(add, x.size)


def _add_blocks(add: Callable[[int, int, int], float], size: int) -> float:
    (sums,) = map_blocks(add, [split_as_numpy_adds(size)])
    return add_as_numpy(sums, size)


def _widen(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64, copy=False)
