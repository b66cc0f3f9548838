"""An expected output of a case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Leaf:
    """One expected output of a case.

    dtype: name of the dtype the backend must return; shape: its shape; reference: the exact result
    (float64 for floating dtypes, complex128 for complex ones, the dtype itself for integers, bool and
    strings), None when only the metadata is defined; noise: the noise floor δ, float64, same shape,
    or None for zero everywhere; rtol/atol: the classic tolerance when the case brings its own.
    """

    dtype: str
    shape: tuple[int, ...]
    reference: np.ndarray | None
    noise: np.ndarray | None = None
    rtol: float | None = None
    atol: float | None = None
