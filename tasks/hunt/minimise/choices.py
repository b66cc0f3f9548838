"""A list of choices made simpler while the case that it makes fails: what generated it need not be known.

Spans are left out, then set to 0, then each number is made as small as it can be by halving (as in Hypothesis's
shrinker: MacIver & Donaldson, Test-Case Reduction via Test-Case Generation, ECOOP 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tasks.draw.choices import DrawnChoices
from tasks.hunt.chosen_case import ChosenCase
from tasks.hunt.dialogue import Search
from tasks.hunt.minimise.question import MinimiseQuestion

#: Asked whether the case of a list fails in the same way: the choices that it took, None if it does not.
Fails = Callable[[list[int]], Search["DrawnChoices | None"]]
#: Lengths of the runs that are left out or set to 0, beside the case's own spans.
_LENGTHS = (8, 4, 2, 1)


def search_simplest_choices(first: DrawnChoices, fails: Fails) -> Search[DrawnChoices]:
    """The simplest choices found, shorter lists before smaller numbers, from those of a case that fails."""
    best, before = first, None
    while before is None or _rank_choices(before) != _rank_choices(best.taken):
        before = list(best.taken)
        for ways in (_list_shorter_choices, _try_zero_choices):
            best = yield from _try_simpler_ways(best, ways, fails)
        best = yield from _bisect_choices(best, fails)
    return best


def _try_simpler_ways(
    best: DrawnChoices, ways: Callable[[DrawnChoices], Iterator[list[int]]], fails: Fails
) -> Search[DrawnChoices]:
    """Each way of making the best simpler; after one that fails, those of what it took, from the same place on."""
    place = 0
    while True:
        wanted = next((x for k, x in enumerate(ways(best)) if k >= place), None)
        if wanted is None:
            return best
        found = yield from _keep_simpler_choices(best, wanted, fails)
        if found is None:
            place += 1
        else:
            best = found


def _keep_simpler_choices(best: DrawnChoices, tried: list[int], fails: Fails) -> Search[DrawnChoices | None]:
    """What a simpler list took, if it fails and is simpler still."""
    if _rank_choices(tried) >= _rank_choices(best.taken):
        return None
    found = yield from fails(tried)
    return found if found is not None and _rank_choices(found.taken) < _rank_choices(best.taken) else None


def _rank_choices(taken: Sequence[int]) -> tuple[int, list[int]]:
    return len(taken), list(taken)


def _list_shorter_choices(best: DrawnChoices) -> Iterator[list[int]]:
    """Without each of its spans, the longest first, also with one less where their number may stand: right before the
    first of their label, and at the beginning; without runs of choices."""
    taken = best.taken
    starts: dict[str, int] = {}
    for label, first, _ in best.spans:
        starts[label] = min(starts.get(label, first), first)
    for label, first, last in sorted(best.spans, key=lambda span: span[1] - span[2]):
        rest = taken[:first] + taken[last:]
        if last > first:
            for place in dict.fromkeys((starts[label] - 1, 0)):
                if 0 <= place < first and rest[place]:
                    yield [*rest[:place], rest[place] - 1, *rest[place + 1 :]]
            yield rest
    for length in _LENGTHS:
        for at in range(len(taken) - length, -1, -1):
            yield taken[:at] + taken[at + length :]


def _try_zero_choices(best: DrawnChoices) -> Iterator[list[int]]:
    taken = best.taken
    for length in _LENGTHS:
        for at in range(0, len(taken) - length + 1, length):
            if any(taken[at : at + length]):
                yield taken[:at] + [0] * length + taken[at + length :]


def _bisect_choices(best: DrawnChoices, fails: Fails) -> Search[DrawnChoices]:
    at = 0
    while at < len(best.taken):
        low = -1  # does not fail, or was not asked
        while at < len(best.taken) and best.taken[at] - low > 1:
            middle = (low + best.taken[at]) // 2
            found = yield from _keep_simpler_choices(best, [*best.taken[:at], middle, *best.taken[at + 1 :]], fails)
            if found is None:
                low = middle
            else:
                best = found
        at += 1
    return best


def minimise_choices(question: MinimiseQuestion) -> Search[None]:
    """The simplest choices with which it fails, then what they made; of a graph of several nodes at once what they
    made, since a choice less makes another graph."""
    case = question.best
    if not isinstance(case, ChosenCase):
        return

    def fails(taken: list[int]) -> Search[DrawnChoices | None]:
        tried = ChosenCase(tuple(taken), case.group, case.draws)
        return tried.choose if (yield from question.take(tried, f"{len(taken)} choices")) else None

    case.make_sample()
    graph = case.graph()
    if graph is not None and len(graph.ops) > 1 and (yield from question.take(graph, "the graph")):
        return
    yield from search_simplest_choices(case.choose, fails)
    left = question.best
    if isinstance(left, ChosenCase):
        yield from question.take(left.graph() or left.call(), "what they make")
