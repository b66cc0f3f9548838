"""The inputs of an exhaustive case in ascending order: found once, for every op and backend has the same ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tasks.model.dtypes import dtype_name, np_dtype


@dataclass(frozen=True, eq=False)
class Ascending:
    """order: (n,) places of the inputs that are numbers or infinite; values: (n,) they as float64."""

    order: np.ndarray
    values: np.ndarray

    @functools.cached_property
    def mirrored(self) -> np.ndarray:
        """(n,) of each value the place in ``values`` of its negative, or of what is next to that."""
        return mirrored(self.values)


def ascending(given: np.ndarray) -> Ascending:
    """The inputs, of any shape, in ascending order; equal ones as they came."""
    return _of(given.tobytes(), dtype_name(given.dtype))


@functools.lru_cache(maxsize=8)
def _of(data: bytes, dtype: str) -> Ascending:
    x = np.frombuffer(data, np_dtype(dtype)).astype(np.float64)
    order = np.argsort(x, kind="stable")
    order = order[: len(x) - int(np.count_nonzero(np.isnan(x)))]  # NaN comes last
    return Ascending(order, x[order])


def mirrored(x: np.ndarray) -> np.ndarray:
    """Of ascending values the places of their negatives, or of what is next to these."""
    above = np.searchsorted(x, -x).clip(max=max(len(x) - 1, 0))
    return np.where(np.abs(x[above - 1] + x) < np.abs(x[above] + x), above - 1, above).clip(min=0)
