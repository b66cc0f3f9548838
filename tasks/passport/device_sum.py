"""A sum as a device computes it: where its terms lie among the arrays of a call, and a function that sets them and reads the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tasks.model.dtypes import np_dtype

#: Name of the check that reads the arithmetic of a sum.
ARITHMETIC = "arithmetic"


#: What an op may make of an input before it adds it, in words, and whether that is never negative.
MADE = {"exponentials": True, "squares": True, "deviations": False}
#: An input whose exponential is 0 in every dtype.
GONE = -1e4
#: (rows, terms) of the calls that are asked: numbers of terms around powers of two, and of rows that kernels treat each in their own way.
SHAPES = ((8, 32), (8, 63), (8, 64), (8, 65), (8, 128), (8, 256), (1, 64), (2, 64), (17, 64), (256, 64))


#: Code of a reading that has an order and no model.
ORDER_ALONE = "order alone"
#: Why a sum is not read, or not all of it, by the code of its reading.
CODES = {
    "not a sum": "ones do not add up to their number: the result is no sum of these terms (a running mean is none)",
    "not a float": "whole numbers are added exactly in any order",
    "overflows": "a sum on the way holds no M",
    "wider than the masks": "ones beside M are not lost: the dtype has no M that is large enough for the accumulator",
    "too few values": "the dtype does not count so many terms, or has no numbers to ask the steps with: ask a shorter sum",
    "too few terms": "the order of two terms is no question",
    "rounded away": "the result has fewer bits than the sum, so the sum's last bits do not show in it",
    "changes": "the order changes from run to run, as where threads race or an algorithm is chosen by stopwatch",
    "not predicted": "the order was read, and is not all of what is done",
    ORDER_ALONE: "the order was read; what else the op does (exponentials, roots) has no model, so no results are predicted",
}


class NotReadable(Exception):
    """Why nothing can be read of a sum; the text is for people, ``code`` for what decides."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Terms:
    """Where the terms of one element of an output lie. Plain data, as JSON has it.

    output: place of the element in the flat output; left: (number of an array, places in it, flat, of the terms' factors); right: the
    same of the other factors, empty where terms are no products; alone: (number of an array, place) of a term that is no product, a bias; empty where there is none. fill: value of
    everything else, by array. divided: whether the sum is divided by the number of terms. part: which sum of the op, where it has several.
    rows: of the call, 0 for those of the first output.

    of: what is made of an input before it is added, a key of MADE; "" where nothing is. Then ``outputs`` are the places where the sum can be seen,
    one for each term or one alone, and ``scale`` is that by which deviations are multiplied, or the largest of the squares; of a plain sum the power of two by which it is multiplied.
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
    def read(cls, values: Mapping[str, Any]) -> Terms:
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

    def placed(self, order: Sequence[int]) -> Terms | None:
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

    def is_like(self, other: Terms) -> bool:
        """Whether one call can ask both sums the same: where they share places of an array, the same term lies there."""
        same = ("part", "fill", "divided", "rows", "of", "scale")
        if any(getattr(self, name) != getattr(other, name) for name in same):
            return False
        mine, its = (x._list_places() for x in (self, other))
        return [(n, len(places)) for n, places in mine] == [(n, len(places)) for n, places in its] and all(
            a.get(place, k) == k
            for (number, places), (_, others) in zip(mine, its)
            for a in [{x: j for n, held in mine if n == number for j, x in enumerate(held)}]
            for k, place in enumerate(others)
        )

    def _list_places(self) -> list[tuple[int, tuple[int, ...]]]:
        """(number of an array, places in it) of the left factors, the right ones and the bias."""
        alone = [(self.alone[0], self.alone[1:])] if self.alone else []
        return [self.left, *([self.right] if self.right else []), *alone]

    @property
    def positive(self) -> bool:
        """Whether no term is negative, so that none takes another one away again."""
        return MADE.get(self.of, False)


class Sum:
    """The sum of some terms on a device.

    run: outputs, flat, of a call's arrays. dtype: of its inputs; output: of its result. A call of it costs one of the device's; most: how many it may
    take, 0 for any number. twin: another sum of the call, which is asked whatever this one is asked; ``agrees`` says whether it has given the same
    result each time.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        arrays: Sequence[Any],
        terms: Terms,
        dtype: str,
        most: int = 0,
        twin: Terms | None = None,
    ) -> None:
        self._twin = twin if twin is not None and terms.is_like(twin) else None
        self.agrees = self._twin is not None
        self.terms, self.dtype, self._run = terms, dtype, run
        self.count, self.weighted = terms.count, bool(terms.right)
        kind = np_dtype(dtype)
        self._arrays = [
            np.full(x.shape, terms.fill[k], kind) if x.dtype == kind and k < len(terms.fill) else np.array(x, order="C")
            for k, x in enumerate(arrays)
        ]
        sums = [terms, *([self._twin] if self._twin else ())]
        #: (number of an array, places in it) of what is given of this sum and of its twin, in the order in which it is given.
        self._places = [[(n, np.array(places)) for n, places in x._list_places()] for x in sums]
        self.calls, self._most = 0, most
        self.output = dtype

    def add(self, left: np.ndarray, right: np.ndarray | None = None) -> float:
        """The sum of left·right, arrays of [count] in float64 whose values the dtype holds; without ``right`` of left alone. Of deviations it is what
        their mean says of it. Raises NotReadable beyond the calls that it may take."""
        terms = self.terms
        given = [left, np.ones(self.count) if right is None else right] if terms.right else [left]
        return self._ask([*given, left[-1:]] if terms.alone else given, lambda out, one: self._see_sum(out, one, left))

    def show(self, large: int, values: Mapping[int, float]) -> float:
        """What is seen of a sum of terms that are never negative, of which term ``large`` is the largest, others have ``values``, shares of it,
        and the rest are 0. It tells whether two sums differ, and not what they are."""
        terms = self.terms
        shares = np.zeros(self.count)
        shares[list(values)] = list(values.values())
        shares[large] = 1.0
        if terms.of == "squares":
            inputs = np.sqrt(shares * terms.scale)
        else:
            inputs = np.full(self.count, GONE)
            inputs[shares > 0] = np.log(shares[shares > 0])
        # What is weighed: the largest alone counts.
        given = [inputs, (shares == 1.0).astype(np.float64)] if terms.right else [inputs]
        return self._ask(given, lambda out, one: float(out[one.outputs[large if len(one.outputs) > 1 else 0]]))

    def _ask(self, given: Sequence[np.ndarray], see: Callable[[np.ndarray, Terms], float]) -> float:
        """What is seen in the first output, flat, of a call with these values, float64, where this sum has them, and its twin."""
        kind = np_dtype(self.dtype)
        # All of them each time, in arrays of its own: to copy those costs more than most calls.
        for one in self._places:
            for (number, places), values in zip(one, given):
                self._arrays[number].reshape(-1)[places] = values[: len(places)].astype(kind)
        self.calls += 1
        if self.calls > self._most > 0:
            raise NotReadable("too many calls", f"its order was not told by {self._most} calls")
        out = np.asarray(self._run(list(self._arrays))[0])
        self.output = out.dtype.name
        out = out.reshape(-1)
        seen = see(out, self.terms)
        if self.agrees and self._twin is not None:
            its = see(out, self._twin)
            self.agrees = seen == its or (seen != seen and its != its)
        return seen

    def _see_sum(self, out: np.ndarray, terms: Terms, left: np.ndarray) -> float:
        """The sum that an element of the output is; of deviations what their mean says of it: of y = (x − mean) / σ · scale at the first of the smallest terms,
        where nearly all of σ is of large ones."""
        if not terms.of:
            return float(out[terms.output]) / terms.scale
        seen = int(np.argmin(np.abs(left)))
        deviation = float(np.sqrt(np.square(left).mean()))
        y = float(out[terms.outputs[seen]]) / terms.scale
        return self.count * (float(left[seen]) - y * deviation)
