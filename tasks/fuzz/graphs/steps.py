"""The operators of generated graphs: how each is put after a tensor that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.fuzz import values
from tasks.fuzz.graphs.grown import GrownGraph, GrownTensor, Refused
from tasks.fuzz.values import ValueDomain
from tasks.model.dtypes import ELEMENT_TYPE

#: Puts an operator after a tensor: what it makes.
Put = Callable[[GrownGraph, GrownTensor], list[GrownTensor]]

_AWAY = ValueDomain(0.5, 4.0, ("halves", "powers"))
#: For functions whose usual formulas cancel far below 0, which single operators show: in graphs it would hide all else.
NO_TAIL = (-1.5, 4096.0)
_SMALL = ValueDomain(-2.0, 2.0, ("halves", "zeros"))
#: Least spread of what is divided by its deviation, as a share of its largest number: below it rounding is all that is
#: left.
_SPREAD = 1 / 64


def _put_clip_within(g: GrownGraph, x: GrownTensor, low: float, high: float) -> GrownTensor:
    """The tensor, clipped by a node of its own where its numbers are outside."""
    if (x.value >= low).all() and (x.value <= high).all():
        return x
    ends = [g.number(end, x) for end in (low, high)]
    return g.add("Clip", [x, *ends])[0]


def put_function(op: str, low: float = -np.inf, high: float = np.inf, **options: Sequence[Any]) -> Put:
    """A function of one tensor, held to a range before; options: attributes with what they may be."""

    def put(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
        attributes: dict[str, Any] = {}
        for name, some in options.items():
            attributes |= g.maybe(name, some)
        if np.isfinite(low) or np.isfinite(high):
            x = _put_clip_within(g, x, low, high)
        return g.add(op, [x], **attributes)

    return put


def put_clip(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    low, high = g.choose.of([(-1.0, 1.0), (0.0, 6.0), (-0.5, 2.0)])
    return g.add("Clip", [x, *(g.number(end, x) for end in (low, high))])


def put_cast(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    to = "float32" if x.dtype == "float16" else "float16"
    return g.add("Cast", [_put_clip_within(g, x, -128.0, 128.0)], dtype=to, to=ELEMENT_TYPE[to])


def _put_other_operand(g: GrownGraph, x: GrownTensor, domain: ValueDomain = values.MILD) -> GrownTensor:
    """What meets a tensor element by element: a weight that is broadcast, an input, or what was made before."""
    kind = g.choose.of(["weight", "input", "before"])
    if kind == "before":
        fits = [
            t
            for t in (*g.made, x)
            if t.dtype == x.dtype and _do_tensors_broadcast(t, x) and _is_inside_domain(t.value, domain)
        ]
        if fits:
            return fits[g.choose.int(0, len(fits) - 1)]
    shape = g.broadcast(x.shape)
    return (g.input if kind == "input" else g.weight)(shape, domain, x.dtype)


def _is_inside_domain(value: np.ndarray, domain: ValueDomain) -> bool:
    return bool((value >= domain.low).all() and (value <= domain.high).all())


def _do_tensors_broadcast(a: GrownTensor, b: GrownTensor) -> bool:
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


def put_two(op: str, turned: bool = True) -> Put:
    """A function of a tensor and another; ``turned``: in either order."""

    def put(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
        other = _put_other_operand(g, x)
        return g.add(op, [other, x] if turned and g.choose.chance(1, 3) else [x, other])

    return put


def put_div(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    if g.choose.chance(1, 3):
        return g.add("Div", [_put_other_operand(g, x), _put_clip_within(g, x, 0.5, 4096.0)])
    return g.add("Div", [x, _put_other_operand(g, x, _AWAY)])


def put_pow(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    power = g.choose.of([2.0, 0.5, 3.0, -1.0])
    return g.add("Pow", [_put_clip_within(g, x, 0.25, 4.0), g.number(power, x)])


def put_prelu(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    return g.add("PRelu", [x, g.weight(g.broadcast(x.shape), _SMALL, x.dtype)])


def put_where(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    condition = g.weight(g.broadcast(x.shape), values.ANY, "bool")
    pair = [_put_other_operand(g, x), x]
    return g.add("Where", [condition, *(pair if g.choose.chance(1, 2) else pair[::-1])], dtype=x.dtype)


def put_reduction(op: str, axes_input: int = 18) -> Put:
    """A reduction whose axes are an input from an operator set on."""

    def put(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
        axes = g.axes(x.rank) if g.choose.chance(3, 4) else [-1]
        keep = g.maybe("keepdims", [1, 0])
        if g.opset < axes_input:
            return g.add(op, [x], axes=axes, **keep)
        return g.add(op, [x, g.ints(axes)], **keep)

    return put


def put_cumsum(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    return g.add("CumSum", [x, g.constant(np.asarray(g.axis(x.rank), np.int64))])


def put_along(op: str) -> Put:
    """A softmax along an axis."""
    return lambda g, x: g.add(op, [x], axis=g.axis(x.rank))


def _refuse_nearly_equal(value: np.ndarray, axes: tuple[int, ...]) -> None:
    """Raises Refused where numbers along axes are nearly equal."""
    if (value.std(axis=axes) < _SPREAD * np.abs(value).max(axis=axes)).any():
        raise Refused("numbers that are nearly equal are divided by their deviation")


def put_layer_norm(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    _refuse_nearly_equal(x.value, (-1,))
    shape = x.shape[-1:]
    bias = [g.weight(shape, dtype=x.dtype)] if g.choose.chance(1, 2) else []
    return g.add(
        "LayerNormalization", [x, g.weight(shape, dtype=x.dtype), *bias], axis=-1, **g.maybe("epsilon", [1e-5, 1e-2])
    )


def put_batch_norm(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    scale, bias, mean = (g.weight((x.shape[1],), _SMALL, x.dtype) for _ in range(3))
    variance = g.weight((x.shape[1],), _AWAY, x.dtype)
    return g.add("BatchNormalization", [x, scale, bias, mean, variance], **g.maybe("epsilon", [1e-5, 1e-2]))


def put_instance_norm(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    _refuse_nearly_equal(x.value, tuple(range(2, x.rank)))
    scale, bias = (g.weight((x.shape[1],), _SMALL, x.dtype) for _ in range(2))
    return g.add("InstanceNormalization", [x, scale, bias], **g.maybe("epsilon", [1e-5, 1e-2]))


def put_matmul(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    n = g.size(9)
    if g.choose.chance(1, 3):
        return g.add("MatMul", [g.weight((n, x.shape[-2]), _SMALL, x.dtype), x])
    return g.add("MatMul", [x, g.weight((x.shape[-1], n), _SMALL, x.dtype)])


def put_gemm(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    attributes: dict[str, Any] = g.maybe("transA", [0, 1]) | g.maybe("transB", [0, 1])
    attributes |= g.maybe("alpha", [1.0, 0.5, 2.0]) | g.maybe("beta", [1.0, 0.5, 2.0])
    rows, inner = x.shape[::-1] if attributes.get("transA") else x.shape
    n = g.size(9)
    w = g.weight((n, inner) if attributes.get("transB") else (inner, n), _SMALL, x.dtype)
    shape = g.choose.of([None, (n,), (rows, n), (1, n), (rows, 1), ()])
    return g.add("Gemm", [x, w, *([] if shape is None else [g.weight(shape, dtype=x.dtype)])], **attributes)


def _choose_put_windows(
    g: GrownGraph, x: GrownTensor, strides: Sequence[int] = (1, 2)
) -> tuple[list[int], dict[str, Any]]:
    """(kernel, strides and pads): each window meets the image."""
    kernel = [min(g.choose.of([3, 1, 2]), n) for n in x.shape[2:]]
    attributes: dict[str, Any] = {}
    if g.choose.chance(1, 2):
        attributes["strides"] = [g.choose.of(strides) for _ in kernel]
    if g.choose.chance(1, 2):
        attributes["pads"] = [g.choose.int(0, k // 2) for k in (*kernel, *kernel)]
    return kernel, attributes


def put_conv(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    kernel, attributes = _choose_put_windows(g, x)
    channels = x.shape[1]
    groups = channels if g.choose.chance(1, 4) else 2 if channels % 2 == 0 and g.choose.chance(1, 4) else 1
    many = groups * g.choose.of([1, 2, 3])
    if groups > 1:
        attributes["group"] = groups
    w = g.weight((many, channels // groups, *kernel), _SMALL, x.dtype)
    bias = [g.weight((many,), dtype=x.dtype)] if g.choose.chance(1, 2) else []
    return g.add("Conv", [x, w, *bias], **attributes)


def put_conv_transpose(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    kernel = [g.choose.of([3, 1, 2]) for _ in x.shape[2:]]
    attributes: dict[str, Any] = {}
    if g.choose.chance(1, 2):
        attributes["strides"] = [g.choose.of([1, 2]) for _ in kernel]
    w = g.weight((x.shape[1], g.choose.of([1, 2, 3]), *kernel), _SMALL, x.dtype)
    bias = [g.weight((w.shape[1],), dtype=x.dtype)] if g.choose.chance(1, 2) else []
    return g.add("ConvTranspose", [x, w, *bias], **attributes)


def put_pool(op: str, **options: Sequence[Any]) -> Put:
    """A pool of an image."""

    def put(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
        kernel, attributes = _choose_put_windows(g, x, (1, 2, 3))
        for name, some in options.items():
            attributes |= g.maybe(name, some)
        return g.add(op, [x], kernel_shape=kernel, **attributes)

    return put


def put_transpose(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    order = g.choose.order(x.rank)
    return g.add("Transpose", [x], perm=order if order != sorted(order) else order[::-1])


def put_reshape(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    shape = list(x.shape)
    kind = g.choose.of(["flat", "merge", "split", "turn"])
    if kind == "merge" and x.rank > 1:
        at = g.choose.int(0, x.rank - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif kind == "split" and (even := [k for k, n in enumerate(shape) if n % 2 == 0]):
        shape[even[0] : even[0] + 1] = [2, shape[even[0]] // 2]
    elif kind == "turn":
        shape = shape[::-1]
    else:
        shape = [-1]
    return g.add("Reshape", [x, g.ints(shape)])


def put_concat(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    axis = g.axis(x.rank)
    fits = [t for t in (*g.made, x) if t.dtype == x.dtype and _drop_shape_axis(t, axis) == _drop_shape_axis(x, axis)]
    if g.choose.chance(1, 2) and fits:
        other = fits[g.choose.int(0, len(fits) - 1)]
    else:
        shape = list(x.shape)
        shape[axis] = g.size(5)
        other = g.weight(shape, dtype=x.dtype)
    return g.add("Concat", [x, other] if g.choose.chance(1, 2) else [other, x], axis=axis, dtype=x.dtype)


def _drop_shape_axis(x: GrownTensor, axis: int) -> list[int]:
    """A shape without an axis; of another rank nothing is like it."""
    shape = list(x.shape)
    if not -len(shape) <= axis < len(shape):
        return [-1]
    del shape[axis]
    return [len(x.shape), *shape]


def put_split(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    axis = g.axis(x.rank)
    length = x.shape[axis]
    if length < 2:
        raise Refused("one element is not split")
    first = g.choose.int(1, length - 1)
    return g.add("Split", [x, g.ints([first, length - first])], 2, axis=axis)


def put_slice(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    axis = g.axis(x.rank)
    length = x.shape[axis]
    start = g.choose.int(0, length - 1)
    step = g.choose.of([1, 2, -1])
    end = length if step > 0 else -length - 1
    return g.add("Slice", [x, g.ints([start]), g.ints([end]), g.ints([axis]), g.ints([step])])


def put_pad(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    pads = [g.choose.int(0, 2) for _ in range(2 * x.rank)]
    value = [g.number(g.choose.of([1.0, 0.0, -2.0]), x)] if g.choose.chance(1, 2) else []
    return g.add("Pad", [x, g.ints(pads), *value])


def put_expand(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    shape = [g.choose.of([2, 3]) if n == 1 else n for n in x.shape]
    return g.add("Expand", [x, g.ints([2, *shape] if x.rank < 5 and g.choose.chance(1, 2) else shape)])


def put_unsqueeze(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    return g.add("Unsqueeze", [x, g.ints([g.axis(x.rank + 1)])])


def put_squeeze(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    ones = [k for k, n in enumerate(x.shape) if n == 1]
    if not ones:
        raise Refused("no axis of length 1")
    return g.add("Squeeze", [x, g.ints([g.choose.of(ones)])])


def put_gather(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    axis = g.axis(x.rank)
    indices = g.indices(g.choose.of([(2,), (), (1,), (2, 2), (5,)]), x.shape[axis]).array
    return g.add("Gather", [x, g.constant(indices)], axis=axis)


def put_tile(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    return g.add("Tile", [x, g.ints([g.choose.of([1, 2]) for _ in x.shape])])


def put_flatten(g: GrownGraph, x: GrownTensor) -> list[GrownTensor]:
    return g.add("Flatten", [x], axis=g.choose.int(0, x.rank))


IMAGE, ROWS = range(3, 6), range(1, 6)
