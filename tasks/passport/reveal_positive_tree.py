"""Reveals the tree of a sum whose terms are never negative: exponentials of a softmax, squares of a norm.

No term takes a large one away again, so nothing counts what was lost beside it. Instead two small terms are given
beside a large one, and all others are 0: the large one loses either of them, and not the sum of both. So the result
says whether the two are added together before they meet the large one. Which two of three terms meet first, for enough
threes, is the tree.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence

from tasks.passport.device_sum import DeviceSum, NotReadable
from tasks.passport.reveal_tree import find_tree_meeting_size, measure_tree_sizes, split_terms_into
from tasks.passport.sum_trees import Tree, encode_tree, get_first_term, list_tree_nodes, order_tree

#: Shares of the smallest number that the large term does not lose: a term that it loses, two of which it does not.
SMALL = 0.75
#: Most bits that an accumulator is looked for.
MOST_BITS = 60
#: Large terms that are asked alone.
ALONE = 3
#: Threes that are asked again once the tree is known.
ASKED_AGAIN = 24


#: Three terms.
Three = tuple[int, int, int]


class _PositiveTerms:
    """What shows in a sum of small terms beside a large one."""

    def __init__(self, device: DeviceSum) -> None:
        self.device = device
        #: What is seen of a large term alone: by its number, and of any one where all that were asked give the same.
        self._unseen: dict[int, float] = {}
        self._met: dict[tuple[int, tuple[int, ...]], bool] = {}
        if device.count < 3:
            raise NotReadable("too few terms", "the order of two terms is no question")
        self._bits = self._find_bits()
        self._small = SMALL * 2.0**-self._bits

    def _find_bits(self) -> int:
        """The largest power of a half of which one and a half shows beside 1."""
        low, high = 0, MOST_BITS  # it shows at low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._show([(0, {1: 2 * SMALL * 2.0**-middle})])[0] else (low, middle)
        if not low:
            raise NotReadable("not a sum", "half of a term beside it changes nothing")
        if high == MOST_BITS:
            raise NotReadable("wider than the masks", f"2^-{low} beside 1 is not lost")
        return low

    def _show(self, asked: Sequence[tuple[int, dict[int, float]]]) -> list[bool]:
        """Whether the results are others than of the large terms alone."""
        self._see_alone(dict.fromkeys(large for large, _ in asked))
        found = self.device.show_each(asked)
        return [not _are_sums_equal(x, self._unseen[large]) for x, (large, _) in zip(found, asked)]

    def _see_alone(self, terms: Iterable[int]) -> None:
        """Asks of large terms alone. Once ALONE of them have given the same, all others do: then all that is lost of a
        large term leaves what it was."""
        new = [large for large in terms if large not in self._unseen]
        known = list(self._unseen.values())
        if len(known) >= ALONE and all(_are_sums_equal(x, known[0]) for x in known):
            self._unseen |= dict.fromkeys(new, known[0])
        elif new:
            self._unseen |= zip(new, map(float, self.device.show_each([(large, {}) for large in new])))

    def ask(self, asked: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Asks of each (large, terms) what `meet` then says."""
        left = {(large, tuple(terms)): None for large, terms in asked if len(terms) > 1}
        new = [key for key in left if key not in self._met]
        if new:
            self._met |= zip(new, self._show([(large, dict.fromkeys(terms, self._small)) for large, terms in new]))

    def meet(self, large: int, terms: Sequence[int]) -> bool:
        """Whether any two of these terms are added together before the large one."""
        self.ask([(large, terms)])
        return len(terms) > 1 and self._met[large, tuple(terms)]

    def find_first(self, threes: Sequence[Three]) -> list[tuple[int, ...]]:
        """Of each three terms the two that meet before the third, asked anew; () where one step takes all three. Raises
        NotReadable where that cannot be told."""
        asked = [(pair, large) for i, j, k in threes for pair, large in (((i, j), k), ((i, k), j), ((j, k), i))]
        met = self._show([(large, dict.fromkeys(pair, self._small)) for pair, large in asked])
        first: list[tuple[int, ...]] = []
        for n in range(len(threes)):
            found = [pair for (pair, _), is_met in zip(asked[3 * n : 3 * n + 3], met[3 * n :]) if is_met]
            if len(found) > 1:
                words = "the result has fewer bits than the sum: where two terms meet does not show in it"
                raise NotReadable("rounded away", words)
            first.append(found[0] if found else ())
        return first

    def check_last(self, tree: Tree) -> None:
        """Raises NotReadable where a term that the last step takes is none of the sum: all others were seen to meet
        another one."""
        terms = [x for x in tree if isinstance(x, int)] if isinstance(tree, tuple) else []
        for term, shows in zip(terms, self._show([(int(not x), {x: 2 * self._small}) for x in terms])):
            if not shows:
                raise NotReadable("not a sum", f"term {term} changes nothing")

    def measure_rounding(self) -> tuple[int, str]:
        """(bits that the sum keeps, how it loses the rest): of 1.5 and 2.5 of what just shows, nearest makes one last
        bit, cutting off 1 and 2."""
        least = 2.0**-self._bits
        cut = not _are_sums_equal(*self.device.show_each([(0, {1: 1.5 * least}), (0, {1: 2.5 * least})]))
        return self._bits + cut, "truncated" if cut else "nearest even"


def _are_sums_equal(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def reveal_positive_tree(device: DeviceSum, rng: random.Random, guesses: Sequence[Tree] = ()) -> tuple[Tree, int, str]:
    """(tree, bits that its sums keep, how they lose the rest). guesses: trees that it may have, which are cheaper to
    confirm than to find. Raises NotReadable, whose code is "rounded away", "wider than the masks", "too few terms",
    "not a sum" or "changes"."""
    beside, terms = _PositiveTerms(device), range(device.count)
    beside.find_first([(0, device.count // 2, device.count - 1)])
    last = device.count - 1
    for large, pair in ((last, (0, 1)), (last // 2, (0, last)), (0, (last - 1, last))) if device.width > 1 else ():
        beside.meet(large, pair)  # put to all of the device's sums, each in a call of its own
    for guess in guesses:
        in_twos = all(len(node) == 2 for node in list_tree_nodes(guess))
        if _is_guessed_tree_proved(beside, guess) and (
            in_twos or not any(_list_triples_disagreeing(beside, guess, rng))
        ):
            beside.check_last(guess)
            return (guess, *beside.measure_rounding())
    tree = order_tree(_build_positive_tree(beside, list(terms)))
    for three, expected, first in _list_triples_disagreeing(beside, tree, rng):
        (second,) = beside.find_first([three])
        if first != second or second == expected:
            words = f"the order changes from run to run: of terms {three} {first} met, then {second}"
            raise NotReadable("changes", words)
        raise NotReadable("not a sum", f"of terms {three} {first} meet first, and in the tree {expected}")
    beside.check_last(tree)
    return (tree, *beside.measure_rounding())


def _is_guessed_tree_proved(beside: _PositiveTerms, guess: Tree) -> bool:
    """Whether the last two terms that each step joins meet before one that comes later: of a tree of steps of two, only
    this one says so of all."""
    for few in split_terms_into(list(_list_term_triples(guess)), beside.device.width):
        asked = [(later, (i, j)) for i, j, later in few]
        beside.ask(asked)
        if not all(beside.meet(*one) for one in asked):
            return False
    return True


def _build_positive_tree(beside: _PositiveTerms, terms: Sequence[int]) -> Tree:
    """The tree of these terms: what is added to the first of them, in that order."""
    first, *others = terms
    tree: Tree = first

    def compare(one: list[int], other: list[int]) -> int:
        if beside.meet(other[0], (first, one[0])):
            return -1
        return int(beside.meet(one[0], (first, other[0])))

    parts = sorted(_split_positive_terms(beside, first, others), key=functools.cmp_to_key(compare))
    at = 0
    while at < len(parts):
        step = [parts[at]]
        while at + len(step) < len(parts) and not compare(parts[at], parts[at + len(step)]):
            step.append(parts[at + len(step)])
        tree = (tree, *(_build_positive_tree(beside, part) for part in step))
        at += len(step)
    return tree


def _split_positive_terms(beside: _PositiveTerms, first: int, others: Sequence[int]) -> list[list[int]]:
    """The others in parts whose terms meet before the first of all takes them."""
    parts: list[list[int]] = []
    part_of: dict[int, list[int]] = {}
    lag = 1  # how far before a term another one of its part lies: 1 in blocks, k in k lanes
    for at, term in enumerate(others):
        # All that is left at once, now and then: terms that are added one after another are told by one question.
        if at & (at - 1) == 0 and not beside.meet(first, [*(part[0] for part in parts), *others[at:]]):
            return [*parts, *([x] for x in others[at:])]
        if at % beside.device.width == 0:  # what the next ones are likely to be asked, in one call
            later = others[at : at + min(lag, beside.device.width)]
            beside.ask(
                (first, (part_of[x][0], term)) for x, term in zip(others[max(at - lag, 0) :], later) if at >= lag
            )
        part = part_of.get(others[at - lag]) if at >= lag else None
        if part is None or not beside.meet(first, (part[0], term)):
            part = _find_part_of_term(beside, first, parts, term)
            if part is not None:
                lag = at - others.index(part[-1])
        if part is None:
            part = []
            parts.append(part)
        part.append(term)
        part_of[term] = part
    return parts


def _find_part_of_term(beside: _PositiveTerms, first: int, parts: Sequence[list[int]], term: int) -> list[int] | None:
    """The part that a term belongs to; None where it is in none of them."""
    if not beside.meet(first, [*(part[0] for part in parts), term]):
        return None
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        parts = half if beside.meet(first, [*(part[0] for part in half), term]) else parts[len(half) :]
    return parts[0]


def _list_term_triples(tree: Tree) -> Iterator[tuple[int, int, int]]:
    """For each step but the last two terms that it joins, and one that comes later."""
    for node in list_tree_nodes(tree):
        for child in node:
            if isinstance(child, tuple):
                beside = next(x for x in node if x is not child)
                yield get_first_term(child[0]), get_first_term(child[1]), get_first_term(beside)


def _list_triples_disagreeing(
    beside: _PositiveTerms, tree: Tree, rng: random.Random
) -> Iterator[tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]]]:
    """Of threes drawn at random those that do not meet as the tree says: (three, which two meet first in the tree, and
    on the device)."""
    parents = encode_tree(tree)
    sizes = measure_tree_sizes(parents)
    terms = range(beside.device.count)
    drawn = (sorted(rng.sample(terms, 3)) for _ in range(ASKED_AGAIN))
    threes: list[Three] = [(i, j, k) for i, j, k in drawn]
    for few in split_terms_into(threes, beside.device.width):
        for (i, j, k), found in zip(few, beside.find_first(few)):
            expected = _find_first_meeting(parents, sizes, i, j, k)
            if found != expected:
                yield (i, j, k), expected, found


def _find_first_meeting(parents: Sequence[int], sizes: Sequence[int], i: int, j: int, k: int) -> tuple[int, ...]:
    """The two of three terms that meet first in a tree as `encode_tree` and `measure_tree_sizes` have it, as
    `_Beside.find_first` has them; () where one step takes all three."""
    met = {pair: find_tree_meeting_size(parents, sizes, *pair) for pair in ((i, j), (i, k), (j, k))}
    first = min(met, key=lambda pair: met[pair])
    return first if met[first] < max(met.values()) else ()
