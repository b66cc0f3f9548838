"""What a user promises of every result (`invariants:` of a declaration), and whether outputs keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.judge.error_metrics import USUAL_UNITS
from tasks.model import EPS, SMALLEST_NORMAL, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype


def find_broken_invariant(
    invariants: Sequence[tuple[str, Any]], inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]
) -> str:
    """The first invariant, as (name, argument), that an output breaks, in words; "" where all are kept.

    Where some outputs are floating, they alone are looked at (the indices beside them are no probabilities). Inputs
    with NaN or Inf excuse everything but the shape.
    """
    finite = all(
        np.isfinite(x.astype(np.complex128)).all()
        for x in inputs.values()
        if is_inexact_dtype(name_numpy_dtype(x.dtype))
    )
    floating = [(i, x) for i, x in enumerate(outputs) if is_inexact_dtype(name_numpy_dtype(x.dtype))]
    for name, argument in invariants:
        if name == "shape_preserved":
            if outputs[0].shape != inputs[argument].shape:
                return f"{name}: shape {outputs[0].shape}, that of {argument} is {inputs[argument].shape}"
        elif finite:
            for i, x in floating or list(enumerate(outputs)):
                if text := CHECKS[name](x, argument):
                    return f"{name}: " + (f"output {i}: " if len(outputs) > 1 else "") + text
    return ""


def _describe_broken_count(bad: np.ndarray, what: str, x: np.ndarray, things: str = "elements") -> str:
    """Text of how many ``things`` are bad, and the first; "" for none."""
    if not bad.any():
        return ""
    at = tuple(int(k) for k in np.unravel_index(int(np.argmax(bad)), bad.shape))
    return f"{int(bad.sum())} of {bad.size} {things} are {what}, first {x[at]} at {at}"


def _widen_invariant_output(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if is_inexact_dtype(name_numpy_dtype(x.dtype)) else x


def _check_non_negative(x: np.ndarray, argument: Any) -> str:
    return _describe_broken_count(_widen_invariant_output(x) < 0, "negative", x)


def _check_no_nan(x: np.ndarray, argument: Any) -> str:
    return _describe_broken_count(np.isnan(_widen_invariant_output(x)), "NaN", x)


def _check_no_inf(x: np.ndarray, argument: Any) -> str:
    return _describe_broken_count(np.isinf(_widen_invariant_output(x)), "infinite", x)


def _check_sums_to_one(x: np.ndarray, axis: Any) -> str:
    """Every element is rounded once: by ε of itself, or by half the smallest subnormal."""
    axis, dtype = -1 if axis is None else axis, name_numpy_dtype(x.dtype)
    if not x.ndim or not -x.ndim <= axis < x.ndim:
        return f"a tensor of {x.ndim} dimensions has no axis {axis}"
    total = _widen_invariant_output(x).sum(axis=axis)
    eps = EPS.get(dtype, 0.0)
    off = np.abs(total - 1.0)
    limit = USUAL_UNITS * eps * (1.0 + x.shape[axis] * SMALLEST_NORMAL.get(dtype, 0.0))
    return _describe_broken_count(~(off <= limit), "not 1", np.asarray(total), "sums")


def _check_output_bounds(x: np.ndarray, ends: Any) -> str:
    """Bounds are rounded to the dtype, as the values were."""
    low, high = (np.asarray(end).astype(x.dtype).astype(np.float64) for end in ends)
    wide = _widen_invariant_output(x)
    return _describe_broken_count((wide < low) | (wide > high), f"outside [{ends[0]}, {ends[1]}]", x)


def _check_output_sorted(x: np.ndarray, axis: Any) -> str:
    axis = -1 if axis is None else axis
    if not x.ndim or not -x.ndim <= axis < x.ndim:
        return f"a tensor of {x.ndim} dimensions has no axis {axis}"
    wide = np.moveaxis(_widen_invariant_output(x), axis, -1)
    return _describe_broken_count(
        wide[..., 1:] < wide[..., :-1], "below their predecessor", np.moveaxis(x, axis, -1)[..., 1:]
    )


CHECKS: dict[str, Callable[[np.ndarray, Any], str]] = {
    "non_negative": _check_non_negative,
    "no_nan": _check_no_nan,
    "no_inf": _check_no_inf,
    "sums_to_one": _check_sums_to_one,
    "bounded": _check_output_bounds,
    "sorted": _check_output_sorted,
}
