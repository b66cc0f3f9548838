"""onnx's reference pooling without its Python loop over windows: the same bits in a hundredth of the time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

#: What is taken of a window, as onnx names and computes it.
_OF_WINDOW = {"AVG": np.mean, "MAX": np.max}


def install_fast_pooling() -> None:
    """Let onnx's suite and its evaluator, in this process, pool by `pool_windows`: half of the suite's time is spent there."""
    import onnx.reference.ops.op_pool_common as common

    if common.pool is not pool_windows:
        _loops.append(common.pool)
        common.pool = pool_windows


#: onnx's own, for what `pool_windows` does not do.
_loops: list[Any] = []


def pool_windows(
    padded: np.ndarray,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    pooling_type: str,
    pads_required: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: int = 0,
    p: int = 1,
) -> np.ndarray:
    """As `onnx.reference.ops.op_pool_common.pool`, whose arguments these are. A window is reduced by the same function
    of numpy over the same elements in the same order, many windows at once."""
    if pooling_type not in _OF_WINDOW:
        own = (padded, x_shape, kernel, strides, out_shape, pooling_type, pads_required, pads, dilations)
        return np.asarray(_loops[0](*own, count_include_pad, p))
    dims = len(x_shape) - 2
    required, given = _split_pads_by_end(pads_required, dims), _split_pads_by_end(pads, dims)
    steps, gaps = list(strides or [1] * dims), list([1] * dims if dilations is None else dilations)
    result = np.zeros([*x_shape[:2], *out_shape], dtype=padded.dtype)
    axes = []  # of each dimension: places of windows, with the pixels of each, for those that have equally many
    for i in range(dims):
        reach = 1 + (kernel[i] - 1) * gaps[i]
        count = int((x_shape[i + 2] + required[i] + required[i + dims] - reach) / steps[i] + 1)
        pixels = np.arange(count)[:, None] * steps[i] + np.arange(kernel[i]) * gaps[i]
        inside = (pixels < x_shape[i + 2] + given[i] + given[i + dims]).sum(axis=1)
        axes.append([(np.flatnonzero(inside == n), pixels[inside == n, :n]) for n in np.unique(inside)])
    for parts in itertools.product(*axes):
        many, width = [len(places) for places, _ in parts], [pixels.shape[1] for _, pixels in parts]
        at: list[Any] = []
        for i, (_, pixels) in enumerate(parts):
            shape = [1] * (2 * dims)
            shape[i], shape[dims + i] = many[i], width[i]
            at.append(pixels.reshape(shape))
        windows = padded[(..., *at)].reshape(-1, int(np.prod(width)))
        found = _reduce_pool_windows(
            windows, _OF_WINDOW[pooling_type], count_include_pad == 1 and pooling_type == "AVG"
        )
        places: Any = np.ix_(*(places for places, _ in parts))
        result[(..., *places)] = found.reshape(*x_shape[:2], *many)
    return result


def _split_pads_by_end(pads: Sequence[int] | None, dims: int) -> Sequence[int]:
    """Pads at the beginning of every dimension, then at the end of each."""
    if pads is None:
        return [0] * dims * 2
    return list(pads) * dims * 2 if len(pads) == 1 else pads


def _reduce_pool_windows(windows: np.ndarray, reduce: Any, all_count: bool) -> np.ndarray:
    """One number of each window (a row), without its NaNs unless all count."""
    if all_count or not (missing := np.isnan(windows)).any():
        return np.asarray(reduce(windows, axis=1))
    found = np.zeros(len(windows), dtype=windows.dtype)
    patterns, of = np.unique(missing, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        rows = of.reshape(-1) == k
        # In the order of memory: else it sums in another one.
        found[rows] = reduce(np.ascontiguousarray(windows[rows][:, ~pattern]), axis=1)
    return found
