"""Sums of 16-bit numbers that were rounded to 16 bits on the way, where rounding the inputs might have moved the result as far.

The inputs of a product are given exactly, and matrix units add in float32. What such an adder leaves, rounded to 16
bits once at its end and once more before something is added, is far less than the noise floor of a long sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tasks.diagnose import products, rounding, sums
from tasks.diagnose.error_model import FEW, NARROW, SHARE, WrongResult
from tasks.diagnose.formula import SummedFormula
from tasks.model import EPS, SMALLEST_NORMAL, Leaf, OpClass, round_to_dtype
from tasks.model.dtypes import is_inexact_dtype, name_numpy_dtype

#: Elements that are computed again, at most, spread over the output.
ELEMENTS = 128
#: Terms of a sum from which on its adder tells.
TERMS = 32
#: Beyond what float32 leaves, an error whose root mean square is so many times that of every factor of the sum rounded
#: once more has been added up: one more rounding of both factors gives 0.4.
TIMES = 1.0
#: Coarser factors are why a result is off, if what they leave is less than this share of its error.
COARSE = 0.5


def is_narrow_output_off(actual: np.ndarray, leaf: Leaf) -> bool:
    """Whether an output of 16-bit numbers is further off than rounding it twice may leave it."""
    y, dtype = leaf.reference, leaf.dtype
    if dtype not in NARROW or y is None or actual.shape != y.shape:
        return False
    with np.errstate(all="ignore"):
        twice = EPS[dtype] * (np.abs(y) + SMALLEST_NORMAL[dtype])
        return bool((np.abs(actual.astype(y.dtype) - y) > twice).any())


def explain_narrow_rounding(inputs: Sequence[np.ndarray], actual: np.ndarray, leaf: Leaf) -> str:
    """How the sums of an output lost digits that float32 would have kept, in words; "" where they did not, or it is no
    sum or product of matrices of 16-bit numbers."""
    y, dtype = leaf.reference, leaf.dtype
    given = [x for x in inputs if is_inexact_dtype(name_numpy_dtype(x.dtype))]
    if y is None or {name_numpy_dtype(x.dtype) for x in given} != {dtype}:
        return ""
    if max(n for x in given for n in (0, *x.shape)) < TERMS or not is_narrow_output_off(actual, leaf):
        return ""
    with np.errstate(all="ignore"):
        result = WrongResult.of(actual, leaf, OpClass.CONTRACTION)
        floats = [x.astype(np.float64) for x in given]
        at = np.arange(0, y.size, -(-y.size // ELEMENTS))
        for found in itertools.chain(
            sums.find_reduction_sums(floats, result, at), products.find_product_sums(floats, result, at)
        ):
            return (
                _explain_narrow_sums(found, floats, result.actual.reshape(-1)[at], dtype)
                if len(found.terms) >= TERMS
                else ""
            )
    return ""


def _explain_narrow_sums(found: SummedFormula, floats: Sequence[np.ndarray], actual: np.ndarray, dtype: str) -> str:
    terms = found.terms
    known = np.isfinite(actual) & np.isfinite(terms).all(0)
    off = np.where(known, np.abs(actual - found.finish(terms.sum(0))), 0.0)
    excess = np.maximum(off - _bound_float32_sums(found, dtype), 0.0)
    beyond = excess > 0
    if not beyond.any():
        return ""

    def explains(total: np.ndarray) -> bool:
        same = actual == round_to_dtype(found.finish(total), dtype)
        return bool(same[beyond].mean() >= SHARE and same[known].mean() >= SHARE)

    if any(explains(total) for total in _sum_in_dtype(terms, dtype, beyond.sum() < FEW)):
        return f"accumulated in {dtype}"
    once_more = abs(found.scale) * EPS[dtype] * np.sqrt(np.square(terms).sum(0))
    unit = once_more + EPS[dtype] * SMALLEST_NORMAL[dtype] * np.sqrt(len(terms))
    if not np.sqrt(np.mean(np.square(excess[known] / unit[known]))) >= TIMES:
        return ""
    size = np.sqrt(np.mean(np.square(off[known])))
    for name, change in itertools.product(
        rounding.list_coarser_formats(dtype), (rounding.round_to_format, rounding.cut_to_format)
    ):
        result = found.finish(found.of([change(x, name) for x in floats]).sum(0))
        for coarse in (result, change(result, name)):
            if np.sqrt(np.mean(np.square((actual - coarse)[known]))) < COARSE * size:
                return ""  # what is added is coarse, and perhaps the result, not the adding
    return f"sums are rounded to {dtype} on the way"


def _bound_float32_sums(found: SummedFormula, dtype: str) -> np.ndarray:
    """How far sums may be off that are added in float32 in any usual order, cut off at every step even, and rounded to
    a dtype at their end and again with what is added."""
    terms = found.terms
    partial, sizes = np.abs(np.cumsum(terms, axis=0)).max(0), np.abs(terms).sum(0)
    adder = EPS["float32"] * (len(terms) * partial + np.sqrt(len(terms)) * sizes)
    total = found.scale * terms.sum(0)
    ends = EPS[dtype] / 2 * (np.abs(total) + np.abs(total + found.added)) + EPS[dtype] * SMALLEST_NORMAL[dtype]
    return np.asarray(1.01 * (abs(found.scale) * adder + ends))


def _sum_in_dtype(terms: np.ndarray, dtype: str, plain: bool) -> Iterator[np.ndarray]:
    """The sums with an accumulator in a dtype; plain: one term after another alone, as few numbers agree with one of
    many by chance."""

    def narrow(x: np.ndarray) -> np.ndarray:
        return rounding.round_to_format(x, dtype)

    for order in itertools.islice(rounding.list_summing_orders(len(terms)), 1 if plain else None):
        for given in (terms, narrow(terms)):
            yield order(given, narrow)
