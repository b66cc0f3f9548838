"""Fewer of what a case is made of: ddmin over a list (nodes of a graph, earlier cases), then what is left over one by one."""

from __future__ import annotations

from tasks.ddmin import shrink_to_fewest
from tasks.hunt.dialogue import Ask, Search
from tasks.hunt.graph_case import GraphCase
from tasks.hunt.minimise.question import MinimiseQuestion
from tasks.hunt.minimise.same import StoredFailure
from tasks.hunt.traced_case import TracedCase

#: Nodes up to which every single one, and every pair of neighbours, is tried first.
FEW = 12


def minimise_nodes(question: MinimiseQuestion) -> Search[None]:
    """The nodes without which the case does not fail; what comes to them from others is their true value, as an
    input."""
    whole = question.best
    if not isinstance(whole, (GraphCase, TracedCase)) or len(whole.ops) < 2:
        return
    given = whole.values()

    def failing(places: list[int]) -> Search[bool]:
        return (yield from question.take(whole.of(places, given), f"{len(whole.ops)} nodes → {len(places)}"))

    places = whole.places
    for count in (1, 2) if len(places) <= FEW else ():
        for at in range(len(places) - count + 1):
            if (yield from failing(places[at : at + count])):
                return
    yield from shrink_to_fewest(places, failing)


def minimise_earlier_cases(question: MinimiseQuestion, earlier: int) -> Search[tuple[int, ...]]:
    """Which of the earlier cases of a process it takes for the stored case to fail in it, by number, in their order."""

    def failing(numbers: list[int]) -> Search[bool]:
        row = yield from question.run(Ask(before=tuple(numbers), fresh=True))
        return question.wanted.again(StoredFailure.of(row))

    return tuple((yield from shrink_to_fewest(range(earlier), failing)))
