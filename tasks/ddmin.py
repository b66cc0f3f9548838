"""Delta debugging: the smallest part of a list that still fails, of nodes of a graph or of earlier cases of a process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def fewest(
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
