"""The product of two matrices as a matrix unit computes it, accumulated from 0 over the whole summed axis in its order."""

from __future__ import annotations

import numpy as np

from tasks.matrix_units.adders import GroupedAdder, PairedAdder, UnitFactors, find_exponent_powers
from tasks.matrix_units.table import MatrixUnit
from tasks.model.dtypes import TABLE, name_numpy_dtype

#: Digits that a float32 has beyond TF32's.
_CUT = 13


def multiply(
    unit: MatrixUnit, a: np.ndarray, b: np.ndarray, scales: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """The accumulators of ``unit`` for a (..., m, k) times b (..., k, n), both of its dtype, as a kernel that adds in
    one sequence has them.

    scales: of a unit whose elements share them, (..., m, k / block) and (..., k / block, n), of the unit's scale dtype.
    Returns float32, or int32 of integers, (..., m, n). Raises ValueError for shapes or dtypes that do not go with the
    unit or with one another.
    """
    _check_unit_operands(unit, a, b, scales)
    if unit.adder is None:
        with np.errstate(invalid="ignore"):
            exact = np.matmul(
                a.astype(np.float64), b.astype(np.float64)
            )  # of 14 bits and a sign: exact for 2^38 of them
        return exact.astype(np.int64).astype(np.int32)  # what overflows wraps around
    left = _read_unit_operand(unit, np.swapaxes(a, -1, -2), None if scales is None else np.swapaxes(scales[0], -1, -2))
    right = _read_unit_operand(unit, b, None if scales is None else scales[1])
    made: np.ndarray = unit.adder.sum(left, right) + 0.0  # a sum that is zero is +0
    with np.errstate(over="ignore"):
        return made.astype(np.float32)


def _check_unit_operands(
    unit: MatrixUnit, a: np.ndarray, b: np.ndarray, scales: tuple[np.ndarray, np.ndarray] | None
) -> None:
    for name, x in (("a", a), ("b", b)):
        if name_numpy_dtype(x.dtype) != unit.dtype:
            raise ValueError(
                f"{name} is {name_numpy_dtype(x.dtype)}; this unit of {unit.architecture} takes {unit.dtype}"
            )
        if x.ndim < 2:
            raise ValueError(f"{name} has {x.ndim} axes: a matrix has at least 2")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"a has {a.shape[-1]} columns and b has {b.shape[-2]} rows: they must be as many")
    if (scales is None) != (not unit.scale):
        raise ValueError(
            f"this unit of {unit.architecture} takes {unit.dtype} {'with' if unit.scale else 'without'} scales"
        )
    if scales is None:
        return
    if a.shape[-1] % unit.block:
        raise ValueError(f"{a.shape[-1]} summed elements are not whole blocks of {unit.block}")
    blocks = a.shape[-1] // unit.block
    wanted = ((*a.shape[:-1], blocks), (*b.shape[:-2], blocks, b.shape[-1]))
    for name, x, shape in zip(("a", "b"), scales, wanted):
        if name_numpy_dtype(x.dtype) != unit.scale or x.shape != shape:
            raise ValueError(
                f"scales of {name} are {name_numpy_dtype(x.dtype)} {x.shape}; they must be {unit.scale} {shape}"
            )


def _read_unit_operand(unit: MatrixUnit, stored: np.ndarray, scales: np.ndarray | None) -> UnitFactors:
    """One side, summed axis first, as the unit reads it."""
    lowest = TABLE[unit.dtype].lowest
    assert lowest is not None
    if unit.taken:
        stored = (np.ascontiguousarray(stored).view(np.uint32) >> _CUT << _CUT).view(np.float32)
    values = np.ascontiguousarray(stored).astype(np.float64)
    if isinstance(unit.adder, PairedAdder):
        values = np.where(np.abs(values) < 2.0**lowest, 0.0, values)
    powers = find_exponent_powers(values, lowest)
    if scales is None:
        return UnitFactors(values, powers)
    shared = np.abs(scales.astype(np.float64))
    spread = np.repeat(shared, unit.block, axis=-2)
    if not isinstance(
        unit.adder, GroupedAdder
    ):  # scales are powers of two, which shift the exponents of what they scale
        return UnitFactors(values * spread, powers * spread)
    values = np.where(np.isfinite(spread), values, np.nan)
    shared = np.where(np.isfinite(shared), shared, 1.0)
    scale_lowest = TABLE[unit.scale].lowest
    assert scale_lowest is not None
    return UnitFactors(values, powers, shared, find_exponent_powers(shared, scale_lowest), unit.block)
