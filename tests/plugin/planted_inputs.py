"""Sixty kernels that are wrong at a few of 65,536 inputs, each as what becomes of the right results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

#: From the inputs, broadcast and in their dtype, and the right results as float64, the wrong ones.
Kernel = Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray]


class Fault(NamedTuple):
    """kind: what all its inputs have in common; op: of the torch catalog; wrong: the kernel."""

    kind: str
    op: str
    dtype: str
    wrong: Kernel


def _changed(where: Callable[[Sequence[np.ndarray]], np.ndarray], to: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    return lambda given, right: np.where(where(given), to(right), right)


def _value(x: float, factor: float = 1.1) -> Kernel:
    return _changed(lambda given: given[0] == given[0].dtype.type(x), lambda y: y * factor)


def _negated(x: float) -> Kernel:
    return _value(x, -1.0)


def _pattern(bits: int, y: float) -> Kernel:
    """One pattern of bits: a NaN with one payload."""
    return _changed(
        lambda given: given[0].view(f"u{given[0].dtype.itemsize}") == bits, lambda right: np.full_like(right, y)
    )


def _becomes(x: float, y: float) -> Kernel:
    return _changed(lambda given: given[0] == given[0].dtype.type(x), lambda right: np.full_like(right, y))


def _exponent(factor: float) -> Kernel:
    """The eight subnormal numbers from the eighth on, of both signs: one exponent."""

    def where(given: Sequence[np.ndarray]) -> np.ndarray:
        size = given[0].view(f"u{given[0].dtype.itemsize}") & np.uint16(0x7FFF)
        return np.asarray((size >= 8) & (size < 16))

    return _changed(where, lambda y: y * factor)


def _pair(a: float, b: float, to: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    return _changed(lambda given: (given[0] == given[0].dtype.type(a)) & (given[1] == given[1].dtype.type(b)), to)


_H, _B = "float16", "bfloat16"
_NAN = {_H: 0x7E55, _B: 0xFFD5}

_VALUES = (
    ("exp", _H, 1.5),
    ("sin", _B, 2.0),
    ("log", _H, 3.0),
    ("tanh", _B, 0.5),
    ("sqrt", _H, 2.0),
    ("cos", _H, 10.0),
    ("erf", _B, 1.0),
    ("sigmoid", _H, -4.0),
    ("reciprocal", _B, 3.0),
    ("log1p", _H, 0.001),
    ("nn.functional.gelu", _H, -1.5),
    ("nn.functional.silu", _B, 2.5),
)
_EXPONENTS = (
    ("neg", _H, 0.0),
    ("abs", _B, 2.0),
    ("nn.functional.relu", _H, 0.0),
    ("sin", _H, 0.0),
    ("tanh", _H, 2.0),
    ("expm1", _H, 0.0),
    ("sqrt", _H, 1.25),
    ("log", _B, 1.1),
    ("asinh", _H, 0.0),
    ("nn.functional.hardtanh", _B, 0.0),
)
_SIGNS = (
    ("sin", _H, -2.0),
    ("tan", _B, 1.25),
    ("atan", _H, -0.75),
    ("neg", _B, 7.0),
    ("erf", _H, -0.5),
    ("sinh", _B, 3.0),
    ("asin", _H, -0.25),
    ("asinh", _B, -2.0),
    ("nn.functional.softsign", _H, 4.0),
    ("deg2rad", _B, -90.0),
)
_NANS = (
    ("nn.functional.relu", _H),
    ("exp", _B),
    ("sqrt", _H),
    ("tanh", _B),
    ("abs", _H),
    ("sigmoid", _B),
    ("log", _H),
    ("floor", _B),
)
_ENDS = (
    ("sigmoid", _H, np.inf, 0.5),
    ("tanh", _B, -np.inf, 0.0),
    ("atan", _H, np.inf, 1.0),
    ("exp", _B, -np.inf, 1.0),
    ("sqrt", _B, 3.3895313892515355e38, 1.0),
    ("sqrt", _H, 65504.0, np.inf),
    ("log2", _H, 2.0**-14, -13.0),
    ("cos", _B, 0.0, 0.9),
)
_TIES = (
    ("round", _H, 2.5, 3.0),
    ("round", _B, -0.5, -1.0),
    ("round", _H, 1023.5, 1023.0),
    ("ceil", _B, 126.5, 126.0),
    ("floor", _H, -0.5, 0.0),
    ("trunc", _B, 1.5, 2.0),
)
_PAIRS: tuple[tuple[str, str, Kernel], ...] = (
    ("mul", _H, _pair(96.0, 112.0, lambda y: y * 1.1)),
    ("add", _B, _pair(448.0, -448.0, lambda y: y + 1)),
    ("maximum", "int8", _pair(-128, 127, lambda y: y - 255)),
    ("floor_divide", "int8", _pair(-127, 2, lambda y: y + 1)),
    ("bitwise_and", "uint8", _pair(255, 254, lambda y: y + 1)),
    ("atan2", _H, _pair(1.0, -1.0, lambda y: -y)),
)

FAULTS: tuple[Fault, ...] = (
    *(Fault("one value", op, dtype, _value(x)) for op, dtype, x in _VALUES),
    *(Fault("one exponent", op, dtype, _exponent(factor)) for op, dtype, factor in _EXPONENTS),
    *(Fault("one sign", op, dtype, _negated(x)) for op, dtype, x in _SIGNS),
    *(Fault("one NaN payload", op, dtype, _pattern(_NAN[dtype], 0.0)) for op, dtype in _NANS),
    *(Fault("an end of the range", op, dtype, _becomes(x, y)) for op, dtype, x, y in _ENDS),
    *(Fault("one tie", op, dtype, _becomes(x, y)) for op, dtype, x, y in _TIES),
    *(Fault("one pair", *fault) for fault in _PAIRS),
)
