"""Pools of ONNX in float64: maxima with their places, means, p-norms, of windows and of whole images."""

from __future__ import annotations

import numpy as np

from tasks.operators.call import OperatorCall
from tasks.operators.spatial import find_pool_window


def evaluate_max_pool(call: OperatorCall) -> list[np.ndarray]:
    """MaxPool of any numbers, padding never being the maximum; with its second output where that is asked for."""
    (x,) = call.arrays()
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    if call.outputs > 1:
        return _evaluate_max_pool_places(call, x, lowest)
    window = find_pool_window(call).crop_kernel(x.shape[2:])
    padded, y = window.pad_image(x, lowest), np.full((*x.shape[:2], *window.places), lowest, x.dtype)
    for _, place in window.slices():
        np.maximum(y, padded[(slice(None), slice(None), *place)], out=y)
    return [y]


def _evaluate_max_pool_places(call: OperatorCall, x: np.ndarray, lowest: float) -> list[np.ndarray]:
    """MaxPool with the places of its maxima: they count elements of the whole input in the order of storage_order. Of
    equal elements the first of the window is taken."""
    window, a = find_pool_window(call), call.attributes
    shape, padded = x.shape[2:], window.pad_image(x, lowest)
    counted = np.arange(int(np.prod(shape))).reshape(shape[::-1] if a.get("storage_order") else shape)
    counted = counted.T if a.get("storage_order") else counted
    numbers = window.pad_image(counted[None, None], -1)[0, 0]
    y = np.full((*x.shape[:2], *window.places), lowest, x.dtype)
    where = np.full(y.shape, -1, np.int64)
    for _, place in window.slices():
        values, at = padded[(slice(None), slice(None), *place)], numbers[place]
        better = (at >= 0) & ((values > y) | (where < 0))
        y, where = np.where(better, values, y), np.where(better, at, where)
    first = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(shape)) * int(np.prod(shape))
    return [y, where + first]


def evaluate_lp_pool(call: OperatorCall) -> list[np.ndarray]:
    """LpPool: the p-norm of a window; padding is 0."""
    (x,), a = call.arrays(), call.attributes
    window, p = find_pool_window(call), int(a.get("p", 2))
    padded = window.pad_image(np.abs(x) ** p, 0.0)
    y = np.zeros((*x.shape[:2], *window.places))
    for _, place in window.slices():
        y += padded[(slice(None), slice(None), *place)]
    return [y ** (1.0 / p)]


def evaluate_average_pool(call: OperatorCall) -> list[np.ndarray]:
    """AveragePool; what ceil_mode adds beyond the pads never counts."""
    (x,) = call.arrays()
    whole, shape = find_pool_window(call), x.shape[2:]
    window = whole.crop_kernel(shape)
    padded, y = window.pad_image(x, 0.0), np.zeros((*x.shape[:2], *window.places))
    for _, place in window.slices():
        y += padded[(slice(None), slice(None), *place)]
    return [y / whole.counts(shape, bool(call.attributes.get("count_include_pad")))]


def evaluate_global_max_pool(call: OperatorCall) -> list[np.ndarray]:
    """GlobalMaxPool; onnx's takes the wrong axes of all but images."""
    (x,) = call.arrays()
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


def evaluate_global_average_pool(call: OperatorCall) -> list[np.ndarray]:
    """GlobalAveragePool."""
    (x,) = call.arrays()
    return [x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)]


def evaluate_global_lp_pool(call: OperatorCall) -> list[np.ndarray]:
    """GlobalLpPool."""
    (x,), p = call.arrays(), int(call.attributes.get("p", 2))
    return [(np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1.0 / p)]
