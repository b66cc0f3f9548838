"""A sum as a device computes it: where its terms lie among the arrays of a call, and a function that sets them and reads the result."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

import numpy as np

from tasks.model.dtypes import get_numpy_dtype

#: Name of the check that reads the arithmetic of a sum.
ARITHMETIC = "arithmetic"


#: What an op may make of an input before it adds it, in words, and whether that is never negative.
MADE = {"exponentials": True, "squares": True, "deviations": False}
#: An input whose exponential is 0 in every dtype.
GONE = -1e4
#: (rows, terms) of the calls that are asked: numbers of terms around powers of two, and of rows that kernels treat each
#: in their own way. The one in the middle is asked first (`tasks.prepare.ranked`): the shortest sum, whose order is
#: found in the fewest calls, and tells that of the others.
SHAPES = ((8, 256), (8, 63), (8, 64), (8, 65), (8, 128), (8, 32), (1, 64), (2, 64), (17, 64), (256, 64))


#: Code of a reading that has an order and no model.
ORDER_ALONE = "order alone"
#: Of one whose result is none of the op's.
ANOTHER_SHAPE = "another shape"
#: Of readings whose order is that of some calls: the program's results depend on more than its inputs.
ADDRESS, WARMED = "another address", "another first call"
#: Why a sum is not read, or not all of it, by the code of its reading.
CODES = {
    "not a sum": "ones do not add up to their number: the result is no sum of these terms (a running mean is none)",
    ANOTHER_SHAPE: "the result has another shape than the op's, so nobody knows of what its elements are the sums",
    "not a float": "whole numbers are added exactly in any order",
    "overflows": "a sum on the way holds no M",
    "wider than the masks": "ones beside M are not lost: the dtype has no M that is large enough for the accumulator",
    "too few values": "the dtype does not count so many terms, or has no numbers to ask the steps with: ask a shorter sum",
    "too few terms": "the order of two terms is no question",
    "rounded away": "the result has fewer bits than the sum, so the sum's last bits do not show in it",
    "changes": "the order changes from run to run, as where threads race or an algorithm is chosen by stopwatch",
    ADDRESS: "the order was read, and is another one for arrays that begin at another address",
    WARMED: "the order was read, and the first call, as a program's own, gave other results: it may have added otherwise",
    "not predicted": "the order was read, and is not all of what is done",
    ORDER_ALONE: "the order was read; what else the op does (exponentials, roots) has no model, so no results are predicted",
}


def _do_sum_terms_lie_alike(places: Sequence[int], others: Sequence[int]) -> bool:
    """Whether the places that two sums share are of the same terms."""
    at = {place: k for k, place in enumerate(places)}
    return all(at.get(place, k) == k for k, place in enumerate(others))


class NotReadable(Exception):
    """Why nothing can be read of a sum; the text is for people, ``code`` for what decides."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class SumTerms:
    """Where the terms of one element of an output lie. Plain data, as JSON has it.

    output: place of the element in the flat output; left: (number of an array, places in it, flat, of the terms'
    factors); right: the same of the other factors, empty where terms are no products; alone: (number of an array,
    place) of a term that is no product, a bias; empty where there is none. fill: value of everything else, by array.
    divided: whether the sum is divided by the number of terms. part: which sum of the op, where it has several. rows:
    of the call, 0 for those of the first output.

    of: what is made of an input before it is added, a key of MADE; "" where nothing is. Then ``outputs`` are the places
    where the sum can be seen, one for each term or one alone, and ``scale`` is that by which deviations are multiplied,
    or the largest of the squares; of a plain sum the power of two by which it is multiplied.
    """

    output: int
    left: tuple[int, tuple[int, ...]]
    right: tuple[int, tuple[int, ...]] | tuple[()] = ()
    alone: tuple[int, int] | tuple[()] = ()
    fill: tuple[float, ...] = ()
    divided: bool = False
    where: str = ""
    part: str = ""
    rows: int = 0
    of: str = ""
    outputs: tuple[int, ...] = ()
    scale: float = 1.0

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SumTerms:
        """Of a JSON object."""

        def pair(value: Any) -> Any:
            return (
                (int(value[0]), tuple(value[1]) if isinstance(value[1], (list, tuple)) else int(value[1]))
                if value
                else ()
            )

        pairs = {name: pair(values.get(name)) for name in ("left", "right", "alone")}
        return cls(
            **{**values, **pairs, "fill": tuple(values.get("fill", ())), "outputs": tuple(values.get("outputs", ()))}
        )

    def values(self) -> dict[str, Any]:
        """As `read` takes it."""
        return asdict(self)

    def placed(self, order: Sequence[int]) -> SumTerms | None:
        """The same among arrays in another order, by their numbers here; None where one of them is not there."""
        at = {number: k for k, number in enumerate(order)}
        if any(one and one[0] not in at for one in (self.left, self.right, self.alone)):
            return None
        fill = tuple(self.fill[number] for number in order if number < len(self.fill))
        left = (at[self.left[0]], self.left[1])
        right = (at[self.right[0]], self.right[1]) if self.right else ()
        alone = (at[self.alone[0]], self.alone[1]) if self.alone else ()
        return replace(self, fill=fill, left=left, right=right, alone=alone)

    @property
    def products(self) -> int:
        """How many terms are products, or elements of the array that is summed."""
        return len(self.left[1])

    @property
    def count(self) -> int:
        """How many terms there are; a bias is the last."""
        return self.products + bool(self.alone)

    def is_like(self, other: SumTerms) -> bool:
        """Whether one call can ask both sums the same: where they share places of an array, the same term lies
        there."""
        same = ("part", "fill", "divided", "rows", "of", "scale")
        if any(getattr(self, name) != getattr(other, name) for name in same):
            return False
        mine, its = (x._list_places() for x in (self, other))
        return [(n, len(places)) for n, places in mine] == [(n, len(places)) for n, places in its] and all(
            places == others or set(places).isdisjoint(others) or _do_sum_terms_lie_alike(places, others)
            for number, places in mine
            for other_number, others in its
            if number == other_number
        )

    def _list_places(self) -> list[tuple[int, tuple[int, ...]]]:
        """(number of an array, places in it) of the left factors, the right ones and the bias."""
        alone = [(self.alone[0], self.alone[1:])] if self.alone else []
        return [self.left, *([self.right] if self.right else []), *alone]

    @property
    def positive(self) -> bool:
        """Whether no term is negative, so that none takes another one away again."""
        return MADE.get(self.of, False)


#: Elements of an output of which a call says where the terms lie, if it has as many.
ELEMENTS = 8


def choose_sum_elements(*sizes: int) -> Iterator[tuple[Any, ...]]:
    """(*indices, name) of elements of an output of these sizes, no two of which share an index along its longest axis:
    the first, the last, and others, without a name, that may be asked beside them."""
    count = min(ELEMENTS, max(sizes))
    yield (*(0 for _ in sizes), "first")
    for k in range(1, count - 1):
        yield (*(k % size for size in sizes), "")
    yield (*(size - 1 for size in sizes), "last")


class Apart(Exception):
    """One question was answered otherwise by two sums that were taken to add alike."""


#: A question: left factors [count] and right ones in float64, None for ones.
Question = tuple[np.ndarray, Optional[np.ndarray]]
#: What is seen of a question in an output, flat, by a sum of it.
See = Callable[[np.ndarray, SumTerms], float]
#: Questions that are put to all sums which are taken to add alike, once all is known.
COMPARED = 6


class DeviceSum:
    """The sum of some terms on a device.

    run: outputs, flat, of a call's arrays. dtype: of its inputs; output: of its result. A call of it costs one of the
    device's; most: how many it may take, 0 for any number. beside: other sums of the call that are taken to add alike.
    A call puts as many questions as there are sums, each to another one; fewer are put to several, which have to answer
    the same, else `Apart` is raised. together: each is put to all of them.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        arrays: Sequence[Any],
        terms: SumTerms,
        dtype: str,
        most: int = 0,
        beside: Sequence[SumTerms] = (),
        together: bool = False,
    ) -> None:
        self.terms, self.dtype, self._run = terms, dtype, run
        self.count, self.weighted = terms.count, bool(terms.right)
        kind = get_numpy_dtype(dtype)
        self._arrays = [
            np.full(x.shape, terms.fill[k], kind) if x.dtype == kind and k < len(terms.fill) else np.array(x, order="C")
            for k, x in enumerate(arrays)
        ]
        self._sums, self._together = [terms, *beside], together
        #: (number of an array, places [sums, terms] in it, whether sums share some) of what is given, in the order in
        #: which it is given.
        self._places = [
            (held[0][0], at, np.unique(at).size < at.size)
            for held in zip(*(x._list_places() for x in self._sums))
            for at in [np.array([places for _, places in held])]
        ]
        #: Some of the questions that were asked, drawn at random, with what is seen of each.
        self._kept: list[tuple[Sequence[np.ndarray], See]] = []
        #: Those that were asked last: what could not be read was told by one of them.
        self._last: list[tuple[Sequence[np.ndarray], See]] = []
        self._rng, self._asked = random.Random(0), 0
        self.calls, self._most = 0, most
        self.output = dtype

    @property
    def width(self) -> int:
        """How many questions a call may answer: one where its sums share all that is given."""
        return 1 if self._together or all(is_shared for _, _, is_shared in self._places) else len(self._sums)

    @property
    def shares_right(self) -> bool:
        """Whether questions that one call puts need the same right factors."""
        return self.weighted and self._places[1][2]

    def compare(self) -> None:
        """Puts the questions that were asked last, and some of all, to all of its sums. Raises Apart where one answers
        otherwise."""
        for given, see in [*self._last, *self._kept]:
            self._ask_each([given], [see])

    def add(self, left: np.ndarray, right: np.ndarray | None = None) -> float:
        """The sum of left·right, arrays of [count] in float64 whose values the dtype holds; without ``right`` of left
        alone. Of deviations it is what their mean says of it. Raises NotReadable beyond the calls that it may take."""
        return float(self.add_each([(left, right)])[0])

    def add_each(self, questions: Sequence[Question]) -> np.ndarray:
        """`add` of several questions, in as few calls as there may be."""
        given = [
            [left, *([np.ones(self.count) if right is None else right] if self.weighted else ())]
            for left, right in questions
        ]
        if self.terms.alone:
            given = [[*one, one[0][-1:]] for one in given]
        see = [functools.partial(self._see_sum, left=left) for left, _ in questions]
        return self._ask_each(given, see)

    def show_each(self, questions: Sequence[tuple[int, Mapping[int, float]]]) -> np.ndarray:
        """What is seen of sums of terms that are never negative, of which one, the ``large`` of (large, values), is the
        largest, others have values, shares of it, and the rest are 0. It tells whether two sums differ, and not what
        they are."""
        given = [self._make_shares(large, values) for large, values in questions]
        return self._ask_each(given, [functools.partial(self._see_shown, large=large) for large, _ in questions])

    def _make_shares(self, large: int, values: Mapping[int, float]) -> list[np.ndarray]:
        """The inputs of a question of `show_each`."""
        shares = np.zeros(self.count)
        shares[list(values)] = list(values.values())
        shares[large] = 1.0
        if self.terms.of == "squares":
            inputs = np.sqrt(shares * self.terms.scale)
        else:
            inputs = np.full(self.count, GONE)
            inputs[shares > 0] = np.log(shares[shares > 0])
        # What is weighed: the largest alone counts.
        return [inputs, (shares == 1.0).astype(np.float64)] if self.terms.right else [inputs]

    def _ask_each(self, given: Sequence[Sequence[np.ndarray]], see: Sequence[See]) -> np.ndarray:
        """What is seen of each question, which gives values, float64, to the places of a sum."""
        found = np.empty(len(given))
        for asked in self._choose(given):
            out = self._call([given[asked[n % len(asked)]] for n in range(len(self._sums))])
            for n, one in enumerate(self._sums):
                k = asked[n % len(asked)]
                seen = see[k](out, one)
                if n < len(asked):
                    found[k] = seen
                elif not (seen == found[k] or (seen != seen and found[k] != found[k])):
                    raise Apart
            if 1 < len(asked):  # what was put to all is told already
                self._keep([(given[k], see[k]) for k in asked])
        self._last = list(zip(given, see))[:ELEMENTS] if 1 < self.width else []
        return found

    def _keep(self, asked: Sequence[tuple[Sequence[np.ndarray], See]]) -> None:
        """Keeps COMPARED of all questions, each as likely as another one (Vitter's reservoir)."""
        for one in asked:
            self._asked += 1
            if len(self._kept) < COMPARED:
                self._kept.append(one)
            elif (place := self._rng.randrange(self._asked)) < COMPARED:
                self._kept[place] = one

    def _choose(self, given: Sequence[Sequence[np.ndarray]]) -> Iterator[list[int]]:
        """The questions that each call puts: of places that sums share all of them need the same values."""
        shared = [n for n, (_, _, is_shared) in enumerate(self._places) if is_shared]
        alike: dict[tuple[bytes, ...], list[int]] = {}
        for k, one in enumerate(given):
            alike.setdefault(tuple(one[n].tobytes() for n in shared), []).append(k)
        for those in alike.values():
            yield from (those[k : k + self.width] for k in range(0, len(those), self.width))

    def _call(self, given: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
        """The first output, flat, of a call with these values of each sum."""
        kind = get_numpy_dtype(self.dtype)
        # All of them each time, in arrays of its own: to copy those costs more than most calls.
        for n, (number, places, _) in enumerate(self._places):
            values = np.array([one[n][: places.shape[1]] for one in given])
            self._arrays[number].reshape(-1)[places] = values.astype(kind)
        self.calls += 1
        if self.calls > self._most > 0:
            raise NotReadable("too many calls", f"its order was not told by {self._most} calls")
        out = np.asarray(self._run(list(self._arrays))[0])
        self.output = out.dtype.name
        return out.reshape(-1)

    @staticmethod
    def _see_shown(out: np.ndarray, terms: SumTerms, large: int) -> float:
        return float(out[terms.outputs[large if len(terms.outputs) > 1 else 0]])

    def _see_sum(self, out: np.ndarray, terms: SumTerms, left: np.ndarray) -> float:
        """The sum that an element of the output is; of deviations what their mean says of it: of y = (x − mean) / σ ·
        scale at the first of the smallest terms, where nearly all of σ is of large ones."""
        if not terms.of:
            return float(out[terms.output]) / terms.scale
        seen = int(np.argmin(np.abs(left)))
        deviation = float(np.sqrt(np.square(left).mean()))
        y = float(out[terms.outputs[seen]]) / terms.scale
        return self.count * (float(left[seen]) - y * deviation)
