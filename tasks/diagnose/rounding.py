"""Roundings that an error model makes: to coarser formats, towards zero, of every step of a sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tasks.model import EPS, SMALLEST_NORMAL, round_to_dtype
from tasks.model.dtypes import round_to_digits

#: Formats that runtimes compute in unasked.
FORMATS = ("float32", "tfloat32", "bfloat16")
#: Formats of accumulators.
NARROW = ("float32", "float16", "bfloat16")


def list_coarser_formats(dtype: str) -> list[str]:
    """Of FORMATS those with fewer digits than a dtype, the finest first."""
    return [name for name in FORMATS if EPS[name] > EPS[dtype]]


def list_narrow_formats(dtype: str) -> list[str]:
    """Of NARROW the dtype itself, and those with fewer digits."""
    return sorted((x for x in NARROW if EPS[x] >= EPS[dtype]), key=EPS.__getitem__)


def word_rounding(name: str) -> str:
    """Words for a rounding; two formats have the same digits, and only their ranges tell them apart."""
    return "rounded to tfloat32 or float16" if name == "tfloat32" else f"rounded to {name}"


def round_to_format(x: np.ndarray, name: str) -> np.ndarray:
    """float64 numbers rounded to a format, as wide as before: to its range as well, if an array may have it."""
    return round_to_digits(x, EPS[name]) if name == "tfloat32" else np.asarray(round_to_dtype(x, name))


def cut_to_format(x: np.ndarray, name: str) -> np.ndarray:
    """float64 numbers cut off, towards zero, to the digits of a format."""
    return round_to_digits(x, EPS[name], np.trunc)


def round_ties_away(x: np.ndarray, name: str) -> np.ndarray:
    """float64 numbers rounded to the digits of a format, what is half-way between two away from zero."""
    return round_to_digits(x, EPS[name], lambda s: np.copysign(np.floor(np.abs(s) + 0.5), s))


def round_up_if_odd(x: np.ndarray, name: str) -> np.ndarray:
    """float64 numbers cut off to the digits of a format, and rounded up from the half on only where the last digit kept
    is odd: bits + ((bits & last digit) >> 1), which is taken for rounding to nearest even (OpenVINO's
    bfloat16::round_to_nearest_even)."""
    kept = cut_to_format(x, name)
    significand, _ = np.frexp(kept)
    odd = significand / (EPS[name] / 2) % 2 == 1
    return np.where(odd, round_ties_away(x, name), kept)


def flush_subnormals_in_model(x: np.ndarray, name: str) -> np.ndarray:
    """Numbers whose subnormals of a dtype are zero, of their sign."""
    return np.where(np.abs(x) < SMALLEST_NORMAL[name], np.copysign(0.0, x), x)


#: How a sum is taken along the first axis, its partial sums rounded by a function.
Order = Callable[[np.ndarray, Callable[[np.ndarray], np.ndarray]], np.ndarray]


def sum_one_by_one(terms: np.ndarray, narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The sum along a first axis, what is kept rounded after every term."""
    total = np.zeros(terms.shape[1:])
    for term in terms:
        total = narrow(total + term)
    return total


def _sum_by_blocks(size: int) -> Order:
    """A block's own sum is exact, and is added to what is kept."""

    def order(terms: np.ndarray, narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        sums = np.add.reduceat(terms, np.arange(0, len(terms), size), axis=0)
        return sum_one_by_one(sums, narrow)

    return order


def _sum_by_lanes(count: int) -> Order:
    """Element i goes to lane i modulo ``count``; the lanes are added up exactly at the end."""

    def order(terms: np.ndarray, narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        spare = -len(terms) % count
        filled = np.concatenate([terms, np.zeros((spare, *terms.shape[1:]))]) if spare else terms
        return np.asarray(sum_one_by_one(filled.reshape(-1, count, *terms.shape[1:]), narrow).sum(0))

    return order


def _sum_in_pairs(terms: np.ndarray, narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    while len(terms) > 1:
        odd = terms[len(terms) // 2 * 2 :]
        terms = np.concatenate([narrow(terms[0 : len(terms) // 2 * 2 : 2] + terms[1::2]), odd])
    return np.asarray(terms[0])


ORDERS: tuple[Order, ...] = (
    sum_one_by_one,
    _sum_in_pairs,
    *(_sum_by_blocks(size) for size in (4, 8, 16, 32, 64, 128, 256)),
    *(_sum_by_lanes(count) for count in (4, 8, 16, 32, 64, 128, 256)),
)
#: Terms of all sums together, from which on no accumulator is tried.
TERMS = 1 << 21


#: Terms that a loop over chunks takes at a time.
CHUNKS = (4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)


def _sum_by_rounded_blocks(size: int) -> Order:
    """A block's own sum is rounded, and added to what is kept."""

    def order(terms: np.ndarray, narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return sum_one_by_one(narrow(np.add.reduceat(terms, np.arange(0, len(terms), size), axis=0)), narrow)

    return order


def _sum_inside_blocks(size: int, between: bool) -> Order:
    """A block's terms are added one by one; the blocks likewise (``between``), or exactly."""

    def order(terms: np.ndarray, narrow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        filled = np.concatenate([terms, np.zeros((-len(terms) % size, *terms.shape[1:]))])
        sums = sum_one_by_one(np.moveaxis(filled.reshape(-1, size, *terms.shape[1:]), 1, 0), narrow)
        return sum_one_by_one(sums, narrow) if between else np.asarray(sums.sum(0))

    return order


def list_summing_orders(count: int) -> Iterator[Order]:
    """Those in which a number of terms is added in several steps, the plainest first."""
    yield from (sum_one_by_one, _sum_in_pairs)
    for size in (x for x in CHUNKS if x < count):
        yield from (_sum_by_blocks(size), _sum_by_lanes(size), _sum_by_rounded_blocks(size))
        yield from (_sum_inside_blocks(size, between) for between in (False, True))


def accumulate_in_format(terms: np.ndarray, name: str) -> Iterator[np.ndarray]:
    """Sums of ``terms`` (n, …) along their first axis with an accumulator in a format, in each of some orders; with
    exact terms, then with rounded ones."""
    if terms.size > TERMS or not len(terms):
        return

    def narrow(x: np.ndarray) -> np.ndarray:
        return round_to_format(x, name)

    for given in (terms, narrow(terms)):
        for order in ORDERS:
            yield order(given, narrow)
