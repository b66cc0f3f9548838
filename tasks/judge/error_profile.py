"""How far each of all inputs is off, in a line of letters that a row can keep and a page can draw."""

from __future__ import annotations

import numpy as np

from tasks.judge.ascending_inputs import sort_inputs_ascending
from tasks.judge.error_metrics import compute_ulp_spacing
from tasks.model import EPS, SMALLEST_NORMAL, Leaf, is_complex_dtype
from tasks.model.dtypes import round_to_dtype

#: Letters of a line, and the power of two of an ulp that the first of them stands for.
SHARES, FIRST = 128, -3


def write_error_profile(given: np.ndarray, actual: np.ndarray, leaf: Leaf) -> str:
    """A letter for each of `SHARES` equal shares of the finite inputs in ascending order: the largest error of that
    share. "a" is at most 2**FIRST ulps, each further letter twice as much, "z" a NaN or Inf out of place. "" of what is
    not a float for each input."""
    y = leaf.reference
    if (
        y is None
        or y.shape != given.shape
        or actual.shape != y.shape
        or leaf.dtype not in EPS
        or is_complex_dtype(leaf.dtype)
    ):
        return ""
    with np.errstate(all="ignore"):
        order = sort_inputs_ascending(given).finite
        if not order.size:
            return ""
        wide_a, y = actual.astype(np.float64, copy=False).reshape(-1), y.reshape(-1)
        off = np.abs(wide_a - y)
        off /= compute_ulp_spacing(np.abs(y), EPS[leaf.dtype], SMALLEST_NORMAL[leaf.dtype])
        odd = np.flatnonzero(~np.isfinite(off))
        a, cast = wide_a[odd], round_to_dtype(y[odd], leaf.dtype)
        off[odd] = np.where((a == cast) | (np.isnan(a) & np.isnan(cast)), 0.0, np.inf)
        starts = np.arange(min(SHARES, order.size)) * order.size // min(SHARES, order.size)
        shares = np.maximum.reduceat(off[order], starts)
        steps = np.clip(np.ceil(np.log2(shares)) - FIRST, 0, 24)
    return (ord("a") + np.where(np.isinf(shares), 25, steps)).astype(np.uint8).tobytes().decode()
