"""Dtypes: their spacing, range and family, by name."""

from __future__ import annotations

import numpy as np

_EXTENDED = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
)


def np_dtype(name: str) -> np.dtype:
    """numpy dtype of a dtype name of the farm ("bfloat16" included, through ml_dtypes).

    Raises TypeError for a name that is no dtype.
    """
    if name in _EXTENDED:
        import ml_dtypes

        try:
            return np.dtype(getattr(ml_dtypes, name))
        except AttributeError:
            raise TypeError(f"this ml_dtypes has no dtype {name!r}") from None
    if name == "str":
        return np.dtype(object)
    return np.dtype("complex64" if name == "complex32" else name)  # numpy has no complex32: it travels widened


#: Spacing of a dtype at 1 (the ε of error units), smallest normal, largest finite value, bits of the significand.
EPS: dict[str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "complex128": 2.0**-52,
    "complex64": 2.0**-23,
    "complex32": 2.0**-10,
    "tfloat32": 2.0**-10,  # a compute precision only: no array has it
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "float4_e2m1fn": 2.0**-1,
}
SMALLEST_NORMAL: dict[str, float] = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "complex128": 2.0**-1022,
    "complex64": 2.0**-126,
    "complex32": 2.0**-14,
    "float8_e4m3fn": 2.0**-6,
    "float8_e4m3fnuz": 2.0**-7,
    "float8_e5m2": 2.0**-14,
    "float8_e5m2fnuz": 2.0**-15,
    "float8_e8m0fnu": 2.0**-127,
    "float4_e2m1fn": 1.0,
}
LARGEST: dict[str, float] = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "complex128": float(np.finfo(np.float64).max),
    "complex64": float(np.finfo(np.float32).max),
    "complex32": 65504.0,
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float8_e8m0fnu": 2.0**127,
    "float4_e2m1fn": 6.0,
}


#: Every dtype by name. Exact by nature, then with a rounding error (tfloat32 is a compute precision only).
DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "int2",
    "int4",
    "uint2",
    "uint4",
    "str",
    *(name for name in EPS if name != "tfloat32"),
)


def is_complex(dtype: str) -> bool:
    return dtype.startswith("complex")


def is_inexact(dtype: str) -> bool:
    """True for floating and complex dtypes: those with a rounding error."""
    return dtype in EPS


def wide(dtype: str) -> str:
    """Dtype in which the reference of ``dtype`` is computed: float64, complex128, or the dtype itself."""
    return "complex128" if is_complex(dtype) else "float64" if is_inexact(dtype) else dtype
