"""Delta debugging: the smallest part of a list that still fails, of nodes of a graph or of earlier cases of a process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def shrink_to_fewest(
    items: Sequence[int], failing: Callable[[list[int]], Generator[Asked, Answer, bool]]
) -> Generator[Asked, Answer, list[int]]:
    """A part of a list, all of which fails, from which nothing can be left out (Zeller & Hildebrandt, Simplifying and
    Isolating Failure-Inducing Input, 2002: ddmin)."""
    left = list(items)
    pieces = 2
    while len(left) > 1:
        size = -(-len(left) // pieces)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        for k, chunk in enumerate(chunks):
            if len(chunks) > 1 and (yield from failing(chunk)):
                left, pieces = chunk, 2
                break
            rest = [x for j, other in enumerate(chunks) if j != k for x in other]
            if len(chunks) > 2 and rest and (yield from failing(rest)):
                left, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if pieces >= len(left):
                break
            pieces = min(len(left), 2 * pieces)
    return left


def bisect_smallest(
    low: int, high: int, failing: Callable[[int], Generator[Asked, Answer, bool]]
) -> Generator[Asked, Answer, int]:
    """The smallest number above ``low`` that fails, if all above it do; ``high`` is known to, ``low`` is known not
    to."""
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from failing(middle)):
            high = middle
        else:
            low = middle
    return high


def thin_out_items(
    items: Sequence[Item], failing: Callable[[list[Item]], Generator[Asked, Answer, bool]]
) -> Generator[Asked, Answer, list[Item]]:
    """A part of a list that fails as the whole does, without the runs of items that can be left out, long runs first:
    fewer questions than `shrink_to_fewest` asks where most items are needed."""
    left = list(items)
    size = len(left) // 2
    while size:
        at = 0
        while at < len(left) and len(left) > 1:
            rest = left[:at] + left[at + size :]
            if rest and (yield from failing(rest)):
                left = rest
            else:
                at += size
        size //= 2
    return left
