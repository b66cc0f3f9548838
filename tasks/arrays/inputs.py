"""Input values that find faults: named distributions over shapes and dtypes, reproducible from a generator.

    regular      moderate sizes around 1, distinct as far as the dtype has values, no zeros
    boundary     limits   signed zeros, ±1, the smallest subnormal and normal, the largest finite; of integers the limits
                 steps    powers of two and their neighbours one ulp away, whole numbers and ties at .5
    adversarial  magnitudes  sizes from subnormal to near overflow in one tensor
                 offset      a large offset with a spread of a few spacings: differences cancel
                 squares     a large offset with a spread of √ε of it: differences keep digits, those of squares keep none
                 saturating  ±1000 among moderate values, where exp, tanh and softmax saturate
                 ties        few distinct values, each many times
    nan          nan, plus, minus  NaN, +Inf or −Inf at head, middle and tail of regular values
                 mixed             NaN at the head, +Inf in the middle, −Inf at the tail

The indented names are themes: a sample has one, by its index (`choose_array_theme`), so that a row can be understood.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tasks.model import (
    DISTRIBUTIONS,
    EPS,
    LARGEST,
    PART,
    SMALLEST_NORMAL,
    get_numpy_dtype,
    is_complex_dtype,
    is_inexact_dtype,
)
from tasks.model.dtypes import get_integer_range

#: Of each generated distribution, the themes that its samples take in turn; a theme that comes later takes turns with
#: one that was there.
THEMES: dict[str, tuple[str, ...]] = {
    "regular": ("regular",),
    "boundary": ("limits", "steps"),
    "adversarial": ("magnitudes", "offset", "saturating", "ties", "magnitudes", "offset", "saturating", "squares"),
    "nan": ("nan", "plus", "minus", "mixed"),
}
#: Size of a saturating value: far beyond where exp, tanh, erf and softmax leave their interesting range.
SATURATING = 1e3


def choose_array_theme(distribution: str, index: int) -> str:
    """The theme of a distribution's sample number ``index``."""
    themes = THEMES[distribution]
    return themes[index % len(themes)]


def fill_array(
    shape: tuple[int, ...],
    dtype: str,
    distribution: str,
    rng: np.random.Generator,
    theme: str = "",
    mild: bool = False,
    most: float = np.inf,
    scale: float = 1.0,
) -> np.ndarray:
    """A C-contiguous array of ``shape`` and ``dtype`` (a name of `tasks.model.DTYPES`) with values of a distribution.

    theme: one of THEMES[distribution]; "" means all of a distribution's values together for "boundary", and otherwise
    a theme that ``rng`` draws. mild: sizes so bounded that squares of elements and their sum are
    representable: for ops that overflow inside in every implementation. most: largest size of a finite value, at least
    1, and the reciprocal of the smallest that is not 0; with mild alone. scale: factor of regular values, as small as
    mild allows. Complex values have both parts filled. Raises ValueError for an unknown distribution ("own" is not
    generated) or theme.
    """
    if distribution not in THEMES:
        raise ValueError(
            f"distribution {distribution!r} is none of {', '.join(d for d in DISTRIBUTIONS if d in THEMES)}"
        )
    if theme and theme not in THEMES[distribution]:
        raise ValueError(f"theme {theme!r} of {distribution} is none of {', '.join(THEMES[distribution])}")
    if not theme and distribution != "boundary":
        theme = THEMES[distribution][int(rng.integers(len(THEMES[distribution])))]
    count = int(np.prod(shape, dtype=np.int64))
    target = get_numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if is_complex_dtype(dtype):
        parts = [
            fill_array(shape, PART[dtype], distribution, rng, theme, mild, most, scale).astype(np.float64)
            for _ in range(2)
        ]
        made = np.empty(shape, np.complex128)
        made.real, made.imag = parts
        return made.astype(target)
    reach = most if mild else None
    if is_inexact_dtype(dtype):
        made = _fill_floats(count, dtype, distribution, theme, rng, reach, scale)
    else:
        made = _fill_integers(count, dtype, distribution, theme, rng, reach)
    return made.astype(target).reshape(shape)


def _fill_floats(
    count: int, dtype: str, distribution: str, theme: str, rng: np.random.Generator, most: float | None, scale: float
) -> np.ndarray:
    """(count,) float64 values that are values of ``dtype``."""
    target = get_numpy_dtype(dtype)
    low, high = _find_size_range(dtype, count, most)

    def round_to_dtype(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.clip(values, -LARGEST[dtype], LARGEST[dtype]).astype(target).astype(np.float64)

    if distribution == "boundary":
        wanted = (theme,) if theme else THEMES["boundary"]
        return _repeat_shuffled(
            round_to_dtype(np.concatenate([_LIMITS[t](dtype, low, high) for t in wanted])), count, rng
        )
    if theme == "magnitudes":
        exponents = rng.uniform(np.log2(low), np.log2(high), count)
        return round_to_dtype(_fill_signs(count, rng) * np.exp2(exponents))
    if theme in ("offset", "squares"):
        offset = np.exp2(np.floor(np.log2(min(high, 1e4)) - 1)) * float(rng.choice([-1.0, 1.0])) * rng.uniform(1.0, 1.5)
        if theme == "offset":
            # Twelve spacings of spread at the offset: what is left of a difference has three or four bits.
            return round_to_dtype(offset + abs(offset) * EPS[dtype] * rng.integers(-6, 7, count))
        # With half of √ε for a relative deviation, x − E[x] keeps half of its bits, and E[x²] − E[x]² none. What is
        # narrower than float32 is often summed in float32: of that the deviation is √ε there, or half a spacing.
        sums = min(EPS[dtype], EPS["float32"])
        spread = float(rng.choice([EPS[dtype] ** 0.5, max(sums**0.5, EPS[dtype])])) / 2
        return round_to_dtype(offset * (1 + spread * rng.standard_normal(count)))
    if theme == "saturating":
        far = rng.random(count) < 0.25
        values = np.where(
            far, _fill_signs(count, rng) * min(SATURATING, high), _fill_regular_values(count, round_to_dtype, rng)
        )
        return round_to_dtype(values)
    if theme == "ties":
        pool = _fill_regular_values(max(2, min(5, count // 2)), round_to_dtype, rng)
        return rng.choice(np.concatenate([pool, -pool[:1]]), count)
    values = _fill_regular_values(count, round_to_dtype, rng)
    if scale != 1:
        values = round_to_dtype(values * max(scale, low))
    return _insert_specials(values, theme) if distribution == "nan" else values


def _find_size_range(dtype: str, count: int, most: float | None) -> tuple[float, float]:
    """(smallest, largest) size of an element: the dtype's if ``most`` is None; else x², 1/x² and sums of ``count`` of
    them are normal, and sizes lie in [1/most, most]."""
    if most is None:
        return SMALLEST_NORMAL[dtype] * EPS[dtype], LARGEST[dtype] / 2
    few = max(64, 4 * count)
    low = max(1 / most, (few * SMALLEST_NORMAL[dtype]) ** 0.5)
    return min(1.0, low), max(1.0, min(most, (LARGEST[dtype] / few) ** 0.5))


def _fill_signs(count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2, count) * 2.0 - 1.0


def _fill_regular_values(
    count: int, rounded: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Normal values without zeros; what comes twice is drawn anew, as long as that helps."""
    values = rounded(rng.standard_normal(count))
    for spread in (1.0, 1.0, 1.5, 2.0, 2.5, 3.0):
        _, first = np.unique(values, return_index=True)
        again = np.ones(count, bool)
        again[first] = False
        again |= values == 0
        if not again.any():
            break
        values[again] = rounded(spread * rng.standard_normal(int(again.sum())))
    values[values == 0] = 1.0
    return values


def _list_limit_values(dtype: str, low: float, high: float) -> np.ndarray:
    normal, largest = SMALLEST_NORMAL[dtype], LARGEST[dtype]
    if high < largest / 2:  # mild
        sizes = [0.0, 1.0, low, high, 0.5, 3.0]
    else:
        sizes = [
            0.0,
            1.0,
            normal * EPS[dtype],
            normal * (1 - EPS[dtype]),
            normal,
            largest,
            largest * (1 - EPS[dtype]),
            3.0,
        ]
    return np.array([s * size for size in sizes for s in (1.0, -1.0)])


def _list_step_values(dtype: str, low: float, high: float) -> np.ndarray:
    eps, top = EPS[dtype], min(high, 2.0**12)
    powers = [2.0**k for k in range(-6, 13, 2) if low <= 2.0**k <= top]
    near = [p * f for p in powers for f in (1.0, 1.0 + eps, 1.0 - eps / 2)]
    ties = [k + 0.5 for k in (0, 1, 2, 3, 6, 7, 20, 21) if (k + 0.5) <= top] + [1.0, 2.0, 3.0, 5.0]
    return np.array([s * v for v in near + ties for s in (1.0, -1.0)])


_LIMITS: dict[str, Callable[[str, float, float], np.ndarray]] = {
    "limits": _list_limit_values,
    "steps": _list_step_values,
}


def _repeat_shuffled(pool: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The pool shuffled, as often as it takes: every value comes as soon as there is room for it."""
    rounds = [rng.permutation(pool) for _ in range(-(-count // len(pool)))]
    return np.concatenate(rounds)[:count] if rounds else pool[:0]


def _insert_specials(values: np.ndarray, theme: str) -> np.ndarray:
    """NaN or Inf at head, middle and tail."""
    kinds = {"nan": [np.nan] * 3, "plus": [np.inf] * 3, "minus": [-np.inf] * 3, "mixed": [np.nan, np.inf, -np.inf]}[
        theme
    ]
    n = len(values)
    for place, value in zip((0, n // 2, n - 1), kinds):
        if n > place >= 0 and (n > 2 or place == 0):
            values[place] = value
    return values


def _fill_integers(
    count: int, dtype: str, distribution: str, theme: str, rng: np.random.Generator, most: float | None
) -> np.ndarray:
    """(count,) integers; NaN and Inf have no counterpart: the values are regular then."""
    low, high = get_integer_range(dtype)
    if distribution == "boundary" and theme in ("limits", ""):
        pool = [0, 1, 2, high // 2, 7] if most is not None else [low, low + 1, 0, 1, 2, high // 2, high - 1, high]
        pool += [] if low == 0 else [-1]
        return _repeat_shuffled(np.array(sorted(set(pool)), dtype=_choose_integer_holder(dtype)), count, rng)
    if theme in ("steps", "magnitudes"):
        bits = -(-int(high).bit_length() // (2 if most is not None else 1))
        powers = [2**k + d for k in range(bits) for d in (-1, 0, 1) if 2**k + d <= high]
        powers += [] if low == 0 else [-p for p in powers]
        return _repeat_shuffled(np.array(sorted(set(powers)), dtype=_choose_integer_holder(dtype)), count, rng)
    if theme == "offset" and most is None:
        return np.array(high, _choose_integer_holder(dtype)) - rng.integers(0, min(13, high), count).astype(
            _choose_integer_holder(dtype)
        )
    if theme == "ties":
        return rng.choice(np.array([1, 2, 3] if low == 0 else [-2, 1, 3], dtype=_choose_integer_holder(dtype)), count)
    # Distinct where the dtype has so many; small enough that products of a few do not wrap in 32 bits.
    span = min(high, max(50, count))
    return _repeat_shuffled(np.concatenate([np.arange(1, span + 1), -np.arange(1, min(-low, span) + 1)]), count, rng)


def _choose_integer_holder(dtype: str) -> type:
    return np.uint64 if dtype == "uint64" else np.int64
