"""ONNX's operators written once over torch's names of operations: for torch, and for every framework with counterparts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.operators.call import OperatorCall
from tasks.operators.spatial import SpatialWindow, find_pool_window, find_spatial_window

#: An op of torch by its name: the function of some framework that means the same.
Named = Callable[[str], Callable[..., Any]]

#: torch's name of the cast to each dtype.
CASTS = {
    "float16": "half",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long",
}


@dataclass(frozen=True)
class OperatorOver(OperatorCall):
    """A call whose inputs are tensors of a framework, or NumPy arrays for constants; an attribute that names a dtype
    has the farm's name of it. named: the framework's function for a name of torch's; tensor: makes a tensor of an
    array."""

    named: Named
    tensor: Callable[[Any], Any]

    def t(self, place: int) -> Any:
        """The input at a place as a tensor; None where it is left out."""
        x = self.at(place)
        return self.tensor(x) if isinstance(x, np.ndarray) else x

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The function that torch calls ``name``."""
        return self.named(name)(*args, **kwargs)

    def numbers(self, place: int, attribute: str = "") -> list[int] | None:
        """Integers of a constant input, or where there is none of an attribute; None for neither. Raises ValueError for
        an input that is computed."""
        x = self.at(place)
        if x is None:
            found = self.attributes.get(attribute)
            return None if found is None else [int(n) for n in np.atleast_1d(found)]
        if not isinstance(x, np.ndarray):
            raise ValueError(f"the input {place} is computed; it decides shapes")
        return [int(n) for n in x.reshape(-1)]

    @property
    def spatial(self) -> list[int]:
        return [int(n) for n in self.inputs[0].shape[2:]]


#: Outputs of an operator in order, or its only one; None where this table does not have it.
Counterpart = Callable[[OperatorOver], Any]


def _pad_operator_input(o: OperatorOver, window: SpatialWindow, value: float) -> Any:
    """The first input as far as its window goes: torch's own pads are equal at both ends."""
    ends = window.ends(o.spatial)
    x = o.t(0)
    if any(n < 0 for pair in ends for n in pair):
        met = (slice(max(-b, 0), n + min(e, 0)) for n, (b, e) in zip(o.spatial, ends))
        x = x[(slice(None), slice(None), *met)]
    pads = [max(n, 0) for pair in reversed(ends) for n in pair]
    return o("nn.functional.pad.constant", x, pads, value=value) if any(pads) else x


def apply_conv(o: OperatorOver) -> Any:
    w = o.t(1)
    window = find_spatial_window(o.spatial, [int(n) for n in w.shape[2:]], o.attributes)
    groups, n = int(o.attributes.get("group", 1)), len(o.spatial)
    return o(
        f"nn.functional.conv{n}d",
        _pad_operator_input(o, window, 0.0),
        w,
        o.t(2),
        window.strides,
        0,
        window.dilations,
        groups,
    )


def apply_conv_transpose(o: OperatorOver) -> Any:
    a, n, w = o.attributes, len(o.spatial), o.t(1)
    if a.get("output_shape") or (a.get("auto_pad") or "NOTSET") != "NOTSET":
        return None
    pads = list(a.get("pads") or (0,) * (2 * n))
    strides, dilations = (tuple(a.get(name) or (1,) * n) for name in ("strides", "dilations"))
    more, groups = tuple(a.get("output_padding") or (0,) * n), int(a.get("group", 1))
    y = o(f"nn.functional.conv_transpose{n}d", o.t(0), w, o.t(2), strides, 0, more, groups, dilations)
    return y[(slice(None), slice(None), *(slice(b, int(m) - e) for b, e, m in zip(pads[:n], pads[n:], y.shape[2:])))]


def apply_max_pool(o: OperatorOver) -> Any:
    if o.outputs > 1:
        return None
    window, n = find_pool_window(o).crop_kernel(o.spatial), len(o.spatial)
    x = _pad_operator_input(o, window, -math.inf)
    apart = window.dilations if any(d != 1 for d in window.dilations) else 1
    return o(f"nn.functional.max_pool{n}d", x, window.kernel, window.strides, 0, apart)


def apply_average_pool(o: OperatorOver) -> Any:
    whole, n = find_pool_window(o), len(o.spatial)
    window = whole.crop_kernel(o.spatial)
    if any(d != 1 for d in window.dilations):
        return None
    y = o(f"nn.functional.avg_pool{n}d", _pad_operator_input(o, window, 0.0), window.kernel, window.strides)
    counts = whole.counts(o.spatial, bool(o.attributes.get("count_include_pad")))
    share = math.prod(window.kernel) / counts
    return y if (share == 1).all() else y * _array_like_first(o, share)


def _array_like_first(o: OperatorOver, x: np.ndarray) -> Any:
    """An array of float64 in the dtype of the first input."""
    return o(CASTS[name_framework_dtype(o.inputs[0])], o.tensor(x))


def name_framework_dtype(x: Any) -> str:
    """The name of a framework's dtype: "torch.float32", "float32", "<dtype: 'float32'>" (TensorFlow's) are float32."""
    return str(re.findall(r"\w+", str(x.dtype))[-1])


def reduce_over_image(name: str) -> Counterpart:
    """A reduction over the spatial axes, which are kept."""
    return lambda o: o(name, o.t(0), tuple(range(2, len(o.inputs[0].shape))), True)


def apply_batch_norm(o: OperatorOver) -> Any:
    if o.outputs > 1 or o.attributes.get("training_mode"):
        return None
    x, scale, bias, mean, variance = map(o.t, range(5))
    return o("critical:batch_norm", x, mean, variance, scale, bias, o.epsilon)


def apply_layer_norm(o: OperatorOver) -> Any:
    if o.outputs > 1:
        return None
    axis = int(o.attributes.get("axis", -1)) % len(o.inputs[0].shape)
    shape = tuple(int(n) for n in o.inputs[0].shape[axis:])
    weights = [None if w is None else o("expand", w, shape) for w in (o.t(1), o.t(2))]
    return o("nn.functional.layer_norm", o.t(0), shape, *weights, o.epsilon)


def apply_gemm(o: OperatorOver) -> Any:
    a = o.attributes
    x, w = (o("transpose", o.t(k), 0, 1) if a.get(t) else o.t(k) for k, t in enumerate(("transA", "transB")))
    y, alpha, beta = o("matmul", x, w), float(a.get("alpha", 1.0)), float(a.get("beta", 1.0))
    y = y if alpha == 1 else alpha * y
    return y if o.at(2) is None else y + (o.t(2) if beta == 1 else beta * o.t(2))


def apply_softmax_along(name: str) -> Counterpart:
    """A softmax or log_softmax along one axis; before operator set 13 along all from it on."""

    def operator(o: OperatorOver) -> Any:
        x = o.t(0)
        if o.opset >= 13:
            return o(name, x, int(o.attributes.get("axis", -1)))
        axis = int(o.attributes.get("axis", 1)) % len(x.shape)
        shape = [int(n) for n in x.shape]
        flat = o("reshape", x, (*shape[:axis], math.prod(shape[axis:])))
        return o("reshape", o(name, flat, axis), tuple(shape))

    return operator


def reduce_along_axes(name: str) -> Counterpart:
    """A reduction along given axes; over all without them."""

    def operator(o: OperatorOver) -> Any:
        axes, keep = o.numbers(1, "axes"), bool(o.attributes.get("keepdims", 1))
        if not axes and o.attributes.get("noop_with_empty_axes"):
            return o.t(0)
        return o(name, o.t(0), tuple(axes or range(len(o.inputs[0].shape))), keep)

    return operator


def apply_resize(o: OperatorOver) -> Any:
    """Linear and nearest Resize of the last two axes by whole factors: there all conventions of a scale agree."""
    x, a, shape = o.t(0), o.attributes, [int(n) for n in o.inputs[0].shape]
    if len(shape) != 4 or a.get("antialias") or a.get("axes") or a.get("exclude_outside"):
        return None
    scales, sizes = o.at(2), o.at(3)
    given = sizes is not None and len(sizes)
    whole = [int(n) for n in sizes] if given else [int(n * s) for n, s in zip(shape, scales)]
    if whole[:2] != shape[:2] or any(m != n * (m // n) for m, n in zip(whole, shape)):
        return None
    mode, transformation = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest" and (transformation, a.get("nearest_mode")) == ("asymmetric", "floor"):
        return o("nn.functional.interpolate.nearest", x, tuple(whole[2:]))
    if mode == "linear" and transformation in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = transformation == "align_corners"
        return o("nn.functional.interpolate.bilinear", x, tuple(whole[2:]), align_corners=corners)
    return None


def apply_hard_sigmoid(o: OperatorOver) -> Any:
    alpha, beta = (float(o.attributes.get(name, np.float32(v))) for name, v in (("alpha", 0.2), ("beta", 0.5)))
    return o("clamp", o.t(0) * alpha + beta, 0.0, 1.0)


def apply_clip(o: OperatorOver) -> Any:
    ends = [o.at(k) if o.at(k) is not None else o.attributes.get(name) for k, name in ((1, "min"), (2, "max"))]
    return o("clamp", o.t(0), *(None if x is None else float(x) for x in ends))


def apply_gather(o: OperatorOver) -> Any:
    """torch selects along an axis by a list: indices of any shape are flattened for it."""
    x, axis = o.t(0), int(o.attributes.get("axis", 0)) % len(o.inputs[0].shape)
    indices, length = o.at(1), int(o.inputs[0].shape[axis])
    shape = [int(n) for n in indices.shape]
    if isinstance(indices, np.ndarray):
        indices = np.asarray(indices % length)
    flat = o("reshape", o.tensor(indices) if isinstance(indices, np.ndarray) else indices, (math.prod(shape),))
    whole = [int(n) for n in x.shape]
    return o("reshape", o("index_select", x, axis, flat), (*whole[:axis], *shape, *whole[axis + 1 :]))


def apply_gather_nd(o: OperatorOver) -> Any:
    """Rows of a tensor by the places in it that the last axis of the indices names."""
    if o.attributes.get("batch_dims"):
        return None
    x, indices = o.t(0), o.t(1)
    shape, places = [int(n) for n in x.shape], [int(n) for n in indices.shape]
    deep = places[-1]
    flat = o("reshape", x, (math.prod(shape[:deep]), *shape[deep:]))
    strides = [math.prod(shape[k + 1 : deep]) for k in range(deep)]
    at = sum(indices[..., k] * stride for k, stride in enumerate(strides))
    rows = o("index_select", flat, 0, o("reshape", at, (math.prod(places[:-1]),)))
    return o("reshape", rows, (*places[:-1], *shape[deep:]))


def apply_slice(o: OperatorOver) -> Any:
    starts, ends = (o.numbers(k, name) or [] for k, name in ((1, "starts"), (2, "ends")))
    axes = o.numbers(3, "axes") or list(range(len(starts)))
    steps = o.numbers(4) or [1] * len(starts)
    x, place = o.t(0), [slice(None)] * len(o.inputs[0].shape)
    if any(s < 1 for s in steps):
        return None
    for first, last, axis, step in zip(starts, ends, axes, steps):
        length = int(x.shape[axis])
        first, last = (min(max(n + length if n < 0 else n, 0), length) for n in (first, last))
        place[axis] = slice(first, max(first, last), step)
    return x[tuple(place)]


def apply_split(o: OperatorOver) -> list[Any]:
    axis = int(o.attributes.get("axis", 0))
    length, sizes = int(o.inputs[0].shape[axis]), o.numbers(1, "split")
    return list(o("split", o.t(0), tuple(sizes) if sizes else -(-length // o.outputs), axis))


def apply_pad(o: OperatorOver) -> Any:
    pads, value = o.numbers(1, "pads") or [], o.at(2)
    n, mode = len(pads) // 2, o.attributes.get("mode", "constant")
    if mode not in ("constant", "reflect") or o.at(3) is not None or any(p < 0 for p in pads):
        return None
    ends = [p for pair in reversed(list(zip(pads[:n], pads[n:]))) for p in pair]
    if mode == "reflect":
        return o("nn.functional.pad.reflect", o.t(0), ends)
    return o("nn.functional.pad.constant", o.t(0), ends, value=float(value if value is not None else 0.0))


def apply_reshape(o: OperatorOver) -> Any:
    wanted, shape = o.numbers(1) or [], [int(n) for n in o.inputs[0].shape]
    if not o.attributes.get("allowzero"):
        wanted = [shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    if -1 in wanted:
        wanted[wanted.index(-1)] = math.prod(shape) // max(1, math.prod(n for n in wanted if n != -1))
    return o("reshape", o.t(0), tuple(wanted))


def apply_flatten(o: OperatorOver) -> Any:
    shape = [int(n) for n in o.inputs[0].shape]
    axis = int(o.attributes.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    return o("reshape", o.t(0), (math.prod(shape[:axis]), math.prod(shape[axis:])))


def apply_expand(o: OperatorOver) -> Any:
    shape = np.broadcast_shapes(tuple(int(n) for n in o.inputs[0].shape), tuple(o.numbers(1) or ()))
    return o("expand", o.t(0), shape)


def apply_unsqueeze(o: OperatorOver) -> Any:
    axes, x = o.numbers(1, "axes") or [], o.t(0)
    rank = len(x.shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = o("unsqueeze", x, axis)
    return x


def apply_squeeze(o: OperatorOver) -> Any:
    axes = o.numbers(1, "axes")
    return o("squeeze", o.t(0)) if axes is None else o("squeeze", o.t(0), tuple(axes))


def apply_top_k(o: OperatorOver) -> list[Any]:
    (k,) = o.numbers(1, "k") or [1]
    return list(o("topk", o.t(0), k, int(o.attributes.get("axis", -1)), bool(o.attributes.get("largest", 1))))


def apply_cum_sum(o: OperatorOver) -> Any:
    if o.attributes.get("exclusive") or o.attributes.get("reverse"):
        return None
    (axis,) = o.numbers(1) or [0]
    return o("cumsum", o.t(0), axis)


def apply_cast(o: OperatorOver) -> Any:
    to = o.attributes["to"]
    if to == "bool":
        return o("ne", o.t(0), o("zeros_like", o.t(0)))
    return o(CASTS[to], o.t(0)) if to in CASTS else None


def apply_gelu(o: OperatorOver) -> Any:
    return o("nn.functional.gelu", o.t(0), approximate=o.attributes.get("approximate", "none"))


def name_unary_operator(name: str) -> Counterpart:
    """An operator that torch has by this name, of one tensor."""
    return lambda o: o(name, o.t(0))


def name_binary_operator(name: str) -> Counterpart:
    """An operator that torch has by this name, of two tensors."""
    return lambda o: o(name, o.t(0), o.t(1))


def name_variadic_operator(name: str) -> Counterpart:
    """An operator of any number of tensors, folded by torch's of two."""

    def operator(o: OperatorOver) -> Any:
        x = o.t(0)
        for k in range(1, len(o.inputs)):
            x = o(name, x, o.t(k))
        return x

    return operator


def apply_p_relu(o: OperatorOver) -> Any:
    x = o.t(0)
    return o("nn.functional.relu", x) - o.t(1) * o("nn.functional.relu", -x)


def is_exponent_two(o: OperatorOver) -> bool:
    """Whether the exponent is the constant 2: a square is more exact than a power."""
    power = o.at(1)
    return isinstance(power, np.ndarray) and power.size == 1 and float(power.reshape(())) == 2.0
