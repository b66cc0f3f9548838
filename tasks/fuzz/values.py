"""Values of generated tensors, by class: ordinary numbers, ties, powers of two and their neighbours, tiny, large, extremes.

A class and a seed of 32 bits are choices; the elements are made of them by exact arithmetic alone, so that they are the
same bytes everywhere. The first class counts 1, 2, 3, … and asks for no seed: it is the simplest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.draw.choices import DrawnChoices
from tasks.draw.seeds import draw_seed_words
from tasks.model.dtypes import TABLE, get_integer_range, get_numpy_dtype


@dataclass(frozen=True)
class ValueDomain:
    """What the values of an input may be.

    low, high: bounds; classes: those that make sense for it beside counting and ordinary ones.
    """

    low: float = -np.inf
    high: float = np.inf
    classes: tuple[str, ...] = ("halves", "powers", "zeros", "tiny", "large")


#: Any number, for what selects, compares or moves: integers up to the ends of their dtype.
ANY = ValueDomain(classes=("halves", "powers", "zeros", "tiny", "large", "huge", "extreme"))
#: Numbers that may be summed and multiplied without overflow.
MILD = ValueDomain(-8.0, 8.0, ("halves", "powers", "zeros"))
#: For functions of one number.
REAL = ValueDomain()
POSITIVE = ValueDomain(2.0**-60, 2.0**60, ("halves", "powers", "tiny", "large"))

#: Exponents of tiny and of large numbers, such that a square is still a normal number, by significand's bits.
_REACH = {"float64": (-120, -60, 40, 120), "float32": (-60, -30, 20, 60), "bfloat16": (-60, -30, 20, 60)}
_SHORT = (-6, -4, 3, 6)
#: Classes that are of some families alone.
_FAMILIES = {
    "halves": ("float",),
    "tiny": ("float",),
    "huge": ("signed", "unsigned"),
    "extreme": ("signed", "unsigned"),
}


def draw_array(
    choose: DrawnChoices, dtype: str, shape: Sequence[int], domain: ValueDomain = REAL
) -> tuple[np.ndarray, str]:
    """(an array of a dtype and shape, the class of its values)."""
    family = TABLE[dtype].family
    names = ["counting", "ordinary", *(x for x in domain.classes if family in _FAMILIES.get(x, (family,)))]
    if family == "bool":
        names = names[:2]
    with choose.span("values"):
        name = choose.of(names)
        seed = 0 if name == "counting" else choose.int(0, 2**32 - 1)
    count = int(np.prod(shape, dtype=np.int64))
    made = (
        _draw_domain_floats(name, seed, count, dtype, domain)
        if family == "float"
        else _draw_domain_integers(name, seed, count, dtype, domain)
    )
    return made.astype(get_numpy_dtype(dtype)).reshape(tuple(shape)), name


def _draw_domain_floats(name: str, seed: int, count: int, dtype: str, domain: ValueDomain) -> np.ndarray:
    """float64 values within the domain."""
    least, less, more, most = _REACH.get(dtype, _SHORT)
    if name == "counting":
        made = (np.arange(count) % 7 + 1.0) * 0.5
    else:
        bits = draw_seed_words(seed, count)
        unit = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        sign = np.where(bits & np.uint64(1), -1.0, 1.0)
        if name == "ordinary":
            made = 8.0 * unit - 4.0
        elif name == "halves":  # ties of rounding, equal elements
            made = np.floor(unit * 17.0) * 0.5 - 4.0
        elif name == "powers":
            power = np.floor(unit * 12.0) - 6.0
            off = ((bits >> np.uint64(1)) % np.uint64(3)).astype(np.float64) - 1.0
            made = sign * np.ldexp(1.0 + off * (TABLE[dtype].eps or 0.0), power.astype(np.int64))
        elif name == "zeros":
            made = np.where(bits & np.uint64(6), sign * np.floor(unit * 3.0), sign * 0.0)
        else:
            low, high = (least, less) if name == "tiny" else (more, most)
            power = low + np.floor(unit * (high - low + 1))
            made = (
                sign
                * (1.0 + (bits & np.uint64(0x3E)).astype(np.float64) / 64.0)
                * np.ldexp(1.0, power.astype(np.int64))
            )
    if np.isinf(domain.low) and np.isinf(domain.high):
        return made
    return _fold_into_domain(made, domain)


def _fold_into_domain(made: np.ndarray, domain: ValueDomain) -> np.ndarray:
    """Values folded into bounds: by their size where only the sign is wrong, else by a remainder, which is exact."""
    low, high = domain.low, domain.high
    if low >= 0.0:
        made = np.abs(made)
    outside = (made < low) | (made > high)
    if not outside.any():
        return made
    start, width = low, high - low
    if width > 2.0**20:  # one of the bounds is far away: between 1 and 2, if they are within
        start, width = min(max(1.0, low), high - 1.0), 1.0
    return np.where(outside, start + np.fmod(np.abs(made), width), made)


def _draw_domain_integers(name: str, seed: int, count: int, dtype: str, domain: ValueDomain) -> np.ndarray:
    """int64 (uint64 for that dtype) values within the dtype and the domain."""
    if dtype == "bool":
        return (
            np.arange(count) % 2 == 0
            if name == "counting"
            else (draw_seed_words(seed, count) & np.uint64(1)).astype(bool)
        )
    least, most = get_integer_range(dtype)
    low, high = math.ceil(max(least, domain.low)), math.floor(min(most, domain.high))
    if name == "counting":
        steps = np.arange(count, dtype=np.int64) % 7 + 1
    else:
        bits = draw_seed_words(seed, count)
        near = (bits % np.uint64(17)).astype(np.int64) - 8
        if name == "powers":
            power = ((bits >> np.uint64(8)) % np.uint64(max(min(abs(high).bit_length() - 1, 40), 1))).astype(np.int64)
            steps = (np.int64(1) << power) + np.clip(near, -1, 1)
        elif name == "zeros":
            steps = np.where(bits & np.uint64(0x600), 0, near)
        elif name in ("large", "huge"):  # beyond what float32 counts, and beyond 32 bits
            reach = min(24 if name == "large" else 31, max(abs(high).bit_length() - 2, 1))
            steps = (1 << reach) + near
        elif name == "extreme":
            ends = np.where(bits & np.uint64(0x100), np.uint64(high % 2**64), np.uint64(low % 2**64))
            inward = np.abs(near).astype(np.uint64)
            made = np.where(bits & np.uint64(0x100), ends - inward, ends + inward)
            return made if dtype == "uint64" else made.view(np.int64)
        else:
            steps = near
        if least < 0 and name != "ordinary":
            steps = np.where(bits & np.uint64(0x2000), -steps, steps)
    if low > 2**62:  # of uint64 alone
        return np.uint64(low) + np.abs(steps).astype(np.uint64) % np.uint64(min(high - low + 1, 2**40))
    outside = (steps < low) | (steps > min(high, 2**63 - 1))
    steps = np.where(outside, low + np.abs(steps) % min(high - low + 1, 2**40), steps)
    return np.abs(steps) if least == 0 else steps
