"""The element with the largest error, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.judge.error_metrics import (
    bound_by_limit,
    compute_class_ulps,
    compute_error_units,
    compute_model_floor,
    find_error_unit_parts,
    fit_precision_range,
    measure_integer_distance,
    settle_overflow_border,
)
from tasks.model.dtypes import get_wide_dtype, is_complex_dtype, is_inexact_dtype, round_to_dtype
from tasks.model.leaf import Leaf, take_leaf_elements
from tasks.model.op_class import OpClass


def find_worst_element(
    actual: Sequence[Any], expected: Sequence[Leaf], op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> tuple[int, tuple[int, ...]] | None:
    """(output, index) of the element with the largest error units, NaN misplacement first; None if nothing.

    Of what an error unit is made, and what the range of a coarser ``precision`` excuses, says the judge.
    """
    return count_furthest_elements(actual, expected, op_class, 0.0, precision)[1]


def count_furthest_elements(
    actual: Sequence[Any], expected: Sequence[Leaf], op_class: OpClass, limit: float, precision: str = ""
) -> tuple[int, tuple[int, tuple[int, ...]] | None]:
    """(how many elements lie beyond a limit of the op's measure, ulps or error units, or have a NaN or Inf out of
    place; the `find_worst_element`)."""
    count, best, place = 0, -1.0, None
    with np.errstate(all="ignore"):
        for i, (a, leaf) in enumerate(zip(map(np.asarray, actual), expected)):
            if leaf.reference is None or leaf.dtype == "str" or not a.size or a.shape != tuple(leaf.shape):
                continue
            at, over, units = _find_wrong_elements(a, leaf, op_class, limit, precision)
            count += int(np.count_nonzero(over))
            first = int(np.argmax(units)) if at.size else 0
            value = float(units[first]) if at.size else 0.0
            if value > best:
                flat = int(at[first]) if at.size else 0
                best, place = value, (i, tuple(int(k) for k in np.unravel_index(flat, a.shape)))
    return count, place


def list_elements_beyond(a: np.ndarray, leaf: Leaf, op_class: OpClass, limit: float, precision: str = "") -> np.ndarray:
    """(n,) flat places of the elements that lie beyond a limit, as `count_furthest_elements` has it, the furthest first."""
    with np.errstate(all="ignore"):
        at, over, units = _find_wrong_elements(np.asarray(a), leaf, op_class, limit, precision)
    return at[over][np.argsort(-units[over], kind="stable")]


def _find_wrong_elements(
    a: np.ndarray, leaf: Leaf, op_class: OpClass, limit: float, precision: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(flat places of the elements that are not the reference rounded; whether each lies beyond the limit; its error
    units, or what stands for them: no two elements change places)."""
    assert leaf.reference is not None
    a, y = a.reshape(-1), leaf.reference.reshape(-1)
    if op_class is OpClass.MODEL:  # whose floor is that of whole rows
        leaf, op_class = replace(leaf, noise=compute_model_floor(leaf)), OpClass.COMPOSITE
    if not is_inexact_dtype(leaf.dtype):
        at = np.flatnonzero(a != y)
        off, noise = measure_integer_distance(a[at], y[at]), take_leaf_elements(leaf, at).noise
        # The last term keeps an order among differences that no noise excuses.
        return at, off > (0.0 if noise is None else limit * noise), off / ((0.0 if noise is None else noise) + 2.0**-64)
    wide_a, cast = a.astype(y.dtype), round_to_dtype(y, leaf.dtype)
    same = (wide_a == cast) | (np.isnan(wide_a) & np.isnan(cast))
    if is_complex_dtype(leaf.dtype):
        same |= ~np.isfinite(wide_a) & ~np.isfinite(cast)
    at = np.flatnonzero(~same)
    few = take_leaf_elements(leaf, at)
    y, floor = y[at], find_error_unit_parts(few, op_class, precision)[2]
    x = fit_precision_range(wide_a[at], y, floor, leaf.dtype, precision)
    excused = x == cast[at]
    if not is_complex_dtype(leaf.dtype):
        x = settle_overflow_border(x, y, floor, leaf.dtype)[0]
    if floor is not None:
        excused |= floor == np.inf
    off = np.abs(x - y)
    units = np.where(excused, 0.0, off / compute_error_units(few, op_class, precision))
    return (
        at,
        ~(excused | (off <= bound_by_limit(few, op_class, limit, precision))),
        np.where(np.isnan(units), np.inf, units),
    )


def describe_worst_element(
    actual: np.ndarray, leaf: Leaf, index: tuple[int, ...], op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> dict[str, str]:
    """The numbers of one element, with all their digits; its ulps as `compare` counts them."""
    assert leaf.reference is not None
    a, y = actual[index], leaf.reference[index]
    inexact = is_inexact_dtype(leaf.dtype)
    number: Any = complex if is_complex_dtype(leaf.dtype) else float if inexact else int
    if inexact:
        a, y = a.astype(get_wide_dtype(leaf.dtype)), y.astype(get_wide_dtype(leaf.dtype))
    elif leaf.dtype == "bool":
        number = bool
    found = {"expected": repr(number(y)), "actual": repr(number(a))}
    with np.errstate(all="ignore"):
        diff = float(abs(a - y)) if inexact else float(abs(int(a) - int(y)))
        found |= {
            "difference": repr(diff),
            "noise floor": repr(0.0 if leaf.noise is None else float(leaf.noise[index])),
        }
        if inexact and np.isfinite(abs(y)):
            eps, smallest, _ = find_error_unit_parts(leaf, op_class, precision)
            found["ulps"] = repr(
                diff / float(compute_class_ulps(np.asarray(abs(y)), eps, smallest, op_class, bool(abs(a) < abs(y))))
            )
    return found
