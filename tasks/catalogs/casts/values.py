"""What a conversion is given: every value of a dtype of up to 16 bits; of a wider one those around which the result changes."""

from __future__ import annotations

import numpy as np

from tasks.arrays import every_value
from tasks.model.dtypes import LARGEST, PART, get_integer_range, get_numpy_dtype, is_complex_dtype, is_inexact_dtype

#: Values of a wide dtype's sweep that are kept: one in so many.
_ONE_OF = 16
#: Float8 of whose values both parts of a complex number are.
_PARTS = "float8_e5m2"


def make_cast_inputs(source: str, to: str, seed: int = 0) -> np.ndarray:
    """(n,) values of ``source`` for a conversion to ``to``.

    Of a wide one: all numbers of a narrow ``to``, the midpoints between them, the neighbours of all these, and a sweep
    over ``source``.
    """
    if source == "bool":
        return np.array([False, True])
    if is_complex_dtype(source):
        real, imaginary = (
            x.astype(get_numpy_dtype(PART[source])).reshape(-1) for x in every_value.pair_every_value(_PARTS)
        )
        made = np.empty(real.shape, get_numpy_dtype(source))
        made.real, made.imag = real, imaginary
        return made
    if source not in every_value.MANTISSA and every_value.has_every_value(source):
        return every_value.list_every_value(source)
    near = list_values_around(PART.get(to, to), seed)
    # What only float64 tells from a midpoint, a runtime may round twice.
    step = "float32" if get_numpy_dtype(to).itemsize <= 2 else ""
    return (
        sweep_cast_floats(source, near, seed, step)
        if is_inexact_dtype(source)
        else _list_wide_integers(source, near, seed)
    )


def list_values_around(to: str, seed: int) -> np.ndarray:
    """float64 numbers of ``to`` in order, what comes after the largest, and the midpoints between them."""
    if to == "bool":
        held = np.array([0.0, 1.0])
    elif every_value.has_every_value(to):
        with np.errstate(all="ignore"):
            held = every_value.list_every_value(to, seed).astype(np.float64)
        held = held[::_ONE_OF] if to in every_value.MANTISSA else held
    else:
        low, high = get_integer_range(to)
        held = np.array([s * 2.0**k + d for k in range(64) for s in (1, -1) for d in (-1, 0, 1)])
        held = np.clip(held, low, high)
    held = np.unique(held[np.isfinite(held)])
    if is_inexact_dtype(to) and len(held) > 1:
        top = 2 * LARGEST[to] - held[-2] if to not in every_value.MANTISSA else LARGEST[to]
        held = np.concatenate([held, [top, -top]])
    held = np.unique(np.concatenate([held, -held]))
    middle = held[:-1] / 2 + held[1:] / 2
    return np.unique(np.concatenate([held, middle]))


def sweep_cast_floats(source: str, around: np.ndarray, seed: int, step: str = "") -> np.ndarray:
    """A sweep over float32 or float64, the numbers of ``list_values_around``, and their neighbours on either side in
    ``step``, by default ``source``."""
    target, finer = get_numpy_dtype(source), get_numpy_dtype(step or source)
    with np.errstate(all="ignore"):
        at = around.astype(target)
        at = at[np.isfinite(at)]
        near = [np.nextafter(at.astype(finer), finer.type(x)).astype(target) for x in (np.inf, -np.inf)]
    return np.concatenate([every_value.list_every_value(source, seed)[::_ONE_OF], at, *near])


def _list_wide_integers(source: str, around: np.ndarray, seed: int) -> np.ndarray:
    """Of 32 and 64 bits: those of ``list_values_around`` in their range, powers of two, random ones of every length,
    and the neighbours of all."""
    low, high = get_integer_range(source)
    target = get_numpy_dtype(source)
    whole = around[(around >= float(low)) & (around < float(high + 1))]
    powers = [s * 2**k for k in range(target.itemsize * 8) for s in (1, -1)]
    rng = np.random.default_rng((seed, 7))
    drawn = [int(x) >> int(k) for x, k in zip(rng.integers(0, 1 << 63, 4096, np.uint64), rng.integers(0, 63, 4096))]
    some = np.array([x for x in [*powers, *drawn, *(-x for x in drawn), low, high] if low <= x <= high], target)
    at = np.concatenate([np.trunc(whole).astype(target), some])
    up, down = at[at < high] + target.type(1), at[at > low] - target.type(1)
    return np.unique(np.concatenate([at, up, down]))
