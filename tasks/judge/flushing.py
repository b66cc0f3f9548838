"""What is right on a device that takes subnormal numbers for zero: 0 for such a result, f(0) for such an input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.judge.error_metrics import compute_ulp_spacing
from tasks.model import EPS, SMALLEST_NORMAL, Flushes, Leaf, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype, round_to_dtype

#: Spacings within which a result is f(0).
_NEAR = 4.0


def may_flushing_matter(expected: Sequence[Leaf], given: np.ndarray | None) -> tuple[str, ...]:
    """Dtypes of subnormal numbers among exact results, and of the one input of an op of single elements (None: of
    another)."""
    found = [leaf.dtype for leaf in expected if _mask_subnormal_results(leaf.reference, leaf.dtype).any()]
    if given is not None and _mask_subnormal_results(given, dtype := name_numpy_dtype(given.dtype)).any():
        found.append(dtype)
    return tuple(dict.fromkeys(found))


def restore_flushed_results(
    actual: list[np.ndarray], expected: Sequence[Leaf], flushes: Flushes, given: np.ndarray | None
) -> list[np.ndarray]:
    """The outputs with what the device makes 0 put right. given: of an op of single elements, its input, which has both
    zeros."""
    made = []
    for a, leaf in zip(actual, expected):
        y = leaf.reference
        if y is not None and a.shape == y.shape and y.dtype == np.float64 and a.dtype.kind != "c":
            if leaf.dtype in flushes.results:
                a = _restore_flushed_elements(a, y, (a == 0) & _mask_subnormal_results(y, leaf.dtype))
        if y is not None and a.shape == y.shape and given is not None and given.shape == y.shape:
            if (dtype := name_numpy_dtype(given.dtype)) in flushes.inputs:
                a = _restore_flushed_elements(
                    a,
                    y,
                    _mask_subnormal_results(given, dtype)
                    & _mask_near_results(a, _compute_result_at_zero(given, y), leaf.dtype),
                )
        made.append(a)
    return made + actual[len(made) :]


def _mask_subnormal_results(x: np.ndarray | None, dtype: str) -> np.ndarray:
    """A mask of the subnormal numbers."""
    if x is None or dtype not in SMALLEST_NORMAL or x.dtype.kind == "c" or x.dtype == object:
        return np.zeros(() if x is None else x.shape, bool)
    with np.errstate(all="ignore"):
        size = np.abs(x.astype(np.float64))
    return (size > 0) & (size < SMALLEST_NORMAL[dtype])


def _restore_flushed_elements(a: np.ndarray, y: np.ndarray, where: np.ndarray) -> np.ndarray:
    return np.where(where, y.astype(a.dtype), a) if where.any() else a


def _compute_result_at_zero(given: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each element, the exact result for a zero with the sign of its input."""
    negative = np.signbit(given.astype(np.float64))
    zero = given == 0
    plus, minus = (np.flatnonzero(zero & (negative == sign)) for sign in (False, True))
    if not plus.size or not minus.size:
        return np.full(y.shape, np.nan)
    flat = y.reshape(-1)
    return np.where(negative, flat[minus[0]], flat[plus[0]])


def _mask_near_results(a: np.ndarray, y: np.ndarray, dtype: str) -> np.ndarray:
    """A mask of the results that are ``y`` within a few roundings."""
    if not is_inexact_dtype(dtype):
        return np.asarray(a == y)
    wide, cast = a.astype(np.float64), round_to_dtype(y, dtype)
    with np.errstate(all="ignore"):
        near = np.abs(wide - y) <= _NEAR * compute_ulp_spacing(np.abs(y), EPS[dtype], SMALLEST_NORMAL[dtype])
    return near | (wide == cast) | (np.isnan(wide) & np.isnan(cast))
