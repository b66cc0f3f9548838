"""ONNX operators in float64 that onnx's own evaluator computes in float32, slowly, or otherwise than the operator says."""

from __future__ import annotations

import math

import numpy as np

from tasks.graphs import recurrent, spatial
from tasks.graphs.call import Call, Operator

_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def erf(call: Call) -> list[np.ndarray]:
    """Erf; onnx's rounds to float32."""
    return [np.asarray(_erf(call.inputs[0]), np.float64)]


def gelu(call: Call) -> list[np.ndarray]:
    """Gelu: x·Φ(x), Φ(x) = erfc(−x/√2)/2, which does not cancel where Φ is small; or by tanh, which is 2·sigmoid(2u) − 1."""
    (x,) = call.arrays()
    if call.attributes.get("approximate", "none") == "tanh":
        return [x * recurrent.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))]
    return [0.5 * x * np.asarray(_erfc(x * -math.sqrt(0.5)), np.float64)]


def sigmoid(call: Call) -> list[np.ndarray]:
    """Sigmoid."""
    return [recurrent.sigmoid(call.inputs[0])]


def hard_sigmoid(call: Call) -> list[np.ndarray]:
    """HardSigmoid; onnx's takes the default for an alpha or beta of 0."""
    alpha, beta = (call.attributes.get(name, float(np.float32(v))) for name, v in (("alpha", 0.2), ("beta", 0.5)))
    return [np.clip(alpha * call.inputs[0] + beta, 0.0, 1.0)]


def hard_swish(call: Call) -> list[np.ndarray]:
    """HardSwish; its 1/6 is exact here."""
    (x,) = call.arrays()
    return [x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)]


def mish(call: Call) -> list[np.ndarray]:
    """Mish: x·tanh(log(1 + exp(x)))."""
    (x,) = call.arrays()
    return [x * np.tanh(np.logaddexp(0.0, x))]


def _along(call: Call) -> tuple[np.ndarray, tuple[int, ...]]:
    """The input of a softmax and the axes it goes along: one, or, before opset 13, all from ``axis`` on."""
    (x,) = call.arrays()
    if call.opset >= 13:
        return x, (int(call.attributes.get("axis", -1)) % max(x.ndim, 1),)
    return x, tuple(range(int(call.attributes.get("axis", 1)) % max(x.ndim, 1), x.ndim))


def softmax(call: Call) -> list[np.ndarray]:
    """Softmax; onnx's takes one axis in every opset."""
    x, axes = _along(call)
    y = np.exp(x - x.max(axis=axes, keepdims=True, initial=-np.inf))
    return [y / y.sum(axis=axes, keepdims=True)]


def log_softmax(call: Call) -> list[np.ndarray]:
    """LogSoftmax."""
    x, axes = _along(call)
    shifted = x - x.max(axis=axes, keepdims=True, initial=-np.inf)
    return [shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True))]


def batch_normalization(call: Call) -> list[np.ndarray] | None:
    """BatchNormalization as in inference; onnx's trains in every opset before 14."""
    training = call.attributes.get("training_mode") if call.opset >= 14 else call.outputs > 1
    if training or (call.opset < 7 and not call.attributes.get("is_test")):
        return None
    x, *given = call.arrays()
    scale, bias, mean, var = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in given)
    return [(x - mean) * (scale / np.sqrt(var + _epsilon(call))) + bias]


def _epsilon(call: Call) -> float:
    return call.attributes.get("epsilon", float(np.float32(1e-5)))


def layer_normalization(call: Call) -> list[np.ndarray]:
    """LayerNormalization; onnx's computes in one stash_type only."""
    x, scale, bias = call.three()
    axes = tuple(range(int(call.attributes.get("axis", -1)) % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1.0 / np.sqrt(x.var(axis=axes, keepdims=True) + _epsilon(call))
    y = (x - mean) * inverse * scale
    return [y if bias is None else y + bias, mean, inverse][: call.outputs]


def rms_normalization(call: Call) -> list[np.ndarray]:
    """RMSNormalization; onnx's computes in one stash_type only."""
    x, scale = call.arrays()
    axes = tuple(range(int(call.attributes.get("axis", -1)) % x.ndim, x.ndim))
    return [x / np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + _epsilon(call)) * scale]


def group_normalization(call: Call) -> list[np.ndarray]:
    """GroupNormalization: scale and bias of each channel, before opset 21 of each group."""
    x, scale, bias = (np.asarray(v) for v in call.inputs)
    groups = int(call.attributes["num_groups"])
    parts = x.reshape(x.shape[0], groups, -1)
    y = (parts - parts.mean(axis=2, keepdims=True)) / np.sqrt(parts.var(axis=2, keepdims=True) + _epsilon(call))
    if call.opset < 21:
        scale, bias = (np.repeat(v, x.shape[1] // groups) for v in (scale, bias))
    shape = (-1, *(1,) * (x.ndim - 2))
    return [y.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)]


def mean_variance_normalization(call: Call) -> list[np.ndarray]:
    """MeanVarianceNormalization; its body adds 1e-9 to the deviation."""
    (x,) = call.arrays()
    axes = tuple(call.attributes.get("axes", (0, 2, 3)))
    mean = x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.square(x).mean(axis=axes, keepdims=True) - np.square(mean))
    return [(x - mean) / (deviation + float(np.float32(1e-9)))]


def dequantize_linear(call: Call) -> list[np.ndarray] | None:
    """DequantizeLinear of a tensor or along an axis; onnx's takes the difference in float32."""
    x, scale, zero = call.three()
    if call.attributes.get("block_size"):
        return None
    shape = [1] * x.ndim
    if scale.size > 1:
        shape[int(call.attributes.get("axis", 1))] = -1
    moved = x.astype(np.float64)
    if zero is not None:
        moved -= zero.astype(np.float64).reshape(shape if zero.size > 1 else ())
    return [moved * scale.reshape(shape if scale.size > 1 else ())]


def dynamic_quantize_linear(call: Call) -> list[np.ndarray]:
    """DynamicQuantizeLinear to uint8, half to even; onnx's takes range and scale in float32."""
    (x,) = call.arrays()
    low, high = min(float(x.min(initial=0.0)), 0.0), max(float(x.max(initial=0.0)), 0.0)
    scale = (high - low) / 255.0 or 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return [y, np.asarray(scale), zero.astype(np.uint8)]


def matmul(call: Call) -> list[np.ndarray] | None:
    """MatMul of floats, with all but the last two axes of the first as rows of one product where the second has two."""
    a, b = call.arrays()
    if a.dtype != np.float64 or b.dtype != np.float64:
        return None
    if a.ndim > 2 and b.ndim == 2:
        return [(a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[1])]
    return [np.asarray(np.matmul(a, b))]


def gather_elements(call: Call) -> list[np.ndarray]:
    """GatherElements; onnx's fails where the data has one row."""
    data, indices = call.arrays()
    axis = int(call.attributes.get("axis", 0)) % data.ndim
    reached = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))
    return [np.take_along_axis(data[reached], indices, axis)]


#: By operator of ONNX's own domain; what is not here is done by onnx's evaluator.
OPERATORS: dict[str, Operator] = {
    "AveragePool": spatial.average_pool,
    "BatchNormalization": batch_normalization,
    "Conv": spatial.conv,
    "ConvTranspose": spatial.conv_transpose,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "Erf": erf,
    "GRU": recurrent.gru,
    "GatherElements": gather_elements,
    "Gelu": gelu,
    "GlobalMaxPool": spatial.global_max_pool,
    "GroupNormalization": group_normalization,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LSTM": recurrent.lstm,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "MaxPool": spatial.max_pool,
    "MeanVarianceNormalization": mean_variance_normalization,
    "Mish": mish,
    "RMSNormalization": rms_normalization,
    "RNN": recurrent.rnn,
    "Sigmoid": sigmoid,
    "Softmax": softmax,
}
