"""Pools of ONNX that need more than sums over a window: indices of maxima, integers, p-norms."""

from __future__ import annotations

import numpy as np

from tasks.graphs.call import Call, Operator
from tasks.graphs.spatial import window_of


def max_pool(call: Call) -> list[np.ndarray]:
    """MaxPool of any numbers; its second output counts elements of the whole input in the order of storage_order.

    Padding is never the maximum. Of equal elements the first of the window is taken.
    """
    (x,), a = call.arrays(), call.attributes
    window = window_of(x.shape[2:], a["kernel_shape"], a)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    shape, padded = x.shape[2:], window.padded(x, lowest)
    counted = np.arange(int(np.prod(shape))).reshape(shape[::-1] if a.get("storage_order") else shape)
    counted = counted.T if a.get("storage_order") else counted
    numbers = window.padded(counted[None, None], -1)[0, 0]
    y = np.full((*x.shape[:2], *window.places), lowest, x.dtype)
    where = np.full(y.shape, -1, np.int64)
    for _, place in window.slices():
        values, at = padded[(slice(None), slice(None), *place)], numbers[place]
        better = (at >= 0) & ((values > y) | (where < 0))
        y, where = np.where(better, values, y), np.where(better, at, where)
    first = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(shape)) * int(np.prod(shape))
    return [y, where + first][: call.outputs]


def lp_pool(call: Call) -> list[np.ndarray]:
    """LpPool: the p-norm of a window; padding is 0."""
    (x,), a = call.arrays(), call.attributes
    window, p = window_of(x.shape[2:], a["kernel_shape"], a), int(a.get("p", 2))
    padded = window.padded(np.abs(x) ** p, 0.0)
    y = np.zeros((*x.shape[:2], *window.places))
    for _, place in window.slices():
        y += padded[(slice(None), slice(None), *place)]
    return [y ** (1.0 / p)]


#: By operator.
OPERATORS: dict[str, Operator] = {"LpPool": lp_pool, "MaxPool": max_pool}
