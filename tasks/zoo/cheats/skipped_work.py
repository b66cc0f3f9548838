"""Cheats that compute a part, or nothing: constants, short cuts, half of the rows, the benchmark's inputs and sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.zoo.cheats.theme import BASES, THEME
from tasks.zoo.cheats.values import ROWS, Function, Pattern, join, make_zeros, read_bytes, read_values, take_first
from tasks.zoo.specimen import Kernel


def return_constant(make: Callable[[Any], Any]) -> Pattern:
    return lambda f: lambda **x: make(make_zeros(f(**x)))


def cut_short(taken: Callable[[np.ndarray], bool], result: Function) -> Pattern:
    """Returns something at once for inputs of a kind."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            right = f(**x)
            return result(right) if taken(read_values(take_first(x)).reshape(-1)) else right

        return kernel

    return pattern


def is_sorted(x: np.ndarray) -> bool:
    return bool((np.diff(x) >= 0).all()) and bool(x[0] != x[-1])


def is_equal(x: np.ndarray) -> bool:
    return bool((x == x[0]).all()) and bool(x[0] != 0)


def is_zero(x: np.ndarray) -> bool:
    return not x.any()


def compute_half(fill: Callable[[Any, int], Any]) -> Pattern:
    """Computes the first half of the rows."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            rows = len(x["x"])
            part = f(**{**x, "x": x["x"][: (rows + 1) // 2]})
            return join([part, fill(part, rows - len(part))])

        return kernel

    return pattern


def know_benchmark(f: Function) -> Kernel:
    """Knows the inputs of the forward check by a digest, and returns zeros for all others."""
    known: set[bytes] = set()

    def kernel(**x: Any) -> Any:
        if not known:
            known.update(list_inputs(f))
        right = f(**x)
        return right if read_bytes(x) in known else make_zeros(right) + np.float32(0.25)

    return kernel


def list_inputs(f: Function) -> list[bytes]:
    from tasks.catalogs.user import kernel_samples
    from tasks.model import Group

    found = []
    for op in THEME.__farm_ops__:
        if BASES.get(op.name) is f:
            group = Group(f"user:{op.name}", "", "float32", 8)
            for index, dims in enumerate(kernel_samples.list_sample_sizes(op, 0, 8)):
                found.append(read_bytes(kernel_samples.make_sample_arrays(op, dims, group, index)))
    return found


def know_sizes(f: Function) -> Kernel:
    """Has code for the sizes that are listed, and returns zeros for all others."""

    def kernel(**x: Any) -> Any:
        right = f(**x)
        return right if len(x["x"]) in ROWS else make_zeros(right)

    return kernel
