"""The element with the largest error, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.judge.plain import (
    at_border,
    bound_by_limit,
    distance,
    error_unit,
    model_floor,
    ulp_of,
    unit_of,
    within_range,
)
from tasks.model.dtypes import is_complex, is_inexact, round_to_dtype, wide
from tasks.model.leaf import Leaf, elements
from tasks.model.op_class import OpClass


def worst(
    actual: Sequence[Any], expected: Sequence[Leaf], op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> tuple[int, tuple[int, ...]] | None:
    """(output, index) of the element with the largest error units, NaN misplacement first; None if nothing.

    Of what an error unit is made, and what the range of a coarser ``precision`` excuses, says the judge.
    """
    return furthest(actual, expected, op_class, 0.0, precision)[1]


def furthest(
    actual: Sequence[Any], expected: Sequence[Leaf], op_class: OpClass, limit: float, precision: str = ""
) -> tuple[int, tuple[int, tuple[int, ...]] | None]:
    """(how many elements lie beyond a limit of the op's measure, ulps or error units, or have a NaN or Inf out of
    place; the `worst`)."""
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


def beyond(a: np.ndarray, leaf: Leaf, op_class: OpClass, limit: float, precision: str = "") -> np.ndarray:
    """(n,) flat places of the elements that lie beyond a limit, as `furthest` has it, the furthest first."""
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
        leaf, op_class = replace(leaf, noise=model_floor(leaf)), OpClass.COMPOSITE
    if not is_inexact(leaf.dtype):
        at = np.flatnonzero(a != y)
        off, noise = distance(a[at], y[at]), elements(leaf, at).noise
        # The last term keeps an order among differences that no noise excuses.
        return at, off > (0.0 if noise is None else limit * noise), off / ((0.0 if noise is None else noise) + 2.0**-64)
    wide_a, cast = a.astype(y.dtype), round_to_dtype(y, leaf.dtype)
    same = (wide_a == cast) | (np.isnan(wide_a) & np.isnan(cast))
    if is_complex(leaf.dtype):
        same |= ~np.isfinite(wide_a) & ~np.isfinite(cast)
    at = np.flatnonzero(~same)
    few = elements(leaf, at)
    y, floor = y[at], unit_of(few, op_class, precision)[2]
    x = within_range(wide_a[at], y, floor, leaf.dtype, precision)
    excused = x == cast[at]
    if not is_complex(leaf.dtype):
        x = at_border(x, y, floor, leaf.dtype)[0]
    if floor is not None:
        excused |= floor == np.inf
    off = np.abs(x - y)
    units = np.where(excused, 0.0, off / error_unit(few, op_class, precision))
    return (
        at,
        ~(excused | (off <= bound_by_limit(few, op_class, limit, precision))),
        np.where(np.isnan(units), np.inf, units),
    )


def element(
    actual: np.ndarray, leaf: Leaf, index: tuple[int, ...], op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> dict[str, str]:
    """The numbers of one element, with all their digits; its ulps as `compare` counts them."""
    assert leaf.reference is not None
    a, y = actual[index], leaf.reference[index]
    inexact = is_inexact(leaf.dtype)
    number: Any = complex if is_complex(leaf.dtype) else float if inexact else int
    if inexact:
        a, y = a.astype(wide(leaf.dtype)), y.astype(wide(leaf.dtype))
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
            eps, smallest, _ = unit_of(leaf, op_class, precision)
            found["ulps"] = repr(
                diff / float(ulp_of(np.asarray(abs(y)), eps, smallest, op_class, bool(abs(a) < abs(y))))
            )
    return found
