"""Grouped products of the `gemm` catalog: one product for each of several groups of uneven sizes, as the experts of a mixture have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.model import get_numpy_dtype

#: (sizes of the groups, columns or rows, columns): groups that are empty, of one row, of one tile and a bit, and all of
#: it in one.
SHAPES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((5, 0, 17, 8), 32, 16),
    ((1,) * 8, 64, 48),
    ((0, 128, 0), 16, 128),
    ((33,), 64, 32),
    ((7, 2, 64, 0, 0, 55), 128, 64),
    ((129, 1), 272, 32),
)
#: What is uneven: the rows of each product, or what it sums over (whose sizes are these times ALIGNED, which devices
#: ask for).
VARIANTS, ALIGNED = ("rows", "depth"), 8


def make_arrays(
    rng: np.random.Generator, shape: tuple[tuple[int, ...], int, int], variant: str, dtype: str
) -> list[np.ndarray]:
    """Two matrices and the ends of the groups, int32: (rows, k), (groups, k, n); or, summed over groups, (m, K), (K,
    n)."""
    sizes, k, n = shape
    if variant == "depth":
        sizes = tuple(ALIGNED * size for size in sizes)
    ends, total = np.cumsum(sizes).astype(np.int32), sum(sizes)
    shapes = ((total, k), (len(sizes), k, n)) if variant == "rows" else ((k, total), (total, n))
    return [*(rng.standard_normal(x).astype(get_numpy_dtype(dtype)) for x in shapes), ends]


def multiply(variant: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The exact product of each group: rows (rows, n), or depth (groups, m, n)."""
    a, b, ends = arrays
    parts = list(zip([0, *ends[:-1].tolist()], ends.tolist()))
    if variant == "rows":
        return np.concatenate([a[low:high] @ b[k] for k, (low, high) in enumerate(parts)])
    return np.stack([a[:, low:high] @ b[low:high] for low, high in parts])


def call(variant: str, a: Any, b: Any, ends: Any) -> Any:
    """torch's, which wants the second matrix of each group by columns."""
    import torch

    grouped = torch.nn.functional.grouped_mm
    return grouped(a, b.transpose(-2, -1).contiguous().transpose(-2, -1), offs=ends)
