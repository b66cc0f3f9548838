"""Quantising and back as ONNX defines it, over all inputs, with scales and zero points at which kernels differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tasks.arrays import every_value
from tasks.catalogs.casts import rules, values
from tasks.model.dtypes import get_integer_range, get_numpy_dtype, is_inexact_dtype, round_to_dtype

#: (scale, which zero point), by variant: no power of two, so that a product with its inverse differs; zero points at
#: either end; scales whose inverse overflows (of float16), and that make nearly all numbers 0 or too large.
SCALES: Mapping[str, tuple[float, str]] = {
    "tenth": (0.1, "none"),
    "third_lowest": (1 / 3, "lowest"),
    "seven_highest": (7.0, "highest"),
    "half_odd": (0.5, "odd"),
    "smallest": (2.0**-14, "none"),
    "subnormal": (3 * 2.0**-24, "odd"),
    "largest": (40000.0, "none"),
}
#: Ranges of what is quantised with a scale of its own: (smallest, largest).
RANGES: Mapping[str, tuple[float, float]] = {
    "both": (-3.7, 9.1),
    "positive": (2.0, 777.0),
    "negative": (-0.37, -0.01),
    "wide": (-1e37, 2e37),
    "narrow": (-1.2e-30, 2.3e-30),
}
#: How near to a tie, in steps, nothing is given: float32 and an exact quotient round to either side there.
_TIE = 1e-3


@dataclass(frozen=True)
class QuantisedCast:
    """x: what is given; scale, zero: (), the constants; y: what is to come out (float64 where it is a float)."""

    x: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    y: np.ndarray


def make_quantised_zero_point(which: str, to: str) -> np.ndarray:
    """(): one of a dtype; "none" is 0, as it is of every float."""
    if is_inexact_dtype(to) or which == "none":
        return np.zeros((), get_numpy_dtype(to))
    low, high = get_integer_range(to)
    return np.array(
        {"lowest": low, "highest": high, "odd": (low + high) // 2 - 3 if high > 15 else low + 5}[which],
        get_numpy_dtype(to),
    )


def quantise_values(source: str, to: str, variant: str, seed: int) -> QuantisedCast:
    """Numbers of a float dtype quantised to ``to``: what saturate(round(x / scale) + zero point) is, the quotient in
    the scale's dtype (ONNX, QuantizeLinear). Where an exact quotient rounds otherwise, and of NaN, nothing is asked."""
    scale, zero = _make_quantise_constants(source, to, variant)
    x, step = _make_quantised_inputs(source, to, zero, float(scale), seed), float(scale)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact = wide / step
        quotient = _round_to_given(exact, source)
        if is_inexact_dtype(to):
            found, left = (rules.convert_cast_values(q, "float64", to) for q in (quotient, exact))
            y, other = found.values, left.values
            open_ = found.open | left.open
        else:
            low, high = get_integer_range(to)
            y, other = (np.clip(np.rint(q) + float(zero), low, high) for q in (quotient, exact))
            open_ = np.isnan(wide)
        same = (y == other) | (np.isnan(y) & np.isnan(other))
        x = np.where(open_ | ~same, np.zeros((), x.dtype), x)
        y = np.where(open_ | ~same, float(zero), y)
    return QuantisedCast(
        x,
        scale,
        zero,
        y if is_inexact_dtype(to) else y.astype(rules.select_storage_dtype(to)).astype(get_numpy_dtype(to)),
    )


def dequantise_values(source: str, to: str, variant: str) -> QuantisedCast:
    """Every value of ``source`` as (x − zero point)·scale, rounded to ``to`` once (ONNX, DequantizeLinear). In which
    dtype the difference is taken it does not say: one that ``to`` does not hold is open."""
    scale, zero = _make_quantise_constants(to, source, variant)
    x = every_value.list_every_value(source)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        held = np.logical_and.reduce([_round_to_given(v, to) == v for v in (wide, wide - float(zero))]) | ~np.isfinite(
            wide
        )
        held &= _round_to_given(zero.astype(np.float64), to) == float(zero)
        x = np.where(held, x, zero)
        y = _round_to_given((x.astype(np.float64) - float(zero)) * float(scale), to)
    return QuantisedCast(x, scale, zero, y)


def quantise_dynamically(variant: str, seed: int) -> QuantisedCast:
    """65,536 float32 numbers of a range with the scale and zero point of it, in uint8 (ONNX, DynamicQuantizeLinear)."""
    low, high = RANGES[variant]
    x = np.random.default_rng((seed, 11)).uniform(low, high, 1 << 16).astype(np.float32)
    x[:2] = low, high
    span = max(float(x.max()), 0.0) - min(float(x.min()), 0.0)
    scale = span / 255.0
    zero = np.clip(np.rint(-min(float(x.min()), 0.0) / scale), 0, 255)
    quotient = x.astype(np.float64) / scale
    x = np.where(np.abs(quotient - np.floor(quotient) - 0.5) < _TIE, np.float32(high), x).astype(np.float32)
    y = np.clip(np.rint(x.astype(np.float64) / scale) + zero, 0, 255)
    return QuantisedCast(x, np.asarray(scale), zero.astype(np.uint8), y.astype(np.uint8))


def _make_quantise_constants(number: str, to: str, variant: str) -> tuple[np.ndarray, np.ndarray]:
    scale, which = SCALES[variant]
    return np.array(scale).astype(get_numpy_dtype(number)), make_quantised_zero_point(which, to)


def _round_to_given(wide: np.ndarray, dtype: str) -> np.ndarray:
    return round_to_dtype(wide, dtype) if dtype != "float64" else wide


def _make_quantised_inputs(source: str, to: str, zero: np.ndarray, scale: float, seed: int) -> np.ndarray:
    """Every value of 16 bits; of float32 what lies at, between and beside the steps, and a sweep."""
    if source not in every_value.MANTISSA:
        return every_value.list_every_value(source)
    steps = (
        (values.list_values_around(to, seed) - float(zero)) * scale
        if not is_inexact_dtype(to)
        else values.list_values_around(to, seed) * scale
    )
    return values.sweep_cast_floats(source, steps, seed)
