"""Every value of a dtype: all bit patterns of up to 16 bits; of 32 and 64 a sweep over all signs and exponents.

A sweep has 2**20 values. Each of its (sign, exponent) pairs, zeros, subnormals, infinities and NaNs among them, has the
mantissas around powers of two, in float64 every third of them, and random ones. Some places of the last exponent, whose
patterns are all NaN but for one, are taken by the values around which kernels change their path (`list_landmark_floats`).
"""

from __future__ import annotations

import functools

import numpy as np

from tasks.model import LARGEST, SMALLEST_NORMAL, get_numpy_dtype, is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import PACKED_BITS, get_integer_range

#: Values of a sweep over a dtype of more than 16 bits.
SWEEP = 1 << 20
#: The float8 whose values a wider float is given as pairs, by sample.
FLOAT8 = ("float8_e5m2", "float8_e4m3fn")
#: Bits of the mantissa as it is stored.
MANTISSA = {"float32": 23, "float64": 52}
#: Neighbours in ulps on either side of a landmark.
NEIGHBOURS = (-2, -1, 0, 1, 2)


def has_every_value(dtype: str) -> bool:
    """Whether a dtype's values can be tried: any real number of at most 16 bits, float32 and float64."""
    kind = get_numpy_dtype(dtype)
    return dtype in MANTISSA or (not is_complex_dtype(dtype) and dtype not in ("bool", "str") and kind.itemsize <= 2)


def list_every_value(dtype: str, seed: int = 0) -> np.ndarray:
    """(n,) every value of ``dtype``, n = 2 to the number of its bits, or the sweep of `SWEEP`, whose random mantissas
    are of ``seed``.

    Raises ValueError for a dtype that `has_every_value` refuses.
    """
    if not has_every_value(dtype):
        raise ValueError(f"{dtype}: not every value of it can be tried")
    target = get_numpy_dtype(dtype)
    if dtype not in MANTISSA:
        if dtype in PACKED_BITS and not is_inexact_dtype(
            dtype
        ):  # how a byte holds a negative one is the library's affair
            low, high = get_integer_range(dtype)
            return np.arange(low, high + 1).astype(target)
        bits = PACKED_BITS.get(dtype, 8 * target.itemsize)
        return np.arange(1 << bits, dtype=f"u{target.itemsize}").view(target)
    return _sweep_values(dtype, seed)


def _sweep_values(dtype: str, seed: int) -> np.ndarray:
    width, target = MANTISSA[dtype], get_numpy_dtype(dtype)
    unsigned = np.dtype(f"u{target.itemsize}").type
    heads = 1 << (8 * target.itemsize - width)  # signs and exponents
    each = SWEEP // heads
    special = {0, 1, 2, (1 << width) - 1, (1 << width) - 2}
    special |= {(1 << k) + d for k in range(width) for d in (-1, 0, 1)}
    chosen = np.array(sorted(special), dtype=unsigned)[:: -(-4 * len(special) // each)]
    rng = np.random.default_rng((seed, width))
    tails = rng.integers(0, 1 << width, (heads, each), dtype=unsigned)
    tails[:, : len(chosen)] = chosen
    patterns = (np.arange(heads, dtype=unsigned)[:, None] << unsigned(width)) | tails
    swept = patterns.view(target)
    near = list_landmark_floats(dtype)
    swept[-1, 1 + len(chosen) :][: len(near)] = near[: each - 1 - len(chosen)]
    hard = list_hard_floats(dtype)
    rows = (hard.view(unsigned) >> unsigned(width)).astype(np.int64)
    order = np.argsort(rows, kind="stable")
    again = np.arange(len(hard)) - np.searchsorted(rows[order], rows[order])  # which of its sign and exponent it is
    fits = again < each - len(chosen) - 1
    swept[rows[order][fits], each - 1 - again[fits]] = hard[order][fits]
    return swept.ravel()


def pair_every_value(dtype: str, of: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Two arrays (256, 256) that have every pair of values of an 8-bit dtype: ``dtype`` itself, or ``of`` as numbers of
    ``dtype``."""
    held = list_every_value(of or dtype).astype(get_numpy_dtype(dtype))
    first, second = np.meshgrid(held, held, indexing="ij")
    return first.copy(), second.copy()


def list_hard_floats(dtype: str) -> np.ndarray:
    """(n,) values of float32 or float64 at which a function is hard to compute, by construction.

    Those nearest to a multiple of π/2, one of each exponent, where a sine or cosine is as small as it can be
    (`_near_half_pi`); perfect squares and their neighbours, whose roots are exact or nearly midpoints; powers of two
    and ten times their spacing around 1 and around where exp(x) - 1, log(1 + x), x - tanh(x) and a hypotenuse cancel.
    """
    target = get_numpy_dtype(dtype)
    width = MANTISSA[dtype]
    roots = np.array([(1 << ((width + 1) // 2)) - k for k in range(1, 33)] + [3, 5, 7, 11, 101, 1001], dtype=np.float64)
    squares = (roots * roots).astype(target)
    small = np.array([s * m * 2.0**-k for k in range(1, width + 4) for m in (1.0, 1.5, 1.75) for s in (1.0, -1.0)])
    steps = np.concatenate([1.0 + small, small]).astype(target)
    at = np.concatenate([_near_half_pi(dtype), squares, steps])
    up, down = (np.nextafter(at, target.type(x)) for x in (np.inf, -np.inf))
    found = np.unique(np.concatenate([at, up, down, -at]))
    return found[np.isfinite(found)]


@functools.cache
def _near_half_pi(dtype: str) -> np.ndarray:
    """Of each exponent the value of a dtype nearest to a multiple of π/2, by the convergents of 2ᵉ·2/π (W. Kahan,
    "Minimizing q*m - n", 1983): of n/q ≈ 2ᵉ·2/π with q of as many bits as the significand, q·2ᵉ is nearly n·π/2."""
    width, largest = MANTISSA[dtype], int(np.log2(LARGEST[dtype]))
    bits = largest + 4 * width
    pi = _compute_scaled_pi(bits)
    found = []
    for exponent in range(-width, largest - width + 1):
        above, below = (1 << (bits + 1)) << max(exponent, 0), pi << max(-exponent, 0)  # 2ᵉ·2/π
        before, last, fits = 1, 0, 0  # denominators of convergents
        while below and not last >> (width + 1):
            fits = last
            (whole, rest), above = divmod(above, below), below
            below, before, last = rest, last, whole * last + before
        if fits:
            found.append(float(fits) * 2.0**exponent)
    return np.array(found).astype(get_numpy_dtype(dtype))


def _compute_scaled_pi(bits: int) -> int:
    """π·2^bits, by Machin's formula."""

    def arctan(n: int) -> int:
        power = (1 << (bits + 16)) // n
        total, k, sign = power, 1, 1
        while power:
            power //= n * n
            k, sign = k + 2, -sign
            total += sign * (power // k)
        return total

    return (16 * arctan(5) - 4 * arctan(239)) >> 16


def list_landmark_floats(dtype: str) -> np.ndarray:
    """(n,) values around which kernels change their path, with their neighbours on either side: ±1, halves, multiples
    of π/2, where exp, tanh, erf, sinh and sqrt overflow, underflow or saturate."""
    target = get_numpy_dtype(dtype)
    largest, smallest = np.log(LARGEST[dtype]), np.log(SMALLEST_NORMAL[dtype])
    quarter = [k * np.pi / 2 for k in (1, 2, 3, 4, 5, 101, 10007)]
    places = [0.5, 1.0, 1.5, 2.0, 2.5, 0.34657359, 9.0, 20.0, 88.0, largest, -smallest, *quarter]
    at = np.array([s * x for x in places for s in (1.0, -1.0)]).astype(target)
    found = at[:, None]
    near = []
    for step in NEIGHBOURS:
        moved = found
        for _ in range(abs(step)):
            moved = np.nextafter(moved, target.type(np.inf if step > 0 else -np.inf))
        near.append(moved)
    return np.unique(np.concatenate(near, axis=1))
