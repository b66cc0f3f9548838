"""What a conversion between two dtypes is to give, exactly, and at which inputs nobody has said what that is.

To a float by rounding to nearest even (IEEE 754-2019, 4.3.1) and what ONNX's operator Cast (opset 28) says of numbers
out of range; to an integer towards zero; between integers modulo two to the number of bits; to bool what is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tasks.model.dtypes import (
    LARGEST,
    PACKED_BITS,
    PART,
    TABLE,
    get_integer_range,
    get_numpy_dtype,
    is_complex_dtype,
    is_inexact_dtype,
)

#: What has numbers of no sign, powers of two alone; and what has neither Inf nor NaN.
E8M0, FLOAT4 = "float8_e8m0fnu", "float4_e2m1fn"
#: Variants of a conversion to float8: by default what is out of range becomes the largest number.
UNSATURATED = "unsaturated"
_Rounding = Callable[[np.ndarray], np.ndarray]

#: How a number between two powers of two is rounded to one: x/2ᵉ in [1, 2).
_TO_POWER: Mapping[str, _Rounding] = {
    "up": lambda x: np.ceil(x),
    "down": lambda x: np.floor(x),
    "nearest": lambda x: np.floor(x + 0.5),
}
#: Variants of a conversion to powers of two: a way to round, and whether what is out of range is NaN.
POWERS = ("", "down", "nearest", "up-unsaturated", "down-unsaturated", "nearest-unsaturated")


@dataclass(frozen=True)
class ConvertedValues:
    """values: (n,) of the dtype where that does not round, else float64 or complex128; open: (n,) where nobody has said
    what they are."""

    values: np.ndarray
    open: np.ndarray


def list_cast_variants(to: str) -> tuple[str, ...]:
    """The ways to convert to a dtype."""
    if to == E8M0:
        return POWERS
    return ("", UNSATURATED) if to.startswith("float8") else ("",)


def convert_cast_values(given: np.ndarray, source: str, to: str, variant: str = "") -> ConvertedValues:
    """Numbers of the dtype ``source`` in the dtype ``to``; ``variant``: one of `list_cast_variants`. Raises ValueError
    for another one."""
    if variant not in list_cast_variants(to):
        raise ValueError(f"no conversion to {to} is called {variant!r}")
    with np.errstate(all="ignore"):
        if is_complex_dtype(source) or is_complex_dtype(to):
            return _cast_complex_parts(given, source, to, variant)
        if to == "bool":
            return ConvertedValues(given.astype(np.float64) != 0, np.zeros(given.shape, bool))
        if is_inexact_dtype(to):
            wide = _to_exact_float64(given, source)
            if to == E8M0:
                return _round_to_power_of_two(wide, source, variant)
            found = _convert_to_float(wide, given, to, variant)
            open_ = _round_cast_twice(wide, found, source, to, lambda x: _convert_to_float(x, x, to, variant))
            if to == FLOAT4:  # its NaN is 6 in ONNX's documentation, and 0 in its reference implementation
                open_ |= np.isnan(wide)
            return ConvertedValues(found, open_)
        return _convert_to_integer(given, source, to)


def _cast_complex_parts(given: np.ndarray, source: str, to: str, variant: str) -> ConvertedValues:
    """Of a complex number to another both parts; to a real one its real part, to a bool whether either is not 0."""
    part = PART.get(source, source)
    real, imaginary = (given.real, given.imag) if is_complex_dtype(source) else (given, np.zeros(given.shape))
    if to == "bool":
        return ConvertedValues((real != 0) | (imaginary != 0), np.zeros(given.shape, bool))
    found = convert_cast_values(real, part, PART.get(to, to), variant)
    if not is_complex_dtype(to):
        return found
    other = convert_cast_values(imaginary, part, PART[to], variant)
    both = np.empty(given.shape, np.complex128)
    both.real, both.imag = found.values, other.values
    return ConvertedValues(both, found.open | other.open)


def _to_exact_float64(given: np.ndarray, source: str) -> np.ndarray:
    """As float64; what has more digits than that with its last bit set, so that no narrower rounding is misled (S.
    Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums", 2008: rounding to odd)."""
    if source not in ("int64", "uint64"):
        return np.asarray(given.astype(np.float64))
    size = np.where(given < 0, np.uint64(0) - given.astype(np.uint64), given.astype(np.uint64))
    low = np.uint64((1 << 11) - 1)
    odd = (size & ~low) | np.where(size & low, np.uint64(1 << 11), np.uint64(0))
    many = size >= np.uint64(1 << 53)
    return np.asarray(np.where(given < 0, -1.0, 1.0) * np.where(many, odd, size).astype(np.float64))


def _round_to_nearest(wide: np.ndarray, to: str) -> np.ndarray:
    """Rounded to the digits of a dtype, to nearest even, whatever its largest number is."""
    row = TABLE[to]
    assert row.digits is not None and row.lowest is not None
    exponent = np.maximum(np.frexp(wide)[1] - 1, row.lowest)
    quantum = np.ldexp(1.0, exponent - row.digits)
    return np.where(np.isfinite(wide) & (wide != 0), np.rint(wide / quantum) * quantum, wide)


def _convert_to_float(wide: np.ndarray, given: np.ndarray, to: str, variant: str) -> np.ndarray:
    if to == "float64":
        return np.asarray(given.astype(np.float64))
    found, largest = _round_to_nearest(wide, to), LARGEST[to]
    over = np.abs(found) > largest
    if to == FLOAT4:  # "Float stored in 4 bits", ONNX's documentation, table of Cast
        return np.where(over, np.copysign(largest, wide), found)
    if to.startswith("float8"):
        beyond = np.inf if to == "float8_e5m2" else np.nan
        return np.where(over, np.copysign(beyond if variant else largest, wide), found)
    return np.where(over, np.copysign(np.inf, wide), found)


def _round_cast_twice(wide: np.ndarray, found: np.ndarray, source: str, to: str, convert: _Rounding) -> np.ndarray:
    """Where it is another number if it is rounded to float32 first, as most runtimes do: ties and edges that float32
    cannot tell."""
    if TABLE[to].bits > 16 or (TABLE[source].bits <= 32 and TABLE[source].family == "float"):
        return np.zeros(wide.shape, bool)
    again = convert(wide.astype(np.float32).astype(np.float64))
    return np.asarray((again != found) & ~(np.isnan(again) & np.isnan(found)))


def _round_to_power_of_two(wide: np.ndarray, source: str, variant: str) -> ConvertedValues:
    """To powers of two (OCP Microscaling Formats 1.0, 5.4.1). Open are what is not positive and, but for the two ways
    that ONNX's table describes, what is out of range; so is what is beyond the largest and is rounded to it, which that
    table calls NaN."""
    how, _, unsaturated = (variant or "up").partition("-")
    lowest, largest = 2.0**-127, LARGEST[E8M0]

    def convert(x: np.ndarray) -> np.ndarray:
        scale = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, -127))
        finite = np.isfinite(x) & (x > 0)
        return np.where(finite, _TO_POWER[how](np.where(finite, x / scale, 1.0)) * scale, x)

    found = convert(wide)
    over, under = wide > largest, wide < lowest
    twice = _round_cast_twice(wide, found, source, E8M0, convert)
    if how == "up" and not unsaturated:
        found, out = np.where(over, largest, np.maximum(found, lowest)), np.zeros(wide.shape, bool)
    elif how == "nearest" and unsaturated:
        out = under | (over & (found <= largest))
        found = np.where(over, np.nan, found)
    else:
        out = over | under
    return ConvertedValues(found, (out | twice | ~(wide > 0)) & ~np.isnan(wide))


def _convert_to_integer(given: np.ndarray, source: str, to: str) -> ConvertedValues:
    low, high = get_integer_range(to)
    if is_inexact_dtype(source):
        whole = np.trunc(given.astype(np.float64))
        # float64 has no 2⁶³ − 1, and so none between it and 2⁶³.
        bad = ~((whole >= float(low)) & (whole < float(high + 1)))
        if to in PACKED_BITS:  # ONNX's reference implementation has rounded a fraction to an int4, and has cut it off
            bad |= whole != given.astype(np.float64)
        return ConvertedValues(
            np.where(bad, 1.0, whole).astype(select_storage_dtype(to)).astype(get_numpy_dtype(to)), bad
        )
    bits = TABLE[to].bits
    made = given.astype(np.int64 if source != "uint64" else np.uint64).astype(np.uint64) & np.uint64((1 << bits) - 1)
    if low < 0:
        made = np.where(made > np.uint64(high), made - np.uint64(1 << bits) if bits < 64 else made, made).astype(
            np.int64
        )
    return ConvertedValues(
        made.astype(select_storage_dtype(to)).astype(get_numpy_dtype(to)), np.zeros(given.shape, bool)
    )


def select_storage_dtype(to: str) -> str:
    """A dtype of NumPy's own that holds an integer one."""
    return to if TABLE[to].numpy == "own" else "int8" if TABLE[to].family == "signed" else "uint8"
