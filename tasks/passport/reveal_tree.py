"""Reveals the tree of a sum: in what order a device adds, asked with masks.

One term is M, another −M, all others are 1, and M is so large that a one beside it is lost. The result counts the ones
that are added after the two have met, and so says how many terms the smallest part has in which both are (FPRev, USENIX
ATC 2025).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tasks.model.dtypes import TABLE
from tasks.passport.device_sum import DeviceSum, NotReadable
from tasks.passport.sum_trees import Tree, encode_tree, get_first_term, list_tree_nodes, order_tree

T = TypeVar("T")

#: Pairs that are asked again once the tree is known, and of a tree that was guessed and that unseen results will tell.
ASKED_AGAIN, CONFIRMED = 48, 12
#: Pairs of which all sums of a device are asked before a tree is built.
COMPARED = 4
#: Bits of accumulators that do not round to nearest, which are tried one after the other.
CUTTING = (24, 13, 14, 11, 8, 16, 22, 25, 53)
#: How far from a whole number a count may be: one that was divided and rounded is no whole number.
_LOOSE, _EXACT = 0.3, 1e-6


@dataclass(frozen=True)
class SumMask:
    """What stands for M and for one: factors (left, right) of each; the right ones are 1 where terms are no products.

    modulus: counts are known up to a multiple of it, 0 where they are known. An adder that cuts off makes one last bit
    of −M of the ones beside it.
    """

    big: tuple[float, float]
    one: tuple[float, float]
    modulus: int = 0

    @property
    def unit(self) -> float:
        return self.one[0] * self.one[1]

    def __str__(self) -> str:
        return f"M = 2^{np.log2(self.big[0] * self.big[1]):g} beside 2^{np.log2(self.unit):g}"


def list_deviation_masks(dtype: str, count: int) -> Iterator[SumMask]:
    """The same where the square of M is in a sum too: far enough apart for any accumulator, or, in a small range, for
    one of 24 bits, which loses a count of ones."""
    row = TABLE[dtype]
    assert row.largest is not None
    if np.log2(row.largest) > 64:
        yield SumMask((2.0**62, 1.0), (1.0, 1.0))
    else:
        top = math.floor(math.log2(row.largest))
        yield SumMask((2.0**top, 1.0), (2.0 ** (top - 25 - math.ceil(math.log2(count))), 1.0))


def list_sum_masks(dtype: str, products: bool, count: int) -> Iterator[SumMask]:
    """Masks that a dtype holds, the widest first. Where the range of the dtype is wide they are far from its ends;
    where it is small they use all of it, in products twice, and a result that is of the dtype must still hold a count
    of ones."""
    row = TABLE[dtype]
    assert row.digits is not None and row.lowest is not None and row.largest is not None
    top, normal, lowest = int(np.floor(np.log2(row.largest))), row.lowest, row.lowest - row.digits
    if top > 64:
        far = min(top * 2 // 5, 200)
        yield SumMask((2.0 ** (2 * far), 1.0), (1.0, 1.0))
        yield from _list_cutting_masks(0, top, products, count)
        return
    if products:
        yield SumMask((2.0**top, 2.0**top), (2.0**normal, 1.0))
        yield SumMask((2.0**top, 2.0 ** (top // 2)), (2.0**normal, 1.0))
    shared = math.ceil(math.log2(count))  # a share of the smallest number would be none
    for one in dict.fromkeys((lowest, lowest + shared, lowest + shared + 1, normal)):
        yield SumMask((2.0**top, 1.0), (2.0**one, 1.0))
    yield from _list_cutting_masks(normal, top, products, count)


def _list_cutting_masks(one: int, top: int, products: bool, count: int) -> Iterator[SumMask]:
    """Masks for adders that do not round to nearest, by the bits that they may keep: M is so small that its last bit,
    of four counts, stands in the result beside a count."""
    shift = math.ceil(math.log2(count)) + 2
    for bits in CUTTING:
        big = one + bits - 1 + shift
        factors = (2.0**big, 1.0) if big <= top else (2.0**top, 2.0 ** (big - top))
        if big <= top or products:
            yield SumMask(factors, (2.0**one, 1.0), 2**shift)


def count_exact_integers(dtype: str) -> int:
    """Up to which number a dtype holds all whole ones."""
    return int(2 ** ((TABLE[dtype].digits or 0) + 1))


class _AskedMasks:
    """Sizes of the smallest part that holds two terms, as a device tells them."""

    def __init__(self, device: DeviceSum, mask: SumMask) -> None:
        self.device, self.mask = device, mask
        terms = device.terms
        self._share = 1.0 / terms.products if terms.divided else 1.0
        self._loose = _LOOSE if terms.divided or terms.of else _EXACT
        self._left, self._right = np.full(device.count, mask.one[0]), np.full(device.count, mask.one[1])
        if terms.alone:
            self._left[-1] = mask.unit
        self._memory: dict[tuple[int, int], int] = {}
        if not terms.of:  # of ones alone all deviations are 0
            self.check_sound()

    def check_sound(self) -> None:
        """Raises NotReadable where ones alone do not add up to their number."""
        found = self._count(self.device.add(self._left, self._right))
        if found != self.device.count <= count_exact_integers(self.device.output):
            raise NotReadable("not a sum", f"{self.device.count} ones add up to {found}")

    def size(self, i: int, j: int) -> int:
        """How many terms the smallest part has that holds both, of two that were asked."""
        return self._memory[min(i, j), max(i, j)]

    def ask(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Asks of pairs of terms how many the smallest part has that holds both."""
        left = [pair for pair in {(min(x), max(x)): None for x in pairs} if pair not in self._memory]
        for few in split_terms_into(left, self.device.width):  # said before all are asked, which are many
            for (i, j), size in zip(few, self.ask_again(few)):
                self._memory[i, j] = size
                if size < 2:
                    raise NotReadable("wider than the masks", f"{self.mask}: terms {i} and {j} meet among {size}")

    def ask_again(self, pairs: Sequence[tuple[int, int]]) -> Iterator[int]:
        """The sizes of pairs, whether they were asked or not."""
        found = self.device.add_each([self._mask_pair(i, j) for i, j in pairs])
        return (self.device.count - self._count(float(x)) for x in found)

    def compare(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Puts pairs of terms to all sums of the device, each in a call of its own. Raises Apart where one answers
        otherwise."""
        for pair in pairs:
            self.device.add(*self._mask_pair(*pair))

    def _mask_pair(self, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        left, right = self._left.copy(), self._right.copy()
        for term, sign in ((i, 1.0), (j, -1.0)):
            is_alone = bool(self.device.terms.alone) and term == self.device.count - 1
            left[term] = sign * (self.mask.big[0] * self.mask.big[1] if is_alone else self.mask.big[0])
            right[term] = self.mask.big[1]
        return left, right

    def remember(self, rng: random.Random, most: int) -> list[tuple[tuple[int, int], int]]:
        """Some pairs that were asked, with what was said."""
        return rng.sample(list(self._memory.items()), min(most, len(self._memory)))

    def _count(self, found: float) -> int:
        """How many ones a result is."""
        found = found / (self.mask.unit * self._share)
        if not np.isfinite(found):
            raise NotReadable("overflows", f"{self.mask}: the sum is {found}")
        near = round(found)
        if abs(found - near) > self._loose:
            raise NotReadable("not a sum", f"{self.mask}: a count of ones is {found:.6g}")
        return near % self.mask.modulus if self.mask.modulus else near


def split_terms_into(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """So many at a time."""
    return (items[k : k + size] for k in range(0, len(items), size))


def reveal_sum_tree(
    device: DeviceSum, rng: random.Random, guesses: Sequence[Tree] = (), is_tried: bool = False
) -> tuple[Tree, SumMask]:
    """The tree of a sum and the mask that showed it. guesses: trees that it may have; one is returned where a pair of
    each step agrees with it, which proves it, or, where it ``is_tried`` on unseen results afterwards, some pairs.
    Raises NotReadable, whose code is "not a sum", "overflows", "wider than the masks", "too few values" or
    "changes"."""
    row = TABLE[device.dtype]
    if row.family != "float" or row.digits is None:
        raise NotReadable("not a float", f"{device.dtype}: whole numbers are added exactly in any order")
    if device.count - 2 > count_exact_integers(device.dtype):  # no two terms leave more to be counted
        device.add(np.zeros(device.count), np.zeros(device.count))  # the result may be of a dtype that counts further
        if device.count - 2 > (most := count_exact_integers(device.output)):
            words = f"{device.output} counts to {most} and there are {device.count} terms: ask a shorter sum"
            raise NotReadable("too few values", words)
    if device.terms.of and device.count > _LOOSE * 2 ** (row.digits + 2):
        raise NotReadable(
            "too few values",
            f"a {device.dtype} does not tell a mean of {device.count} terms from its neighbours: ask a shorter one",
        )
    refused: NotReadable | None = None
    masks = list_sum_masks(device.dtype, device.weighted, device.count)
    for mask in list_deviation_masks(device.dtype, device.count) if device.terms.of else masks:
        asked: _AskedMasks | None = None
        try:
            asked = _AskedMasks(device, mask)
            if device.width > 1 and refused is None and not (is_tried and guesses):
                asked.compare(list_edge_pairs(device.count, rng))
            for guess in guesses:
                proof = _draw_term_pairs(device.count, rng, CONFIRMED) if is_tried else list_proof_pairs(guess)
                if not any(_list_pairs_disagreeing(asked, guess, proof)):
                    return guess, mask
            if device.width > 1 and refused is None and is_tried and guesses:
                asked.compare(list_edge_pairs(device.count, rng))
            tree = order_tree(_build_whole_tree(asked))
            _check_revealed_tree(asked, tree, rng)
            return tree, mask
        except NotReadable as error:
            if error.code == "changes":
                raise
            first, refused = refused is None, refused or error
            if asked is not None and first:  # what contradicts itself may be an order that changes
                try:
                    _check_answers_repeat(asked, asked.remember(rng, ASKED_AGAIN))
                except NotReadable as again:  # else the first refusal stands, and the masks that are left are tried
                    if again.code == "changes":
                        raise
    raise refused or NotReadable("too few values", f"{device.dtype} holds no masks")


#: Yields pairs of terms that have to be asked before it goes on, and returns what it makes of them.
Building = Generator[list[tuple[int, int]], None, list[Tree]]


def _build_whole_tree(asked: _AskedMasks) -> Tree:
    terms = list(range(asked.device.count))
    if len(terms) == 1:
        return 0
    building = _build_tree_parts(asked, terms)
    while True:
        try:
            asked.ask(next(building))
        except StopIteration as end:
            parts: list[Tree] = end.value
            break
    if len(parts) != 1:
        raise NotReadable("wider than the masks", f"{asked.mask}: ones beside M are not lost")
    return parts[0]


def _build_tree_parts(asked: _AskedMasks, terms: Sequence[int]) -> Building:
    """The parts that these terms make, each by itself, from their pairs with the first of them; several where one step
    adds more than two."""
    first, *others = terms
    if others:
        yield [(first, term) for term in others]
    by_size: dict[int, list[int]] = {}
    for term in others:
        by_size.setdefault(asked.size(first, term), []).append(term)
    have = 1
    for size in sorted(x for x in by_size if x <= len(terms)):  # said before its parts are asked, which are many
        have += len(by_size[size])
        if size != have:
            raise NotReadable("wider than the masks", f"{asked.mask}: a part of {have} terms is said to have {size}")
    tree: Tree = first
    beside: list[Tree] = []
    sizes = sorted(by_size)
    made = yield from _build_trees_together([_build_tree_parts(asked, by_size[size]) for size in sizes])
    for size, parts in zip(sizes, made):
        if size > len(terms):  # they meet in a step that takes more than these terms
            beside += parts
            continue
        tree = (tree, *parts)
    return [tree, *beside]


def _build_trees_together(buildings: Sequence[Building]) -> Generator[list[tuple[int, int]], None, list[list[Tree]]]:
    """What each of them makes; what they have to ask is asked at once."""
    made: list[list[Tree]] = [[] for _ in buildings]
    left = dict(enumerate(buildings))
    while left:
        wanted: list[tuple[int, int]] = []
        for k, building in list(left.items()):
            try:
                wanted += next(building)
            except StopIteration as end:
                made[k] = end.value
                del left[k]
        if wanted:
            yield wanted
    return made


def _check_revealed_tree(asked: _AskedMasks, tree: Tree, rng: random.Random) -> None:
    """Raises NotReadable where pairs drawn at random say otherwise than the tree, or otherwise the second time."""
    pairs = _draw_term_pairs(asked.device.count, rng, ASKED_AGAIN)
    for i, j, expected, first in _list_pairs_disagreeing(asked, tree, pairs):
        _check_answers_repeat(asked, [((i, j), first), *asked.remember(rng, CONFIRMED)])
        raise NotReadable("not a sum", f"terms {i} and {j} meet among {first} terms, and in the tree among {expected}")


def _check_answers_repeat(asked: _AskedMasks, before: Iterable[tuple[tuple[int, int], int]]) -> None:
    """Raises NotReadable where a pair that was asked is answered otherwise now, and Apart where the sums of the device
    differ in it: each is asked in a call of its own, so that another place is not taken for another run."""
    for (i, j), was in before:
        (now,) = asked.ask_again([(i, j)])
        if now != was:
            words = f"the order changes from run to run: terms {i} and {j} met among {was}, then among {now}"
            raise NotReadable("changes", words)


def _draw_term_pairs(count: int, rng: random.Random, pairs: int) -> Iterator[tuple[int, int]]:
    """So many pairs of terms, at random."""
    for _ in range(pairs if count > 1 else 0):
        i, j = rng.sample(range(count), 2)
        yield i, j


def list_edge_pairs(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Pairs by which orders that rows of a matrix have, as they begin at other addresses, are told apart: such differ
    at their ends; and some at random."""
    last = count - 1
    ends = {(0, 1), (0, last // 2), (last - 1, last), (last // 2, last)} if count > 3 else set()
    return [*sorted((i, j) for i, j in ends if i != j), *_draw_term_pairs(count, rng, COMPARED)]


def list_proof_pairs(tree: Tree) -> Iterator[tuple[int, int]]:
    """Pairs of terms, of each two parts that a step adds a term of each, those of large steps first: only this tree has
    them all meet as it does. For parts that are parts of the device's, of which two terms meet among as many terms as
    the parts have, are added in one step."""
    for node in reversed(list(list_tree_nodes(tree))):
        yield from itertools.combinations(map(get_first_term, node), 2)


def _list_pairs_disagreeing(
    asked: _AskedMasks, tree: Tree, pairs: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    """Of pairs of terms those that do not meet as the tree says: (one, other, among how many terms they do in the tree,
    and on the device)."""
    parents = encode_tree(tree)
    sizes = measure_tree_sizes(parents)
    for few in split_terms_into(list(pairs), asked.device.width):
        for (i, j), found in zip(few, asked.ask_again(few)):
            expected = find_tree_meeting_size(parents, sizes, i, j)
            if found != expected:
                yield i, j, expected, found


def find_tree_meeting_size(parents: Sequence[int], sizes: Sequence[int], i: int, j: int) -> int:
    """How many terms the smallest part has that holds two, of a tree as `encode_tree` and `measure_tree_sizes` have it."""
    while i != j:  # a step comes after those of its parts
        i, j = (parents[i], j) if i < j else (i, parents[j])
    return sizes[i]


def measure_tree_sizes(parents: Sequence[int]) -> list[int]:
    """How many terms each term and step of a tree as `encode_tree` has it is made of."""
    sizes = [0] * len(parents)
    steps = set(parents)
    for node, parent in enumerate(parents):
        sizes[node] = sizes[node] if node in steps else 1
        if parent >= 0:
            sizes[parent] += sizes[node]
    return sizes
