"""Fewer of what a case is made of: ddmin over a list (nodes of a graph, earlier cases), then what is left over one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from tasks.minimise.graph_case import GraphCase
from tasks.minimise.hunt import Ask, Hunt, Search
from tasks.minimise.same import Failure
from tasks.minimise.traced_case import TracedCase

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
#: Nodes up to which every single one, and every pair of neighbours, is tried first.
FEW = 12


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


def fewer_nodes(hunt: Hunt) -> Search[None]:
    """The nodes without which the case does not fail; what comes to them from others is their true value, as an input."""
    whole = hunt.best
    if not isinstance(whole, (GraphCase, TracedCase)) or len(whole.ops) < 2:
        return
    given = whole.values()

    def failing(places: list[int]) -> Search[bool]:
        return (yield from hunt.take(whole.of(places, given), f"{len(whole.ops)} nodes → {len(places)}"))

    places = whole.places
    for count in (1, 2) if len(places) <= FEW else ():
        for at in range(len(places) - count + 1):
            if (yield from failing(places[at : at + count])):
                return
    yield from fewest(places, failing)


def fewer_before(hunt: Hunt, earlier: int) -> Search[tuple[int, ...]]:
    """Which of the earlier cases of a process it takes for the stored case to fail in it, by number, in their order."""

    def failing(numbers: list[int]) -> Search[bool]:
        row = yield from hunt.run(Ask(before=tuple(numbers), fresh=True))
        return hunt.wanted.again(Failure.of(row))

    return tuple((yield from fewest(range(earlier), failing)))
