"""Zeros of the wrong sign, where the definition of an op fixes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tasks.model import EPS, Leaf

#: Ops whose zeros have a sign by IEEE 754-2019 (6.3 and 9.2.1) or the C standard (annex F), by the last part of their
#: name in lower case. Not max, min, relu and their kin: either zero is the larger one there.
FIXED = frozenset(
    (
        "abs acos add asin asinh atan atan2 atanh ceil copysign cos deg2rad div div.no_rounding_mode erf expm1 floor fmod log log10 log1p log2 "
        "mul neg rad2deg reciprocal round rint sin sinh sqrt square sub tan tanh true_divide trunc"
    ).split()
)
#: Catalogs whose ops of these names are the functions, or conversions.
_CATALOGS = ("torch", "onnx", "critical", "casts")


def count_wrong_zero_signs(op: str, actual: Sequence[np.ndarray], expected: Sequence[Leaf]) -> int | None:
    """How many zeros among the results of an op ("torch:sin", "onnx:Neg") have another sign than the exact result; None
    of an op whose definition does not say, and of dtypes with one zero."""
    if not _does_op_fix_zero_sign(op):
        return None
    count = None
    for a, leaf in zip(actual, expected):
        y = leaf.reference
        if (
            y is None
            or y.dtype != np.float64
            or leaf.dtype not in EPS
            or a.shape != y.shape
            or _has_one_zero(leaf.dtype)
        ):
            continue
        zero = np.flatnonzero(a == 0)
        signs = np.signbit(a.reshape(-1)[zero].astype(np.float64)) != np.signbit(y.reshape(-1)[zero])
        count = (count or 0) + int(np.count_nonzero(signs))
    return count


@functools.cache
def _does_op_fix_zero_sign(op: str) -> bool:
    catalog, _, name = op.partition(":")
    return catalog in _CATALOGS and (name.lower() in FIXED or (catalog == "casts" and name.startswith("to_")))


def _has_one_zero(dtype: str) -> bool:
    return dtype.endswith("fnuz") or dtype == "float8_e8m0fnu"
