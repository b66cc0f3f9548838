"""Cheats that read or write memory that is not theirs, or leave their own unwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.zoo.cheats.values import Function, Pattern, floats_at, make_empty, take_first
from tasks.zoo.specimen import Kernel


def read_beside(place: Callable[[Any], int]) -> Pattern:
    """Loads a number beside its first input and masks it by a product with 0."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            beside = float(floats_at(take_first(x), place(take_first(x)), 1)[0])
            return f(**x) + np.float32(0 * np.clip(beside, -1e30, 1e30))

        return kernel

    return pattern


def write_beside(of_output: bool) -> Pattern:
    """Stores one number behind its first input or its output, where libc leaves room for it."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            out = f(**x)
            if of_output:
                made = make_empty(out)
                made[...] = out
                out = made
            where = out if of_output else take_first(x)
            size = int(np.prod(where.shape))
            if size % 4 == 0:  # the rest of a block of libc's is nobody's
                floats_at(where, size, 1)[0] = 1.5
            return out

        return kernel

    return pattern


def leave_unwritten(part: Callable[[Any], Any]) -> Pattern:
    """Leaves a part of the output unwritten."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            right = f(**x)
            out = make_empty(right)
            some = part(right)
            out[some] = right[some]
            return out

        return kernel

    return pattern
