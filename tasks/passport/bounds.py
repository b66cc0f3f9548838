"""How far a sum may be off by the arithmetic of its device: bounds that follow from its tree and the bits that its steps keep.

Deterministic: each term goes through so many roundings, each of at most u (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., 4.2). Likely: where roundings are to nearest and of either sign, they add up as a random walk,
exp(λ·√n·u + n·u²/(1 − u)) − 1 but for a probability of 2·exp(−λ²(1 − u)²/2) a sum (Higham and Mary, SIAM J. Sci.
Comput. 41, 2019, Theorem 2.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.model.dtypes import EPS, SMALLEST_NORMAL
from tasks.passport.sum_reading import SumReading
from tasks.passport.sum_trees import decode_tree, list_tree_nodes, measure_tree_depth

#: λ of the likely bound: it fails once in 2·10¹⁰ sums.
LAMBDA = 7.0
#: The roundings of ends: a scale or a share, and what comes after it, each in the dtype of the result.
ENDS = 2
#: The logarithm of the largest float64.
LARGEST = math.log(np.finfo(np.float64).max)
#: For the bounds themselves, which are float64.
SLACK = 1.001


@dataclass(frozen=True)
class SumBounds:
    """Of some elements [e]: the furthest that they may be off, and the furthest that they are with all likelihood."""

    certain: np.ndarray
    likely: np.ndarray


def bound_device_sums(
    readings: Sequence[SumReading],
    terms: np.ndarray,
    exact: np.ndarray,
    output: str,
    rows: int | None,
    share: float = 1.0,
) -> SumBounds:
    """The bounds of results that are sums of terms [e, n], each times a ``share``, on a device with these readings of
    the op.

    A reading of as many terms and rows counts alone, with its tree, unless its order is another one in other calls; else
    the widest of all, in any order. exact: of the
    results [e]; output: their dtype. Raises ValueError without readings.
    """
    if not readings:
        raise ValueError("no readings: nothing is known of these sums")
    count = terms.shape[1]
    alike = [x for x in readings if x.keeps_order and x.terms == count and x.rows == rows]
    amounts = share * np.abs(terms).sum(1)
    made = [find_share_of_sum(x, count, bool(alike)) for x in alike or readings]
    reference = (count + 1) * EPS["float64"] / 2 * amounts  # which is added up as well
    least = SMALLEST_NORMAL[output] * (1.0 if any(x.flushes_results for x in readings) else EPS[output])
    certain, likely = (max(x.off[k] for x in made) * amounts for k in (0, 1))
    return add_bound_ends(certain, likely, exact, output, reference + count * least)


def add_bound_ends(
    certain: np.ndarray, likely: np.ndarray, exact: np.ndarray, output: str, more: np.ndarray
) -> SumBounds:
    """The bounds of results [e] of a dtype that are so far off before they are rounded to it, and ``more``."""
    ends = more + ENDS * EPS[output] / 2 * np.abs(exact)
    return SumBounds(SLACK * (certain + ends + EPS[output] * certain), SLACK * (likely + ends + EPS[output] * likely))


@dataclass(frozen=True)
class SumShare:
    """What the steps of a sum leave of it, (certainly, in all likelihood). off: how far at most, as a share of what its
    terms amount to; least: of terms that are never negative the least share that is left of it."""

    off: tuple[float, float]
    least: tuple[float, float]


def find_share_of_sum(reading: SumReading, count: int, exactly: bool, roundings: int = 1) -> SumShare:
    """What the steps of one reading leave of a sum of so many terms. exactly: whether its tree is the sum's; else the
    sum is added in any order. roundings: of each step.

    No number of roundings is too large for these bounds: (1 + u)^n − 1 is n·u/(1 − n·u) without what makes that
    infinite, and n roundings to nearest that only add leave no more than n·u (Jeannerod and Rump, SIAM J. Matrix Anal.
    Appl. 34, 2013, Theorem 4.2).
    """
    assert reading.bits is not None
    near = reading.rounding in (None, "", "nearest even", "nearest away")
    u = 2.0 ** -(reading.bits - (not near))
    steps = measure_tree_depth(decode_tree(reading.tree or ())) if exactly else count - 1
    depth = steps * roundings + 1  # and its product
    if reading.aligned:  # each step cuts off all that it adds
        u += (_count_widest_step(reading) + 1) * 2.0 ** (1 - reading.aligned)
    if reading.taken:  # of both factors
        near_factors = reading.taking in ("nearest even", "nearest away")
        u += 2 * 2.0 ** -(reading.taken - (not near_factors))
    narrow = sum(2.0**-bits for bits in (reading.others or ())[1::2])
    narrow *= 1.0 if exactly else max(1.0, count / max(reading.terms, 1))
    certain = _compute_bound_growth(depth * math.log1p(u))
    if near and roundings == 1 and not (reading.aligned or reading.taken):
        certain = min(certain, count * u)
    least = math.exp(depth * math.log1p(-u)) if u < 1 else 0.0
    likely, left = certain, least
    if near and not reading.aligned and u < 1:  # of steps that may lose all that they add nothing is likely
        walk = LAMBDA * math.sqrt(depth) * u + depth * u * u / (1 - u)
        likely, left = min(certain, _compute_bound_growth(walk)), max(least, math.exp(-walk))
    kept = max(1 - narrow, 0.0)
    return SumShare((certain + narrow * (1 + certain), likely + narrow * (1 + likely)), (least * kept, left * kept))


def _compute_bound_growth(logarithm: float) -> float:
    """e to the power of a number, without one; infinite beyond float64."""
    return math.expm1(logarithm) if logarithm < LARGEST else math.inf


def _count_widest_step(reading: SumReading) -> int:
    """How many terms the widest step of a reading adds."""
    return max(map(len, list_tree_nodes(decode_tree(reading.tree or ()))), default=2)
