"""Dtypes: one row each. What else there is to know of a dtype by its name is derived here; a new dtype is a new row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dtype:
    """What is known of one dtype.

    family: "bool", "unsigned", "signed", "text", "float", "complex", or "precision" (compute only: no array has it).
    bits: of one element. digits: binary digits behind the point of a significand (None: no rounding error); lowest: the
    exponent of the smallest normal number; largest: the largest finite one. classic: (rtol, atol) of
    torch.testing.assert_close (torch/testing/_comparison.py), where it has its own. onnx: the name in
    TensorProto.DataType and its number, which never changes. numpy: "own" (numpy has it), "ml_dtypes" (that has it),
    or the name of the dtype in which it travels.
    """

    name: str
    family: str
    bits: int
    digits: int | None = None
    lowest: int | None = None
    largest: float | None = None
    classic: tuple[float, float] | None = None
    onnx: tuple[str, int] | None = None
    numpy: str = "own"

    @property
    def eps(self) -> float | None:
        """Spacing at 1: the ε of error units."""
        return None if self.digits is None else 2.0**-self.digits


_TOP = {64: float(np.finfo(np.float64).max), 32: float(np.finfo(np.float32).max), 16: 65504.0}
_WIDE, _SINGLE, _HALF, _BRAIN = (1e-7, 1e-7), (1.3e-6, 1e-5), (1e-3, 1e-5), (1.6e-2, 1e-5)
_ML = "ml_dtypes"

TABLE: dict[str, Dtype] = {
    row.name: row
    for row in (
        Dtype("bool", "bool", 8, onnx=("BOOL", 9)),
        Dtype("uint8", "unsigned", 8, onnx=("UINT8", 2)),
        Dtype("uint16", "unsigned", 16, onnx=("UINT16", 4)),
        Dtype("uint32", "unsigned", 32, onnx=("UINT32", 12)),
        Dtype("uint64", "unsigned", 64, onnx=("UINT64", 13)),
        Dtype("int8", "signed", 8, onnx=("INT8", 3)),
        Dtype("int16", "signed", 16, onnx=("INT16", 5)),
        Dtype("int32", "signed", 32, onnx=("INT32", 6)),
        Dtype("int64", "signed", 64, onnx=("INT64", 7)),
        Dtype("int2", "signed", 2, onnx=("INT2", 26), numpy=_ML),
        Dtype("int4", "signed", 4, onnx=("INT4", 22), numpy=_ML),
        Dtype("uint2", "unsigned", 2, onnx=("UINT2", 25), numpy=_ML),
        Dtype("uint4", "unsigned", 4, onnx=("UINT4", 21), numpy=_ML),
        Dtype("str", "text", 0, onnx=("STRING", 8), numpy="object"),
        Dtype("float64", "float", 64, 52, -1022, _TOP[64], _WIDE, ("DOUBLE", 11)),
        Dtype("float32", "float", 32, 23, -126, _TOP[32], _SINGLE, ("FLOAT", 1)),
        Dtype("float16", "float", 16, 10, -14, _TOP[16], _HALF, ("FLOAT16", 10)),
        Dtype("bfloat16", "float", 16, 7, -126, float.fromhex("0x1.fep127"), _BRAIN, ("BFLOAT16", 16), _ML),
        Dtype("complex128", "complex", 128, 52, -1022, _TOP[64], _WIDE, ("COMPLEX128", 15)),
        Dtype("complex64", "complex", 64, 23, -126, _TOP[32], _SINGLE, ("COMPLEX64", 14)),
        Dtype("complex32", "complex", 32, 10, -14, _TOP[16], _HALF, numpy="complex64"),  # it travels widened
        Dtype("tfloat32", "precision", 19, 10),
        Dtype("float8_e4m3fn", "float", 8, 3, -6, 448.0, onnx=("FLOAT8E4M3FN", 17), numpy=_ML),
        Dtype("float8_e4m3fnuz", "float", 8, 3, -7, 240.0, onnx=("FLOAT8E4M3FNUZ", 18), numpy=_ML),
        Dtype("float8_e5m2", "float", 8, 2, -14, 57344.0, onnx=("FLOAT8E5M2", 19), numpy=_ML),
        Dtype("float8_e5m2fnuz", "float", 8, 2, -15, 57344.0, onnx=("FLOAT8E5M2FNUZ", 20), numpy=_ML),
        Dtype("float8_e8m0fnu", "float", 8, 0, -127, 2.0**127, onnx=("FLOAT8E8M0", 24), numpy=_ML),
        Dtype("float6_e3m2fn", "float", 6, 2, -2, 28.0, onnx=("FLOAT6E3M2", 28), numpy=_ML),
        Dtype("float6_e2m3fn", "float", 6, 3, 0, 7.5, onnx=("FLOAT6E2M3", 27), numpy=_ML),
        Dtype("float4_e2m1fn", "float", 4, 1, 0, 6.0, onnx=("FLOAT4E2M1", 23), numpy=_ML),
    )
}

#: Every dtype that an array may have, by name.
DTYPES = tuple(row.name for row in TABLE.values() if row.family != "precision")
#: ε, smallest normal, largest finite value, of those with a rounding error.
EPS: dict[str, float] = {row.name: row.eps for row in TABLE.values() if row.eps is not None}
SMALLEST_NORMAL: dict[str, float] = {row.name: 2.0**row.lowest for row in TABLE.values() if row.lowest is not None}
LARGEST: dict[str, float] = {row.name: row.largest for row in TABLE.values() if row.largest is not None}
#: torch.testing.assert_close's default (rtol, atol); everything else must be equal.
CLASSIC: dict[str, tuple[float, float]] = {row.name: row.classic for row in TABLE.values() if row.classic}
#: Dtype of the real and of the imaginary part.
PART = {
    row.name: next(
        x.name for x in TABLE.values() if x.family == "float" and 2 * x.bits == row.bits and x.numpy == "own"
    )
    for row in TABLE.values()
    if row.family == "complex"
}
#: Dtypes that numpy has by itself (an ml_dtypes dtype may claim a kind of numpy's, so names decide).
NATIVE = frozenset(name for name in DTYPES if TABLE[name].numpy == "own")
#: TensorProto.DataType of ONNX, and back.
ELEMENT_TYPE: dict[str, int] = {row.name: row.onnx[1] for row in TABLE.values() if row.onnx}
DTYPE_OF_ELEMENT = {number: name for name, number in ELEMENT_TYPE.items()}
#: Bits of the dtypes that are packed several to a byte, lowest bits first (ml_dtypes keeps one to a byte).
PACKED_BITS = {name: TABLE[name].bits for name in DTYPES if 0 < TABLE[name].bits < 8}


@functools.cache
def get_numpy_dtype(name: str) -> np.dtype:
    """numpy dtype of a dtype name of the farm ("bfloat16" included, through ml_dtypes).

    Raises TypeError for a name that is no dtype.
    """
    holder = TABLE[name].numpy if name in TABLE else "own"
    if holder == _ML:
        import ml_dtypes

        try:
            return np.dtype(getattr(ml_dtypes, name))
        except AttributeError:
            raise TypeError(f"this ml_dtypes has no dtype {name!r}") from None
    return np.dtype(name if holder == "own" else holder)


@functools.cache  # numpy makes the name anew each time
def name_numpy_dtype(dtype: np.dtype) -> str:
    """The farm's name of a numpy dtype."""
    return "str" if dtype.kind in "OUS" else dtype.name


def is_complex_dtype(dtype: str) -> bool:
    return dtype in PART


def is_inexact_dtype(dtype: str) -> bool:
    """Whether a dtype rounds: floating and complex ones do."""
    return dtype in EPS


def get_wide_dtype(dtype: str) -> str:
    """Dtype in which the reference of ``dtype`` is computed: float64, complex128, or the dtype itself."""
    return "complex128" if is_complex_dtype(dtype) else "float64" if is_inexact_dtype(dtype) else dtype


def does_dtype_hold(dtype: str, other: str) -> bool:
    """Whether a floating dtype represents every number of another real dtype."""
    row, given = TABLE[dtype], TABLE[other]
    assert row.digits is not None and row.lowest is not None and row.largest is not None
    if given.family == "bool":
        return True
    if given.digits is None:
        low, high = get_integer_range(other)
        return max(-low, high).bit_length() <= row.digits + 1 and max(-low, high) <= row.largest
    assert given.lowest is not None and given.largest is not None
    subnormal = row.lowest - row.digits <= given.lowest - given.digits
    return row.digits >= given.digits and subnormal and row.largest >= given.largest


def get_integer_range(dtype: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    row = TABLE[dtype]
    return (0, 2**row.bits - 1) if row.family == "unsigned" else (-(2 ** (row.bits - 1)), 2 ** (row.bits - 1) - 1)


def round_to_digits(x: np.ndarray, eps: float, round: Callable[[np.ndarray], np.ndarray] = np.round) -> np.ndarray:
    """float64 numbers with the digits of a format of a machine epsilon (2⁻ⁿ), to the nearest with ties to even or as
    ``round`` makes integers of them; the range is left as it is."""
    significand, exponent = np.frexp(x)
    unit = eps / 2  # the significand lies between a half and one
    return np.asarray(np.ldexp(round(significand / unit) * unit, exponent))


def round_to_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 or complex128 ``values`` rounded to ``dtype``, as wide as before."""
    if dtype == "bfloat16":  # by hand, through float32 as ml_dtypes does it: a script may have to do without that
        bits = values.astype(np.float32).view(np.uint32)
        up = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        cut = (np.where(np.isnan(values), bits, up) & np.uint32(0xFFFF0000)).view(np.float32)
        return cut.astype(values.dtype)
    return values.astype(get_numpy_dtype(dtype)).astype(values.dtype)


def format_number(number: float) -> str:
    """A number with enough digits to tell it from its neighbours: nine if float32 holds it, else float64's."""
    x = float(number)
    with np.errstate(over="ignore"):
        return f"{x:.9g}" if np.float32(x) == x else repr(x)
