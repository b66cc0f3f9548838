"""ONNX operators that normalise along axes, in float64: softmax and its kin, and what divides by a deviation."""

from __future__ import annotations

import numpy as np

from tasks.operators import formulas
from tasks.operators.call import OperatorCall


def _find_softmax_axes(call: OperatorCall) -> tuple[np.ndarray, tuple[int, ...]]:
    """The input of a softmax and the axes it goes along: one, or, before opset 13, all from ``axis`` on."""
    (x,) = call.arrays()
    if call.opset >= 13:
        return x, (int(call.attributes.get("axis", -1)) % max(x.ndim, 1),)
    return x, tuple(range(int(call.attributes.get("axis", 1)) % max(x.ndim, 1), x.ndim))


def evaluate_softmax(call: OperatorCall) -> list[np.ndarray]:
    """Softmax; onnx's takes one axis in every opset."""
    x, axes = _find_softmax_axes(call)
    return [formulas.compute_softmax(x, axes)]


def evaluate_log_softmax(call: OperatorCall) -> list[np.ndarray]:
    """LogSoftmax."""
    x, axes = _find_softmax_axes(call)
    return [formulas.compute_log_softmax(x, axes)]


def evaluate_batch_normalization(call: OperatorCall) -> list[np.ndarray] | None:
    """BatchNormalization as in inference; onnx's trains in every opset before 14."""
    training = call.attributes.get("training_mode") if call.opset >= 14 else call.outputs > 1
    if training or (call.opset < 7 and not call.attributes.get("is_test")):
        return None
    x, *given = call.arrays()
    scale, bias, mean, var = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in given)
    return [(x - mean) * (scale / np.sqrt(var + call.epsilon)) + bias]


def evaluate_layer_normalization(call: OperatorCall) -> list[np.ndarray]:
    """LayerNormalization; onnx's computes in one stash_type only."""
    x, scale, bias = call.three()
    axes = tuple(range(int(call.attributes.get("axis", -1)) % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1.0 / np.sqrt(x.var(axis=axes, keepdims=True) + call.epsilon)
    y = (x - mean) * inverse * scale
    return [y if bias is None else y + bias, mean, inverse][: call.outputs]


def evaluate_rms_normalization(call: OperatorCall) -> list[np.ndarray]:
    """RMSNormalization; onnx's computes in one stash_type only."""
    x, scale = call.arrays()
    axes = tuple(range(int(call.attributes.get("axis", -1)) % x.ndim, x.ndim))
    return [formulas.compute_standardised(x, axes, call.epsilon, centred=False) * scale]


def evaluate_group_normalization(call: OperatorCall) -> list[np.ndarray]:
    """GroupNormalization: scale and bias of each channel, before opset 21 of each group."""
    x, scale, bias = (np.asarray(v) for v in call.inputs)
    groups = int(call.attributes["num_groups"])
    parts = x.reshape(x.shape[0], groups, -1)
    y = formulas.compute_standardised(parts, 2, call.epsilon)
    if call.opset < 21:
        scale, bias = (np.repeat(v, x.shape[1] // groups) for v in (scale, bias))
    shape = (-1, *(1,) * (x.ndim - 2))
    return [y.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)]


def evaluate_mean_variance_normalization(call: OperatorCall) -> list[np.ndarray]:
    """MeanVarianceNormalization; its body adds 1e-9 to the deviation."""
    (x,) = call.arrays()
    axes = tuple(call.attributes.get("axes", (0, 2, 3)))
    mean = x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(formulas.compute_one_pass_variance(x, axes))
    return [(x - mean) / (deviation + float(np.float32(1e-9)))]


def evaluate_instance_normalization(call: OperatorCall) -> list[np.ndarray]:
    """InstanceNormalization: over the spatial axes of each channel of each image."""
    x, scale, bias = (np.asarray(v) for v in call.inputs)
    axes, shape = tuple(range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    return [formulas.compute_standardised(x, axes, call.epsilon) * scale.reshape(shape) + bias.reshape(shape)]


def evaluate_lrn(call: OperatorCall) -> list[np.ndarray]:
    """LRN: x / (bias + alpha/size · Σ x²)^beta over the channels from c − ⌊(size−1)/2⌋ to c + ⌈(size−1)/2⌉."""
    (x,), a = call.arrays(), call.attributes
    size, channels = int(a["size"]), x.shape[1]
    alpha, beta, bias = (a.get(k, float(np.float32(v))) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    total = np.zeros_like(x)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels - 1, c + -(-(size - 1) // 2))
        total[:, c] = np.square(x[:, low : high + 1]).sum(axis=1)
    return [x / (bias + alpha / size * total) ** beta]


def evaluate_lp_normalization(call: OperatorCall) -> list[np.ndarray]:
    """LpNormalization: x / ‖x‖ₚ along an axis; where the norm is 0, 0 (as opset 22 says it)."""
    (x,), a = call.arrays(), call.attributes
    axis, p = int(a.get("axis", -1)), int(a.get("p", 2))
    norm = np.abs(x).sum(axis=axis, keepdims=True) if p == 1 else np.sqrt(np.square(x).sum(axis=axis, keepdims=True))
    return [np.where(norm == 0, 0.0, x / np.where(norm == 0, 1.0, norm))]
