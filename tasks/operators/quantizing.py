"""ONNX operators between floats and quantised integers, in float64 but for what they define in another type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.model.dtypes import DTYPE_OF_ELEMENT, get_integer_range, get_numpy_dtype, is_inexact_dtype
from tasks.operators.call import OperatorCall


def _broadcast_scale_to_operand(x: np.ndarray, value: Any, call: OperatorCall) -> np.ndarray:
    """A scale or zero point as it is broadcast to x: of all, of an axis, or of blocks along it."""
    value, axis = np.asarray(value), int(call.attributes.get("axis", 1))
    if value.size == 1 and value.ndim < 2:
        return value.reshape(())
    if block := int(call.attributes.get("block_size", 0)):
        return np.take(np.repeat(value, block, axis), range(x.shape[axis]), axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    return value.reshape(shape)


def evaluate_quantize_linear(call: OperatorCall) -> list[np.ndarray] | None:
    """QuantizeLinear to an integer: saturated round-half-even of x / scale, plus the zero point."""
    x, scale, zero = call.three()
    to = zero.dtype.name if zero is not None else DTYPE_OF_ELEMENT[int(call.attributes.get("output_dtype", 0)) or 2]
    if is_inexact_dtype(to):
        return None
    low, high = get_integer_range(to)
    moved = np.rint(x / _broadcast_scale_to_operand(x, scale, call))
    if zero is not None:
        moved = moved + _broadcast_scale_to_operand(x, zero, call).astype(np.float64)
    return [np.clip(moved, low, high).astype(get_numpy_dtype(to))]


def evaluate_dequantize_linear(call: OperatorCall) -> list[np.ndarray]:
    """DequantizeLinear of a tensor, along an axis or of blocks of it; onnx's takes the difference in float32."""
    x, scale, zero = call.three()
    moved = x.astype(np.float64)
    if zero is not None:
        moved -= _broadcast_scale_to_operand(x, zero, call).astype(np.float64)
    return [moved * _broadcast_scale_to_operand(x, scale, call)]


def evaluate_dynamic_quantize_linear(call: OperatorCall) -> list[np.ndarray]:
    """DynamicQuantizeLinear to uint8, half to even; onnx's takes range and scale in float32."""
    (x,) = call.arrays()
    low, high = min(float(x.min(initial=0.0)), 0.0), max(float(x.max(initial=0.0)), 0.0)
    scale = (high - low) / 255.0 or 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return [y, np.asarray(scale), zero.astype(np.uint8)]
