"""What a row keeps of a result so that backends can be compared with one another: a digest of its bytes, a signature."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from tasks.judge.error_metrics import find_error_unit_parts
from tasks.model import PART, Leaf, OpClass, is_complex_dtype, is_inexact_dtype, round_to_dtype

#: Numbers of a signature; elements of one output that are looked at, spread evenly over it.
LENGTH, LOOKED_AT = 16, 4096
#: Bytes of an array from which on no copy of it is made for its digest.
LARGE = 1 << 16


def digest_judged_outputs(outputs: Sequence[np.ndarray]) -> str:
    """SHA-256 of the outputs' dtypes, shapes and bytes, first 16 hex digits: equal for the very same result alone."""
    found = hashlib.sha256()
    for array in outputs:
        found.update(f"{array.dtype.name}{array.shape}".encode())
        if array.dtype.hasobject:
            found.update(repr(array.tolist()).encode())
        elif array.nbytes >= LARGE and array.flags.c_contiguous:
            found.update(array.reshape(-1).view(np.uint8).data)
        else:
            found.update(array.tobytes())
    return found.hexdigest()[:16]


def compute_error_signature(
    outputs: Sequence[np.ndarray], expected: Sequence[Leaf], op_class: OpClass, precision: str = ""
) -> list[float] | None:
    """At most `LENGTH` signed errors (a − y) / (ε·|y| + δ + tiny) of a result, by which two results are told apart.

    Up to `LENGTH` elements: the error of each. Beyond, the elements in their order make `LENGTH`/2 runs, and there are
    the smallest and the largest error of each run. Neither of them moves by more than an element does, so the largest
    difference of two signatures is at most the largest distance of the two results, in error units. Integers count by
    their difference; a misplaced NaN or Inf is infinite. ε and δ are those of `tasks.judge.error_metrics` under the declared
    ``precision``. None where elements cannot be compared one by one: other shapes or dtypes than expected, no
    reference, text, a random or uninitialised result.
    """
    if op_class in (OpClass.RANDOM, OpClass.UNINITIALISED) or len(outputs) != len(expected):
        return None
    size = 0
    for a, leaf in zip(outputs, expected):
        if leaf.reference is None or leaf.dtype == "str" or a.shape != leaf.reference.shape or a.dtype.hasobject:
            return None
        size += a.size
    if not size:
        return None
    with np.errstate(all="ignore"):
        parts = [_compute_signed_errors(a, leaf, op_class, precision) for a, leaf in zip(outputs, expected)]
        errors = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if errors.size > LENGTH:
            runs = np.arange(LENGTH // 2) * errors.size // (LENGTH // 2)
            errors = np.concatenate([np.minimum.reduceat(errors, runs), np.maximum.reduceat(errors, runs)])
        found: list[float] = errors.tolist()
        return found


def _compute_signed_errors(a: np.ndarray, leaf: Leaf, op_class: OpClass, precision: str) -> np.ndarray:
    """Signed errors of one output in float64: of the real parts, then of the imaginary ones."""
    assert leaf.reference is not None
    dtype, step = leaf.dtype, -(-a.size // LOOKED_AT) or 1
    a, y = a.reshape(-1)[::step], leaf.reference.reshape(-1)[::step]
    if not is_inexact_dtype(dtype):
        return a.astype(np.float64) - y.astype(np.float64)
    off = a.astype(y.dtype)
    off -= y
    eps, smallest, noise = find_error_unit_parts(leaf, op_class, precision)
    tolerance = np.abs(y)
    tolerance *= eps
    tolerance += eps * smallest
    if noise is not None:
        tolerance += noise.reshape(-1)[::step]
    if is_complex_dtype(dtype):
        off, tolerance = np.concatenate([off.real, off.imag]), np.concatenate([tolerance, tolerance])
    off /= tolerance
    return off if np.isfinite(off).all() else _fill_nonfinite_errors(off, a, y, tolerance, dtype)


def _fill_nonfinite_errors(
    errors: np.ndarray, a: np.ndarray, y: np.ndarray, tolerance: np.ndarray, dtype: str
) -> np.ndarray:
    """``errors`` where they are not finite: 0 for a NaN or Inf where the reference has it, infinite where it has
    none."""
    a = a.astype(y.dtype)
    if is_complex_dtype(dtype):
        a, y = np.concatenate([a.real, a.imag]), np.concatenate([y.real, y.imag])
        dtype = PART[dtype]
    cast = round_to_dtype(y, dtype)
    same = (a == cast) | (np.isnan(a) & np.isnan(cast)) | (tolerance == np.inf)
    return np.where(np.isfinite(errors), errors, np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors)))


def measure_signature_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of two signatures of one case: at most what the two results are apart, in error units."""
    if len(one) != len(other):
        return float("inf")
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        return float(np.where(a == b, 0.0, np.abs(a - b)).max(initial=0.0))
