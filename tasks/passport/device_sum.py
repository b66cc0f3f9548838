"""A sum as a device computes it: where its terms lie among the arrays of a call, and a function that sets them and reads the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tasks.model.dtypes import np_dtype

#: Name of the check that reads the arithmetic of a sum.
ARITHMETIC = "arithmetic"


#: (rows, terms) of the calls that are asked: numbers of terms around powers of two, and of rows that kernels treat each in their own way.
SHAPES = ((8, 32), (8, 63), (8, 64), (8, 65), (8, 128), (8, 256), (1, 64), (2, 64), (17, 64), (256, 64))


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
    everything else, by array; the first of an array's name. divided: whether the sum is divided by the number of terms. equal: arrays
    whose places are all one value, which the sum is then a share of.
    """

    output: int
    left: tuple[int, tuple[int, ...]]
    right: tuple[int, tuple[int, ...]] | tuple[()] = ()
    alone: tuple[int, int] | tuple[()] = ()
    fill: tuple[float, ...] = ()
    divided: bool = False
    where: str = ""

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
        return cls(**{**values, **pairs, "fill": tuple(values.get("fill", ()))})

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


class Sum:
    """The sum of some terms on a device.

    run: outputs, flat, of a call's arrays. dtype: of its inputs; output: of its result. A call of it costs one of the device's; most: how many it may
    take, 0 for any number.
    """

    def __init__(
        self, run: Callable[[list[Any]], Sequence[Any]], arrays: Sequence[Any], terms: Terms, dtype: str, most: int = 0
    ) -> None:
        self.terms, self.dtype, self._run = terms, dtype, run
        self.count, self.weighted = terms.count, bool(terms.right)
        kind = np_dtype(dtype)
        self._arrays = [
            np.full(x.shape, terms.fill[k], kind) if x.dtype == kind and k < len(terms.fill) else np.array(x, order="C")
            for k, x in enumerate(arrays)
        ]
        self.calls, self._most = 0, most
        self.output = dtype

    def add(self, left: np.ndarray, right: np.ndarray | None = None) -> float:
        """The sum of left·right, arrays of [count] in float64 whose values the dtype holds; without ``right`` of left alone. Raises NotReadable beyond
        the calls that it may take."""
        terms, arrays = self.terms, self._arrays
        kind = np_dtype(self.dtype)
        # Each call sets all of them, in arrays of its own: to copy those costs more than most calls.
        for (number, places), values in ((terms.left, left), (terms.right or (0, ()), right)):
            if places and values is not None:
                arrays[number].reshape(-1)[list(places)] = values[: len(places)].astype(kind)
        if terms.alone:
            number, place = terms.alone
            arrays[number].reshape(-1)[place] = left[-1]
        self.calls += 1
        if self.calls > self._most > 0:
            raise NotReadable("too many calls", f"its order was not told by {self._most} calls")
        out = np.asarray(self._run(list(arrays))[0])
        self.output = out.dtype.name
        return float(out.reshape(-1)[terms.output])
