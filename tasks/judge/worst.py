"""The element that is furthest off, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.judge.plain import allowed, at_border, distance, ulp_of, unit_of, within_range
from tasks.model.dtypes import is_complex, is_inexact, rounded, wide
from tasks.model.leaf import Leaf
from tasks.model.op_class import OpClass


def worst(
    actual: Sequence[Any], expected: Sequence[Leaf], op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> tuple[int, tuple[int, ...]] | None:
    """(output, index) of the element with the largest error units, NaN misplacement first; None if nothing.

    Of what an error unit is made, and what the range of a coarser ``precision`` excuses, says the judge.
    """
    best: tuple[float, int, tuple[int, ...]] | None = None
    with np.errstate(all="ignore"):
        for i, (a, leaf) in enumerate(zip(map(np.asarray, actual), expected)):
            if leaf.reference is None or leaf.dtype == "str" or not a.size or a.shape != tuple(leaf.shape):
                continue
            eps, smallest, floor = unit_of(leaf, op_class, precision)
            noise = 0.0 if floor is None else floor
            if is_inexact(leaf.dtype):
                y = leaf.reference
                x, same = _seen(a, y, leaf.dtype, floor, precision)
                units = np.abs(x - y) / (eps * np.abs(y) + noise + smallest * eps)
                units = np.where(same | (noise == np.inf), 0.0, np.where(np.isnan(units), np.inf, units))
            else:
                # The last term keeps an order among differences that no noise excuses.
                units = distance(a, leaf.reference) / (noise + 2.0**-64)
            at = int(np.argmax(units))
            value = float(units.reshape(-1)[at])
            if best is None or value > best[0]:
                best = (value, i, tuple(int(k) for k in np.unravel_index(at, a.shape)))
    return None if best is None else best[1:]


def beyond(
    actual: Sequence[np.ndarray], expected: Sequence[Leaf], op_class: OpClass, limit: float, precision: str = ""
) -> int:
    """Elements that lie beyond a limit of the op's measure (ulps or error units), or have a NaN or Inf out of place."""
    count = 0
    for a, leaf in zip(actual, expected):
        y = leaf.reference
        if y is None or leaf.dtype == "str" or a.shape != y.shape:
            continue
        if not is_inexact(leaf.dtype):
            count += int(np.count_nonzero(distance(a, y) > (0.0 if leaf.noise is None else limit * leaf.noise)))
            continue
        floor = unit_of(leaf, op_class, precision)[2]
        with np.errstate(all="ignore"):
            x, same = _seen(a, y, leaf.dtype, floor, precision)
            near = np.abs(x - y) <= allowed(leaf, op_class, limit, precision)
        count += int(np.count_nonzero(~(same | near | (False if floor is None else floor == np.inf))))
    return count


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


def _seen(
    a: np.ndarray, y: np.ndarray, dtype: str, floor: np.ndarray | None, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """(a result of an inexact dtype as it is compared, wide and with what overflow excuses put right; where it is ``y`` rounded)."""
    x = within_range(a, y, floor, dtype, precision).astype(wide(dtype))
    cast = rounded(y, dtype)
    same = (np.isnan(x) & np.isnan(cast)) | (x == cast)
    if is_complex(dtype):
        return x, same | (~np.isfinite(x) & ~np.isfinite(cast))
    return at_border(x, y, floor, dtype)[0], same
