"""Reveals the tree of a sum whose terms are never negative: exponentials of a softmax, squares of a norm.

No term takes a large one away again, so nothing counts what was lost beside it. Instead two small terms are given beside a large one, and all
others are 0: the large one loses either of them, and not the sum of both. So the result says whether the two are added together before
they meet the large one. Which two of three terms meet first, for enough threes, is the tree.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence

from tasks.passport.device_sum import NotReadable, Sum
from tasks.passport.reveal import find_meeting_size, measure_sizes
from tasks.passport.trees import Tree, encode_tree, get_first_term, list_nodes, order_tree

#: Shares of the smallest number that the large term does not lose: a term that it loses, two of which it does not.
SMALL = 0.75
#: Most bits that an accumulator is looked for.
MOST_BITS = 60
#: Threes that are asked again once the tree is known.
ASKED_AGAIN = 24


class _Beside:
    """What shows in a sum of small terms beside a large one."""

    def __init__(self, device: Sum) -> None:
        self.device = device
        self._unseen: dict[int, float] = {}
        if device.count < 3:
            raise NotReadable("too few terms", "the order of two terms is no question")
        self._bits = self._find_bits()
        self._small = SMALL * 2.0**-self._bits

    def _find_bits(self) -> int:
        """The largest power of a half of which one and a half shows beside 1."""
        low, high = 0, MOST_BITS  # it shows at low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._shows(0, {1: 2 * SMALL * 2.0**-middle}) else (low, middle)
        if not low:
            raise NotReadable("not a sum", "half of a term beside it changes nothing")
        if high == MOST_BITS:
            raise NotReadable("wider than the masks", f"2^-{low} beside 1 is not lost")
        return low

    def _shows(self, large: int, values: dict[int, float]) -> bool:
        """Whether the result is another than of the large term alone."""
        if large not in self._unseen:
            self._unseen[large] = self.device.show(large, {})
        return not _equal(self.device.show(large, values), self._unseen[large])

    def meet(self, large: int, terms: Sequence[int]) -> bool:
        """Whether any two of these terms are added together before the large one."""
        return len(terms) > 1 and self._shows(large, dict.fromkeys(terms, self._small))

    def find_first(self, i: int, j: int, k: int) -> tuple[int, ...]:
        """The two of three terms that meet before the third; () where one step takes all three. Raises NotReadable where that cannot be told."""
        found = [pair for pair, large in (((i, j), k), ((i, k), j), ((j, k), i)) if self.meet(large, pair)]
        if len(found) > 1:
            raise NotReadable(
                "rounded away", "the result has fewer bits than the sum: where two terms meet does not show in it"
            )
        return found[0] if found else ()

    def check_last(self, tree: Tree) -> None:
        """Raises NotReadable where a term that the last step takes is none of the sum: all others were seen to meet another one."""
        for term in tree if isinstance(tree, tuple) else ():
            if isinstance(term, int) and not self._shows(int(not term), {term: 2 * self._small}):
                raise NotReadable("not a sum", f"term {term} changes nothing")

    def measure_rounding(self) -> tuple[int, str]:
        """(bits that the sum keeps, how it loses the rest): of 1.5 and 2.5 of what just shows, nearest makes one last bit, cutting off 1 and 2."""
        least = 2.0**-self._bits
        cut = not _equal(self.device.show(0, {1: 1.5 * least}), self.device.show(0, {1: 2.5 * least}))
        return self._bits + cut, "truncated" if cut else "nearest even"


def _equal(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def reveal_positive(device: Sum, rng: random.Random, guesses: Sequence[Tree] = ()) -> tuple[Tree, int, str]:
    """(tree, bits that its sums keep, how they lose the rest). guesses: trees that it may have, which are cheaper to confirm than to find. Raises NotReadable, whose code is
    "rounded away", "wider than the masks", "too few terms", "not a sum" or "changes"."""
    beside, terms = _Beside(device), range(device.count)
    beside.find_first(0, device.count // 2, device.count - 1)
    for guess in guesses:
        joined = all(beside.meet(later, (i, j)) for i, j, later in _list_threes(guess))
        if joined and not any(_list_disagreeing(beside, guess, rng)):
            beside.check_last(guess)
            return (guess, *beside.measure_rounding())
    tree = order_tree(_build(beside, list(terms)))
    for three, expected, first in _list_disagreeing(beside, tree, rng):
        second = beside.find_first(*three)
        if first != second or second == expected:
            words = f"the order changes from run to run: of terms {three} {first} met, then {second}"
            raise NotReadable("changes", words)
        raise NotReadable("not a sum", f"of terms {three} {first} meet first, and in the tree {expected}")
    beside.check_last(tree)
    return (tree, *beside.measure_rounding())


def _build(beside: _Beside, terms: Sequence[int]) -> Tree:
    """The tree of these terms: what is added to the first of them, in that order."""
    first, *others = terms
    tree: Tree = first

    def compare(one: list[int], other: list[int]) -> int:
        if beside.meet(other[0], (first, one[0])):
            return -1
        return int(beside.meet(one[0], (first, other[0])))

    parts = sorted(_split(beside, first, others), key=functools.cmp_to_key(compare))
    at = 0
    while at < len(parts):
        step = [parts[at]]
        while at + len(step) < len(parts) and not compare(parts[at], parts[at + len(step)]):
            step.append(parts[at + len(step)])
        tree = (tree, *(_build(beside, part) for part in step))
        at += len(step)
    return tree


def _split(beside: _Beside, first: int, others: Sequence[int]) -> list[list[int]]:
    """The others in parts whose terms meet before the first of all takes them."""
    parts: list[list[int]] = []
    part_of: dict[int, list[int]] = {}
    lag = 1  # how far before a term another one of its part lies: 1 in blocks, k in k lanes
    for at, term in enumerate(others):
        # All that is left at once, now and then: terms that are added one after another are told by one question.
        if at & (at - 1) == 0 and not beside.meet(first, [*(part[0] for part in parts), *others[at:]]):
            return [*parts, *([x] for x in others[at:])]
        part = part_of.get(others[at - lag]) if at >= lag else None
        if part is None or not beside.meet(first, (part[0], term)):
            part = _find_part(beside, first, parts, term)
            if part is not None:
                lag = at - others.index(part[-1])
        if part is None:
            part = []
            parts.append(part)
        part.append(term)
        part_of[term] = part
    return parts


def _find_part(beside: _Beside, first: int, parts: Sequence[list[int]], term: int) -> list[int] | None:
    """The part that a term belongs to; None where it is in none of them."""
    if not beside.meet(first, [*(part[0] for part in parts), term]):
        return None
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        parts = half if beside.meet(first, [*(part[0] for part in half), term]) else parts[len(half) :]
    return parts[0]


def _list_threes(tree: Tree) -> Iterator[tuple[int, int, int]]:
    """For each step but the last two terms that it joins, and one that comes later."""
    for node in list_nodes(tree):
        for child in node:
            if isinstance(child, tuple):
                beside = next(x for x in node if x is not child)
                yield get_first_term(child[0]), get_first_term(child[1]), get_first_term(beside)


def _list_disagreeing(
    beside: _Beside, tree: Tree, rng: random.Random
) -> Iterator[tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]]]:
    """Of threes drawn at random those that do not meet as the tree says: (three, which two meet first in the tree, and on the device)."""
    parents = encode_tree(tree)
    sizes = measure_sizes(parents)
    for _ in range(ASKED_AGAIN):
        i, j, k = sorted(rng.sample(range(beside.device.count), 3))
        expected, found = _find_first(parents, sizes, i, j, k), beside.find_first(i, j, k)
        if found != expected:
            yield (i, j, k), expected, found


def _find_first(parents: Sequence[int], sizes: Sequence[int], i: int, j: int, k: int) -> tuple[int, ...]:
    """The two of three terms that meet first in a tree as `encode_tree` and `measure_sizes` have it, as `_Beside.find_first` has them; () where one step takes all three."""
    met = {pair: find_meeting_size(parents, sizes, *pair) for pair in ((i, j), (i, k), (j, k))}
    first = min(met, key=lambda pair: met[pair])
    return first if met[first] < max(met.values()) else ()
