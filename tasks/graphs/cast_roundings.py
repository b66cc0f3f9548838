"""Roundings that a program asks for: casts to a narrower dtype, in its reference and in the draws of its noise floor.

They are part of what the program computes, so that its exact result has them. A value that was computed, though, may
lie on the other side of the middle of two numbers in a runtime that errs by a little: then the neighbour is as right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tasks.judge.error_metrics import compute_ulp_spacing
from tasks.model import EPS, SMALLEST_NORMAL, compute_row_floor, round_to_dtype
from tasks.model.dtypes import is_complex_dtype

#: What a cast to a narrower dtype makes of float64 values: of (the values, the dtype, whether they were given exactly,
#: a node's name).
Round = Callable[[np.ndarray, str, bool, str], np.ndarray]
#: What an operation that rounds reads in the place of what a cast made: its own rounding moves that as it moves any
#: other number.
Read = Callable[[np.ndarray], np.ndarray]
#: Times the noise of a draw by which a value may lie from where a runtime has it when a cast rounds it.
REACH = 8.0
#: A row moves with its casts if this share of it moves by so many times its steady noise floor.
SHARE, DENSE = 0.25, 2.0


class CastRoundings:
    """What the casts to narrower dtypes made of the exact values of a run, in its order: what others may make of them
    instead."""

    def __init__(self) -> None:
        self._made: list[tuple[np.ndarray, np.ndarray, bool]] = []
        #: Whether there is any; whether some value was computed and is rounded, so that it may be rounded the other
        #: way.
        self.any = self.open = False

    def first(self, x: np.ndarray, dtype: str, exact: bool, node: str) -> np.ndarray:
        """The nearest number; it is kept."""
        made = round_to_dtype(x, dtype)
        self._made.append((x, made, exact))
        self.any = True
        self.open |= not exact and not np.array_equal(made, x, equal_nan=True)
        return made

    def again(self) -> Round:
        """Casts that make what they made first, however their values move: none goes the other way."""
        known = iter(self._made)

        def round(x: np.ndarray, dtype: str, exact: bool, node: str) -> np.ndarray:
            before, made, _ = next(known, (x, None, exact))
            return round_to_dtype(x, dtype) if made is None or before.shape != x.shape else made

        return round

    def either(self) -> Round:
        """Casts that make the nearest number, or its neighbour where REACH times as much noise would: a runtime whose
        error is larger than one draw's must find its step among them. Values that were given exactly have one nearest
        number."""
        known = iter(self._made)

        def round(x: np.ndarray, dtype: str, exact: bool, node: str) -> np.ndarray:
            before, made, exact = next(known, (x, None, exact))
            if made is not None and before.shape == x.shape:
                return made if exact else _round_either_way(before, x, dtype)
            return round_to_dtype(x, dtype)

        return round


def leave_out_graph_cast(x: np.ndarray, dtype: str, exact: bool, node: str) -> np.ndarray:
    """A cast that is left out."""
    return x


def _round_either_way(exact: np.ndarray, moved: np.ndarray, dtype: str) -> np.ndarray:
    if is_complex_dtype(dtype):
        return round_to_dtype(moved, dtype)
    with np.errstate(all="ignore"):
        near, far = round_to_dtype(moved, dtype), exact + REACH * (moved - exact)
        step = compute_ulp_spacing(np.abs(near), EPS[dtype], SMALLEST_NORMAL[dtype]) if dtype in EPS else 1.0
        return np.where(
            np.isfinite(near) & np.isfinite(far), round_to_dtype(np.clip(far, near - step, near + step), dtype), near
        )


def compute_jumping_floor(steady: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The noise floor of casts that may round either way: pooled over the rows most of which move with them, as where
    each element is a sum over many of what was cast. Elsewhere an element that does not move has none, whatever its
    neighbours do."""
    if not (found.ndim and found.size):
        return found
    many = (found > DENSE * compute_row_floor(steady)).mean(-1, keepdims=True) >= SHARE
    return np.where(many, compute_row_floor(found), found)
