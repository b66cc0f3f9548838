"""The inputs of an exhaustive case in ascending order. They are sorted once: every op and backend has the same ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tasks.model.dtypes import get_numpy_dtype, name_numpy_dtype


@dataclass(frozen=True, eq=False)
class AscendingInputs:
    """order: (n,) places of the inputs that are numbers or infinite; values: (n,) they as float64; by_bits: of a dtype
    of up to 16 bits the place in ``values`` of each bit pattern that is among them, and 0 of any other."""

    order: np.ndarray
    values: np.ndarray
    by_bits: np.ndarray | None

    @functools.cached_property
    def finite(self) -> np.ndarray:
        """``order``, of the finite inputs alone."""
        return self.order[np.isfinite(self.values)]

    @functools.cached_property
    def mirror_places(self) -> np.ndarray:
        """(n,) for each value, the place in ``values`` of its negative, or of a neighbour of that."""
        x = self.values
        above = np.searchsorted(x, -x).clip(max=max(len(x) - 1, 0))
        return np.where(np.abs(x[above - 1] + x) < np.abs(x[above] + x), above - 1, above).clip(min=0)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """The place in ``values`` of each number (in the inputs' dtype); an arbitrary place for one that is not
        there."""
        if self.by_bits is not None:
            return np.asarray(self.by_bits[numbers.view(_name_ordered_bits(numbers.dtype))])
        return np.minimum(np.searchsorted(self.values, numbers.astype(np.float64)), len(self.values) - 1)


def sort_inputs_ascending(given: np.ndarray) -> AscendingInputs:
    """The inputs, of any shape, in ascending order; equal ones as they came."""
    return _sort_ascending_once(given.tobytes(), name_numpy_dtype(given.dtype))


@functools.lru_cache(maxsize=8)
def _sort_ascending_once(data: bytes, dtype: str) -> AscendingInputs:
    given = np.frombuffer(data, get_numpy_dtype(dtype))
    x = given.astype(np.float64)
    order = np.argsort(x, kind="stable")
    order = order[: len(x) - int(np.count_nonzero(np.isnan(x)))]  # NaN comes last
    by_bits = None
    if given.itemsize <= 2:
        by_bits = np.zeros(1 << 8 * given.itemsize, np.intp)
        by_bits[given.view(_name_ordered_bits(given.dtype))[order]] = np.arange(len(order))
    return AscendingInputs(order, x[order], by_bits)


def _name_ordered_bits(dtype: np.dtype) -> str:
    return f"u{dtype.itemsize}"
