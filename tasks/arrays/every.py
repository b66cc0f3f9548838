"""Every value of a dtype: all bit patterns of up to 16 bits; of 32 and 64 a sweep over all signs and exponents.

A sweep has 2**20 values. Each of its (sign, exponent) pairs, zeros, subnormals, infinities and NaNs among them, has the
mantissas around powers of two, in float64 every third of them, and random ones. Some places of the last exponent, whose
patterns are all NaN but for one, are taken by the values around which kernels change their path (`landmarks`).
"""

from __future__ import annotations

import numpy as np

from tasks.model import LARGEST, SMALLEST_NORMAL, is_complex, is_inexact, np_dtype
from tasks.model.dtypes import PACKED_BITS, integers

#: Values of a sweep over a dtype of more than 16 bits.
SWEEP = 1 << 20
#: Bits of the mantissa as it is stored.
MANTISSA = {"float32": 23, "float64": 52}
#: Neighbours in ulps on either side of a landmark.
NEIGHBOURS = (-2, -1, 0, 1, 2)


def has(dtype: str) -> bool:
    """Whether a dtype's values can be tried: any real number of at most 16 bits, float32 and float64."""
    kind = np_dtype(dtype)
    return dtype in MANTISSA or (not is_complex(dtype) and dtype not in ("bool", "str") and kind.itemsize <= 2)


def values(dtype: str, seed: int = 0) -> np.ndarray:
    """(n,) every value of ``dtype``, n = 2 to the number of its bits, or the sweep of `SWEEP`, whose random mantissas are of ``seed``.

    Raises ValueError for a dtype that `has` refuses.
    """
    if not has(dtype):
        raise ValueError(f"{dtype}: not every value of it can be tried")
    target = np_dtype(dtype)
    if dtype not in MANTISSA:
        if dtype in PACKED_BITS and not is_inexact(dtype):  # how a byte holds a negative one is the library's affair
            low, high = integers(dtype)
            return np.arange(low, high + 1).astype(target)
        bits = PACKED_BITS.get(dtype, 8 * target.itemsize)
        return np.arange(1 << bits, dtype=f"u{target.itemsize}").view(target)
    return _sweep(dtype, seed)


def _sweep(dtype: str, seed: int) -> np.ndarray:
    width, target = MANTISSA[dtype], np_dtype(dtype)
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
    near = landmarks(dtype)
    swept[-1, 1 + len(chosen) :][: len(near)] = near[: each - 1 - len(chosen)]
    return swept.ravel()


def landmarks(dtype: str) -> np.ndarray:
    """(n,) values around which kernels change their path, with their neighbours on either side: ±1, halves, multiples of π/2,
    where exp, tanh, erf, sinh and sqrt overflow, underflow or saturate."""
    target = np_dtype(dtype)
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
