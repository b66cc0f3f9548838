"""Error models that need the exact result alone: how it was stored, scaled, ordered, or not written at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.diagnose import rounding
from tasks.diagnose.error_model import FEW, ErrorModel, WrongResult
from tasks.model import SMALLEST_NORMAL, is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype

#: A factor nearer to 1 than this is rounding.
FACTOR = 1e-3
#: A result whose exact value is smaller than this share of the smallest normal number is 0 for other reasons as well.
NEAR = 0.25


def models(result: WrongResult) -> Iterator[ErrorModel]:
    """What may have been done to the exact result."""
    y, dtype = result.exact, result.dtype
    if y.any() and is_inexact_dtype(dtype):
        yield ErrorModel("zero everywhere", np.zeros_like(y))
    if result.real:
        yield from _find_storage_models(result)
    if is_inexact_dtype(dtype) or y.dtype.kind == "i":
        yield ErrorModel("the sign is turned", -y)
    if is_complex_dtype(dtype):
        yield ErrorModel("the imaginary part is turned", np.conj(y))
        yield ErrorModel("the imaginary part is lost", y.real.astype(y.dtype))
    yield from _find_layout_models(y)


def _find_storage_models(result: WrongResult) -> Iterator[ErrorModel]:
    y, dtype = result.exact, result.dtype
    small = np.abs(y[result.off])
    if ((small < SMALLEST_NORMAL[dtype]) & (small > NEAR * SMALLEST_NORMAL[dtype])).any():
        yield ErrorModel(
            f"subnormal results are flushed to zero in {dtype}", rounding.flush_subnormals_in_model(y, dtype)
        )
    limit = result.largest
    yield ErrorModel(f"saturates at {dtype}'s largest number", np.clip(y, -limit, limit))
    if result.bits:  # else a unit excuses it, and what is off is off by more
        yield ErrorModel(f"truncated to {dtype}, not rounded", rounding.cut_to_format(y, dtype), digits=True)
        yield ErrorModel(f"ties are rounded away from zero in {dtype}", rounding.round_ties_away(y, dtype), digits=True)
        words = f"rounded up in {dtype} only where the last digit kept is odd, else cut off"
        yield ErrorModel(words, rounding.round_up_if_odd(y, dtype), digits=True)
    for name in rounding.list_coarser_formats(dtype):
        yield ErrorModel(
            f"the result is {rounding.word_rounding(name)}", rounding.round_to_format(y, name), digits=True
        )
        yield ErrorModel(f"the result is truncated to {name}", rounding.cut_to_format(y, name), digits=True)


def _find_layout_models(y: np.ndarray) -> Iterator[ErrorModel]:
    if y.ndim > 1:
        yield ErrorModel("written in column-major order", y.T.reshape(y.shape))
        yield ErrorModel("read in column-major order", y.reshape(y.shape[::-1]).T)
    for axis in range(y.ndim):
        if y.shape[axis] > 2:
            yield ErrorModel(f"reversed along axis {axis}", np.flip(y, axis))
            for step in (1, -1):
                yield ErrorModel(f"off by one along axis {axis}", np.roll(y, step, axis))


def find_result_models(inputs: Sequence[np.ndarray], result: WrongResult) -> Iterator[ErrorModel]:
    """What a result looks like, where nothing says how it came about."""
    a, y = result.actual, result.exact
    for place, x in enumerate(inputs):
        if x.shape != a.shape or x.dtype.kind == "c":
            continue
        if name_numpy_dtype(x.dtype) == result.dtype:
            yield ErrorModel(f"input {place} is returned as it is", x.astype(y.dtype))
        elif is_inexact_dtype(result.dtype) and y.dtype == np.float64:
            yield ErrorModel(
                f"beyond the range of {result.dtype} it is not held to the largest number", x.astype(y.dtype)
            )
    if result.real and (factor := _find_common_factor(a, y)) is not None:
        yield ErrorModel(f"scaled by {factor:.6g}", factor * y)
    if (tail := _find_stale_tail(result)) is not None:
        yield tail


def _find_common_factor(a: np.ndarray, y: np.ndarray) -> float | None:
    """The one factor between two results of several numbers; None if it is 1."""
    known = np.isfinite(a) & np.isfinite(y) & (y != 0)
    if np.unique(np.abs(y[known])).size < 3:
        return None
    factor = float(np.median(a[known] / y[known]))
    return factor if np.isfinite(factor) and factor and abs(factor - 1) > FACTOR else None


def _find_stale_tail(result: WrongResult) -> ErrorModel | None:
    """The result up to an element of every row, and one value, zero or NaN from there on."""
    a, y, off = result.actual, result.exact, result.off
    if y.ndim == 0 or (not is_inexact_dtype(result.dtype) and y.dtype.kind not in "iu"):
        return None
    for words, shape in (("of each row", (-1, y.shape[-1])), ("of all", (1, -1))):
        columns = off.reshape(shape).any(0)
        start = int(np.argmax(columns))
        rest = a.reshape(shape)[:, start:]
        if not 0 < start < columns.size or off.reshape(shape)[:, :start].any():
            continue
        known = np.isfinite(y.reshape(shape)[:, start:]).all()
        empty = bool(known and rest.size > FEW and (np.isnan(rest) | (rest == 0)).all())
        if empty and off.reshape(shape)[:, start:].mean() > 0.5:
            filled = np.where(np.arange(columns.size) >= start, a.reshape(shape), y.reshape(shape))
            return ErrorModel(f"zero or NaN from element {start} {words} on", filled.reshape(y.shape))
    return None
