"""Smaller dims: every size by itself or with those that are bound to it, down to 1 or to where it fails no more."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tasks.ddmin import bisect_smallest
from tasks.hunt.case import HuntCase, count_searched_elements
from tasks.hunt.dialogue import Search
from tasks.hunt.minimise.question import MinimiseQuestion

#: An axis of an array: its name, its number.
Axis = tuple[str, int]
#: Elements of an array of integers up to which it may hold sizes.
_SIZES = 16
#: Axes of one size up to which every two of them are tried together.
_PAIRS = 6


def minimise_dims(question: MinimiseQuestion) -> Search[None]:
    """Shrink the sizes of the best case, the largest first, until none can be made smaller."""
    before = -1
    while before != count_searched_elements(question.best):
        before = count_searched_elements(question.best)
        done: set[Any] = set()
        while (bound := next((x for x in _find_case_resizings(question.best) if x[2] not in done), None)) is not None:
            axes, size, name = bound
            done.add(name)
            yield from _minimise_size(question, axes, size)


def _find_case_resizings(case: HuntCase) -> Iterator[tuple[Callable[[HuntCase, int, bool], HuntCase | None], int, Any]]:
    """Ways of making sizes of a case smaller: (a case with a new size in place of one, that size, what tells ways
    apart).

    All axes of a size, and with them what numbers are equal to it; those whose sizes are multiples of it; each axis
    alone; every two.
    """
    sizes: dict[int, list[Axis]] = {}
    for name, x in case.arrays.items():
        for axis, size in enumerate(x.shape):
            if size > 1:
                sizes.setdefault(size, []).append((name, axis))
    for size in sorted(sizes, reverse=True):
        axes = sizes[size]
        multiples = [axis for other, several in sizes.items() if other % size == 0 for axis in several]
        ways: list[tuple[tuple[Axis, ...], bool]] = [(tuple(axes), True), (tuple(axes), False)]
        if len(multiples) > len(axes):
            ways.insert(1, (tuple(multiples), True))
        if len(axes) > 1:
            ways += [((axis,), numbers) for axis in axes for numbers in (False, True)]
        if 2 < len(axes) <= _PAIRS:
            ways += [(pair, False) for pair in itertools.combinations(axes, 2)]
        for some, numbers in ways:
            yield _make_case_resizing(some, size, numbers), size, (some, numbers)


def _make_case_resizing(
    axes: tuple[Axis, ...], size: int, numbers: bool
) -> Callable[[HuntCase, int, bool], HuntCase | None]:
    def resize_case(case: HuntCase, wanted: int, last: bool) -> HuntCase | None:
        """The case with ``wanted`` in place of ``size``: the first of each axis, or the last; numbers: also where
        integers are that size."""
        arrays = case.arrays
        made: dict[str, np.ndarray] = {}
        for name, axis in axes:
            x = made.get(name, arrays[name])
            if x.shape[axis] % size:
                return None
            count = x.shape[axis] // size * wanted
            at = x.shape[axis] - count if last else 0
            made[name] = np.take(x, range(at, at + count), axis=axis)
        if not numbers:
            return case.with_arrays(made)
        for name, x in arrays.items():
            if name not in made and x.dtype.kind == "i" and x.size <= _SIZES and (x == size).any():
                made[name] = np.where(x == size, np.asarray(wanted, x.dtype), x)
        found = {place: wanted for place, value in case.integers.items() if value == size}
        smaller = case.with_arrays(made)
        return smaller.with_integers(found) if found else smaller

    return resize_case


def _minimise_size(
    question: MinimiseQuestion, resized: Callable[[HuntCase, int, bool], HuntCase | None], size: int
) -> Search[None]:
    """The smallest size with which it fails: 1, else by halving. The best is the case with it."""
    start = question.best

    ends = [False, True]

    def fails(wanted: int) -> Search[bool]:
        for last in ends:
            case = resized(start, wanted, last)
            if case is not None and (yield from question.take(case, f"{size} → {wanted}")):
                ends[:] = [last] if wanted > 1 else ends  # what it takes lies at that end
                return True
        return False

    if (yield from fails(1)):
        return
    yield from bisect_smallest(1, size, fails)
