"""The one way in which generated cases are decided: a list of bounded integers, 0 the simplest of each.

The same code of a generator is driven by a seed, by a list that was kept, or by Hypothesis. What it took stands in
`taken`: that list makes the same case again without the seed, and what makes a case smaller works on the list alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tasks.draw.seeds import SeededGenerator

Option = TypeVar("Option")
#: The type, whose name a method of `DrawnChoices` has.
Int = int

#: Of a number of possibilities, says which: 0 to that number - 1.
Source = Callable[[int], int]

#: Choices after which no case is meant: a generator that asks for more does not end.
MOST = 4096


class TooMany(Exception):
    """A case asked for more than MOST choices."""


class DrawnChoices:
    """Decisions of one case.

    taken: those so far, each as its distance from its simplest; bounds: of each, the largest that it could have been;
    spans: of each labelled part of the case its label and its first and last place (exclusive) in ``taken``.
    """

    def __init__(self, source: Source, below: Source | None = None) -> None:
        self._source, self._below = source, below
        self.taken: list[Int] = []
        self.bounds: list[Int] = []
        self.spans: list[tuple[str, Int, Int]] = []

    @classmethod
    def from_seed(cls, seed: int, begun: Sequence[Int] = ()) -> DrawnChoices:
        """Drawn evenly by the generator of a seed (`tasks.draw.seeds`), but for the first ones, which are given."""
        first, drawn = iter(begun), SeededGenerator(seed).below
        return cls(
            lambda count: min(given, count - 1) if (given := next(first, None)) is not None else drawn(count), drawn
        )

    @classmethod
    def from_list(cls, taken: Sequence[int]) -> DrawnChoices:
        """Those of a list. One that is too large is the largest possible; after the list's end each is the simplest."""
        rest = map(int, taken)  # of NumPy, from a row
        return cls(lambda count: min(max(next(rest, 0), 0), count - 1))

    @classmethod
    def from_hypothesis(cls, draw: Callable[[Any], Any]) -> DrawnChoices:
        """Drawn by Hypothesis, which then makes the case smaller itself. draw: what its ``data()`` or ``composite``
        gives."""
        from hypothesis import strategies

        return cls(lambda count: int(draw(strategies.integers(0, count - 1))))

    def int(self, low: Int, high: Int) -> Int:
        """A number from ``low``, the simplest, to ``high``. Raises ValueError if there is none, TooMany."""
        if high < low:
            raise ValueError(f"no number from {low} to {high}")
        if high == low:
            return low
        if len(self.taken) >= MOST:
            raise TooMany(f"a case of more than {MOST} choices")
        made = self._source(high - low + 1)
        self.taken.append(made)
        self.bounds.append(high - low)
        return low + made

    def of(self, options: Sequence[Option]) -> Option:
        """One of some options, the first the simplest."""
        return options[self.int(0, len(options) - 1)]

    def weighted(self, options: Sequence[tuple[Option, Int]]) -> Option:
        """One of some options, each as often as its weight says, the first the simplest."""
        place = self.int(0, sum(weight for _, weight in options) - 1)
        for option, weight in options:
            if place < weight:
                return option
            place -= weight
        raise AssertionError("a place beyond all weights")

    def chance(self, times: Int, of: Int) -> bool:
        """True in ``times`` of ``of`` draws; False is the simplest."""
        return self.int(0, of - 1) >= of - times

    def order(self, count: Int) -> list[Int]:
        """A permutation of range(count), the identity the simplest."""
        rest = list(range(count))
        return [rest.pop(self.int(0, len(rest) - 1)) for _ in range(count)]

    def some(self, options: Sequence[Option], least: Int, most: Int) -> list[Option]:
        """From ``least`` to ``most`` different options in their order, the first ``least`` the simplest."""
        rest, places = list(range(len(options))), []
        for _ in range(self.int(least, most)):
            places.append(rest.pop(self.int(0, len(rest) - 1)))
        return [options[place] for place in sorted(places)]

    @contextlib.contextmanager
    def leaning(self, times: Int, of: Int) -> Iterator[None]:
        """In ``times`` of ``of`` seeds every choice made within is the largest. That is none of the case's choices:
        what makes a case smaller (Hypothesis too, which tries ends by itself) lowers each of them alone."""
        source = self._source
        if self._below is not None and self._below(of) < times:
            self._source = lambda count: count - 1
        yield
        self._source = source

    @contextlib.contextmanager
    def span(self, label: str) -> Iterator[None]:
        """The choices made within belong together: what makes a case smaller leaves them out, or moves them, as one."""
        begun = len(self.taken)
        yield
        self.spans.append((label, begun, len(self.taken)))
