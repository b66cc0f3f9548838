"""The heavy operators of ONNX by torch in float64: a second computation of what `tasks.graphs.ops` computes with NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.graphs.call import Call, Operator
from tasks.graphs.ops import OPERATORS
from tasks.graphs.spatial import Window, pooling, window_of


def operators() -> dict[str, Operator]:
    """By operator of ONNX's own domain, for `tasks.graphs.evaluate.Graph`: what torch does not do is done by NumPy."""
    return OPERATORS | {name: _or_numpy(alone(name), OPERATORS.get(name)) for name in NAMES}


def alone(op: str) -> Operator:
    """torch's computation of an operator of NAMES; None is what it returns where torch does not do it."""
    found: Operator = globals()[f"_{op.lower()}"]
    return found


def _or_numpy(by_torch: Operator, by_numpy: Operator | None) -> Operator:
    def operator(call: Call) -> list[np.ndarray] | None:
        found = by_torch(call)
        return by_numpy(call) if found is None and by_numpy else found

    return operator


NAMES = (
    "AveragePool BatchNormalization Conv ConvTranspose Elu Erf GRU Gelu Gemm GlobalAveragePool HardSigmoid HardSwish "
    "InstanceNormalization LSTM LayerNormalization LogSoftmax MatMul MaxPool ReduceMean ReduceSum Resize Sigmoid Softmax "
    "Softplus Tanh"
).split()


def _t(x: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x))


def _out(*values: Any) -> list[np.ndarray]:
    return [np.asarray(v.numpy()) for v in values]


def _f() -> Any:
    import torch

    return torch.nn.functional


def _padded(call: Call, window: Window, value: float) -> Any:
    """The first input as far as its window goes: torch's own pads are equal at both ends."""
    x = call.inputs[0]
    return _f().pad(_t(x), [n for pair in reversed(window.ends(x.shape[2:])) for n in pair], value=value)


def _conv(call: Call) -> list[np.ndarray]:
    import torch

    x, w, bias = call.three()
    window = window_of(x.shape[2:], w.shape[2:], call.attributes)
    conv = (torch.conv1d, torch.conv2d, torch.conv3d)[w.ndim - 3]
    groups = int(call.attributes.get("group", 1))
    padded, bias = _padded(call, window, 0.0), None if bias is None else _t(bias)
    return _out(conv(padded, _t(w), bias, window.strides, 0, window.dilations, groups))


def _convtranspose(call: Call) -> list[np.ndarray] | None:
    import torch

    a, (x, w, bias) = call.attributes, call.three()
    dims = x.ndim - 2
    if a.get("output_shape") or (a.get("auto_pad") or "NOTSET") != "NOTSET":
        return None
    pads = list(a.get("pads") or (0,) * (2 * dims))
    conv = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[dims - 1]
    strides, dilations = (tuple(a.get(name) or (1,) * dims) for name in ("strides", "dilations"))
    more = tuple(a.get("output_padding") or (0,) * dims)
    groups = int(a.get("group", 1))
    y = conv(_t(x), _t(w), None if bias is None else _t(bias), strides, 0, more, groups, dilations)
    for axis in range(dims):
        y = y.narrow(2 + axis, pads[axis], y.shape[2 + axis] - pads[axis] - pads[dims + axis])
    return _out(y)


def _maxpool(call: Call) -> list[np.ndarray] | None:
    if call.outputs > 1 or call.inputs[0].dtype != np.float64:
        return None
    x = call.inputs[0]
    window = pooling(call).met(x.shape[2:])
    pool = (_f().max_pool1d, _f().max_pool2d, _f().max_pool3d)[x.ndim - 3]
    return _out(pool(_padded(call, window, -math.inf), window.kernel, window.strides, 0, window.dilations))


def _averagepool(call: Call) -> list[np.ndarray] | None:
    x, whole = call.inputs[0], pooling(call)
    window = whole.met(x.shape[2:])
    if any(n != 1 for n in window.dilations):
        return None
    pool = (_f().avg_pool1d, _f().avg_pool2d, _f().avg_pool3d)[x.ndim - 3]
    sums = pool(_padded(call, window, 0.0), window.kernel, window.strides) * math.prod(window.kernel)
    return _out(sums / _t(whole.counts(x.shape[2:], bool(call.attributes.get("count_include_pad")))))


def _globalaveragepool(call: Call) -> list[np.ndarray]:
    x = _t(call.inputs[0])
    return _out(x.mean(dim=tuple(range(2, x.ndim)), keepdim=True))


def _batchnormalization(call: Call) -> list[np.ndarray] | None:
    if call.outputs > 1 or call.attributes.get("training_mode"):
        return None
    x, scale, bias, mean, var = map(_t, call.inputs)
    return _out(_f().batch_norm(x, mean, var, scale, bias, eps=_epsilon(call)))


def _instancenormalization(call: Call) -> list[np.ndarray]:
    x, scale, bias = map(_t, call.inputs)
    return _out(_f().instance_norm(x, weight=scale, bias=bias, eps=_epsilon(call)))


def _layernormalization(call: Call) -> list[np.ndarray] | None:
    x, scale, bias = call.three()
    if call.outputs > 1:
        return None
    shape = x.shape[int(call.attributes.get("axis", -1)) % x.ndim :]
    weights = [None if v is None else _t(np.broadcast_to(v, shape)) for v in (scale, bias)]
    return _out(_f().layer_norm(_t(x), shape, *weights, _epsilon(call)))


def _epsilon(call: Call) -> float:
    return float(call.attributes.get("epsilon", np.float32(1e-5)))


def _gemm(call: Call) -> list[np.ndarray]:
    import torch

    a = call.attributes
    x, w = (_t(v.T if a.get(t) else v) for v, t in zip(call.inputs, ("transA", "transB")))
    y = float(a.get("alpha", 1.0)) * torch.mm(x, w)
    return _out(y if call.at(2) is None else y + float(a.get("beta", 1.0)) * _t(call.at(2)))


def _matmul(call: Call) -> list[np.ndarray] | None:
    import torch

    if any(x.dtype != np.float64 for x in call.inputs):
        return None
    return _out(torch.matmul(*map(_t, call.inputs)))


def _softmax(call: Call) -> list[np.ndarray]:
    return _along(call, "softmax")


def _logsoftmax(call: Call) -> list[np.ndarray]:
    return _along(call, "log_softmax")


def _along(call: Call, name: str) -> list[np.ndarray]:
    x, function = _t(call.inputs[0]), getattr(_f(), name)
    if call.opset >= 13:
        return _out(function(x, dim=int(call.attributes.get("axis", -1))))
    axis = int(call.attributes.get("axis", 1)) % x.ndim
    return _out(function(x.flatten(axis), dim=axis).reshape(x.shape))


def _reducemean(call: Call) -> list[np.ndarray] | None:
    return _reduced(call, "mean")


def _reducesum(call: Call) -> list[np.ndarray] | None:
    return _reduced(call, "sum")


def _reduced(call: Call, name: str) -> list[np.ndarray] | None:
    given = call.at(1) if call.at(1) is not None else call.attributes.get("axes")
    if given is None or not len(given) or call.inputs[0].dtype != np.float64:
        return None
    keep = bool(call.attributes.get("keepdims", 1))
    return _out(getattr(_t(call.inputs[0]), name)(dim=tuple(int(axis) for axis in given), keepdim=keep))


def _resize(call: Call) -> list[np.ndarray] | None:
    """Linear and nearest Resize of the last two axes, as torch has them."""
    x, a = call.inputs[0], call.attributes
    scales, sizes = call.at(2), call.at(3)
    if x.ndim != 4 or a.get("antialias") or a.get("axes") or a.get("exclude_outside"):
        return None
    whole = (
        [int(n) for n in sizes] if sizes is not None and len(sizes) else [int(n * s) for n, s in zip(x.shape, scales)]
    )
    if whole[:2] != list(x.shape[:2]) or any(o != n * (o // n) for o, n in zip(whole, x.shape)):
        return None  # only whole factors: there all conventions of a scale agree
    mode, transformation = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest" and (transformation, a.get("nearest_mode")) == ("asymmetric", "floor"):
        return _out(_f().interpolate(_t(x), whole[2:], mode="nearest"))
    if mode == "linear" and transformation in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = transformation == "align_corners"
        return _out(_f().interpolate(_t(x), whole[2:], mode="bilinear", align_corners=corners))
    return None


def _recurrent(call: Call, kind: str, order: Sequence[int]) -> list[np.ndarray] | None:
    import torch

    a = call.attributes
    if any(call.at(k) is not None for k in (4, 7)) or a.get("layout") or a.get("activations") or a.get("clip"):
        return None
    if (kind == "GRU" and not a.get("linear_before_reset")) or a.get("direction") == "reverse" or a.get("input_forget"):
        return None
    x, w, r = map(np.asarray, call.inputs[:3])
    directions, hidden = w.shape[0], r.shape[-1]
    b = np.zeros((directions, 2 * len(order) * hidden)) if call.at(3) is None else call.at(3)
    layer = getattr(torch.nn, kind)(x.shape[-1], hidden, bidirectional=directions == 2, dtype=torch.float64)

    def ordered(v: np.ndarray) -> Any:
        parts = np.split(v, len(order))
        return _t(np.concatenate([parts[k] for k in order]))

    state = {}
    for d, end in zip(range(directions), ("", "_reverse")):
        first, second = np.split(b[d], 2)
        for name, v in (("weight_ih", w[d]), ("weight_hh", r[d]), ("bias_ih", first), ("bias_hh", second)):
            state[f"{name}_l0{end}"] = ordered(v)
    layer.load_state_dict(state)
    blank = np.zeros((directions, x.shape[1], hidden))
    start = [_t(blank if call.at(k) is None else call.at(k)) for k in ((5, 6) if kind == "LSTM" else (5,))]
    with torch.no_grad():
        y, last = layer(_t(x), tuple(start) if kind == "LSTM" else start[0])
    y = y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2)
    return _out(y, *(last if kind == "LSTM" else (last,)))[: call.outputs]


def _lstm(call: Call) -> list[np.ndarray] | None:
    return _recurrent(call, "LSTM", (0, 2, 3, 1))


def _gru(call: Call) -> list[np.ndarray] | None:
    return _recurrent(call, "GRU", (1, 0, 2))


def _gelu(call: Call) -> list[np.ndarray]:
    return _out(_f().gelu(_t(call.inputs[0]), approximate=call.attributes.get("approximate", "none")))


def _hardsigmoid(call: Call) -> list[np.ndarray]:
    alpha, beta = (float(call.attributes.get(name, np.float32(v))) for name, v in (("alpha", 0.2), ("beta", 0.5)))
    return _out((_t(call.inputs[0]) * alpha + beta).clamp(0.0, 1.0))


def _elu(call: Call) -> list[np.ndarray]:
    return _out(_f().elu(_t(call.inputs[0]), float(call.attributes.get("alpha", 1.0))))


def _erf(call: Call) -> list[np.ndarray]:
    return _out(_t(call.inputs[0]).erf())


def _sigmoid(call: Call) -> list[np.ndarray]:
    return _out(_t(call.inputs[0]).sigmoid())


def _tanh(call: Call) -> list[np.ndarray]:
    return _out(_t(call.inputs[0]).tanh())


def _softplus(call: Call) -> list[np.ndarray]:
    return _out(_f().softplus(_t(call.inputs[0])))


def _hardswish(call: Call) -> list[np.ndarray]:
    return _out(_f().hardswish(_t(call.inputs[0])))
