"""What ONNX does not define of integers, and what is computed in its place: results beyond the dtype's range, and their like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tasks.model.dtypes import get_integer_range

#: Integer inputs of an operator in one dtype -> the same with what is not defined replaced.
Defined = Callable[[list[np.ndarray]], list[np.ndarray]]


def keep_integer_range(function: Callable[[np.ndarray, np.ndarray], np.ndarray], instead: int) -> Defined:
    """For a function whose result is to stay in the range of the dtype: ``instead`` as the second number where it does
    not."""

    def defined(given: list[np.ndarray]) -> list[np.ndarray]:
        first, second = given
        low, high = get_integer_range(first.dtype.name)
        exact = function(first.astype(np.int64), second.astype(np.int64))
        return [first, np.where((exact < low) | (exact > high), np.full((), instead, second.dtype), second)]

    return defined


def avoid_least_integer(given: list[np.ndarray]) -> list[np.ndarray]:
    """For a negation: the largest number instead of a negative least one, which has no opposite in the dtype."""
    (x,) = given
    return [np.where(x == x.min(), x.max(), x) if x.min() else x]


def avoid_zero_divisors(given: list[np.ndarray]) -> list[np.ndarray]:
    """For a quotient or remainder: 1 instead of 0 as the second number, and as the first one instead of the least by
    -1, whose quotient is none of the dtype."""
    first, second = given
    second = np.where(second == 0, np.ones((), second.dtype), second)
    least = get_integer_range(first.dtype.name)[0]
    overflows = (first == least) & (second == -1) if least else np.zeros(first.shape, bool)
    return [np.where(overflows, np.ones((), first.dtype), first), second]


def avoid_negative_exponents(given: list[np.ndarray]) -> list[np.ndarray]:
    """For a power: 1 instead of a negative exponent."""
    first, second = given
    return [first, np.where(second < 0, np.ones((), second.dtype), second)]
