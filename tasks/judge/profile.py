"""How far each of all inputs is off, in a line of letters that a row can keep and a page can draw."""

from __future__ import annotations

import numpy as np

from tasks.judge import ascending
from tasks.judge.plain import spacing_of
from tasks.model import EPS, SMALLEST_NORMAL, Leaf, is_complex
from tasks.model.dtypes import rounded

#: Letters of a line, and the power of two of an ulp that the first of them stands for.
SHARES, FIRST = 128, -3


def line(given: np.ndarray, actual: np.ndarray, leaf: Leaf) -> str:
    """A letter for each of `SHARES` equal shares of the finite inputs in ascending order: the largest error of that share. "a" is at
    most 2**FIRST ulps, each further letter twice as much, "z" a NaN or Inf out of place. "" of what is not a float for each input."""
    y = leaf.reference
    if (
        y is None
        or y.shape != given.shape
        or actual.shape != y.shape
        or leaf.dtype not in EPS
        or is_complex(leaf.dtype)
    ):
        return ""
    with np.errstate(all="ignore"):
        inputs = ascending.of(given)
        order = inputs.order[np.isfinite(inputs.values)]
        if not order.size:
            return ""
        a, y = actual.astype(np.float64).reshape(-1)[order], y.reshape(-1)[order]
        ulps = np.abs(a - y) / spacing_of(np.abs(y), EPS[leaf.dtype], SMALLEST_NORMAL[leaf.dtype])
        odd = np.flatnonzero(~np.isfinite(ulps))
        cast = rounded(y[odd], leaf.dtype)
        ulps[odd] = np.where((a[odd] == cast) | (np.isnan(a[odd]) & np.isnan(cast)), 0.0, np.inf)
        shares = np.maximum.reduceat(ulps, np.arange(min(SHARES, order.size)) * order.size // min(SHARES, order.size))
        steps = np.clip(np.ceil(np.log2(shares)) - FIRST, 0, 24)
    return "".join("z" if np.isinf(worst) else chr(97 + int(step)) for worst, step in zip(shares, steps))
