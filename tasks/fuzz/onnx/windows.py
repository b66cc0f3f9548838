"""Specs of operators over images: convolutions and pools."""

from __future__ import annotations

from typing import Any

from tasks.fuzz import values
from tasks.fuzz.onnx.spec import DrawnSpec, SpecDraw
from tasks.fuzz.values import ValueDomain
from tasks.operators.left_open import LeftOpen
from tasks.operators.spatial import find_spatial_window

_CEIL = (
    "ceil_mode: 'Sliding windows that would start in the right padded region are ignored' stands in the operator's text from "
    "set 22 on; the formula before counts them"
)
_NOTHING = "a window of a pool that meets nothing but padding: what the largest, or the mean, of nothing is, the text does not say"
_SAME = (
    "auto_pad=SAME_…: 'pad_shape[i] = (output_spatial_shape[i] - 1) * strides_spatial_shape[i] + ((kernel_spatial_shape[i] - 1) * "
    "dilations[i] + 1) - input_spatial_shape[i]' is below 0 where a stride is longer than the kernel: what is cut off then is not "
    "said"
)
SUMS = ValueDomain(-4.0, 4.0, ("halves", "powers", "zeros"))


def _draw_window_dims(d: SpecDraw) -> int:
    return d.choose.of([2, 1, 3])


def _draw_lengths(d: SpecDraw, dims: int, most: int) -> list[int]:
    return [d.size(most if dims < 3 else 8) for _ in range(dims)]


def _draw_window(d: SpecDraw, lengths: list[int], kernel: list[int], dilated: bool = True) -> dict[str, Any]:
    """Strides, dilations and pads with which the kernel fits at least once; each left out at times."""
    dims = len(lengths)
    attributes: dict[str, Any] = {}
    if d.choose.chance(1, 2):
        attributes["strides"] = [d.choose.of([1, 2, 3]) for _ in range(dims)]
    if dilated and d.choose.chance(1, 3):
        attributes["dilations"] = [d.choose.of([1, 2, 3]) for _ in range(dims)]
    reach = [(k - 1) * x + 1 for k, x in zip(kernel, attributes.get("dilations", [1] * dims))]
    kind = d.choose.weighted([("none", 3), ("pads", 3), ("SAME_UPPER", 1), ("SAME_LOWER", 1), ("VALID", 1)])
    if any(r > n for r, n in zip(reach, lengths)) and kind in ("none", "VALID"):
        kind = "pads"
    if kind == "pads":
        begin = [d.choose.int(0, max(k - 1, 0)) for k in kernel]
        end = [d.choose.int(0, max(k - 1, 0)) for k in kernel]
        for i, (r, n) in enumerate(zip(reach, lengths)):
            lacking = r - n - begin[i] - end[i]
            if lacking > 0:  # the rest of what the kernel needs, as far as pads may go
                begin[i] += min(lacking, kernel[i] - 1 - begin[i])
                end[i] += min(max(r - n - begin[i] - end[i], 0), kernel[i] - 1 - end[i])
        if all(n + b + e >= r for n, b, e, r in zip(lengths, begin, end, reach)):
            attributes["pads"] = [*begin, *end]
        else:
            attributes.pop("dilations", None)
            attributes["auto_pad"], reach = "SAME_UPPER", kernel
    elif kind != "none":
        attributes["auto_pad"] = kind
    if attributes.get("auto_pad", "").startswith("SAME"):
        strides = attributes.get("strides", [1] * dims)
        if any((-(-n // s) - 1) * s + r < n for n, s, r in zip(lengths, strides, reach)):
            raise LeftOpen(_SAME)
    return attributes


def _draw_kernel(d: SpecDraw, lengths: list[int]) -> list[int]:
    return [min(d.choose.of([3, 1, 2, 5, 4]), max(n, 1)) for n in lengths]


def draw_conv(d: SpecDraw) -> DrawnSpec:
    dims = _draw_window_dims(d)
    groups = d.choose.weighted([(1, 4), (2, 2), (3, 1), (4, 1)])
    few, many = d.choose.of([2, 1, 3, 5, 8]), d.choose.of([2, 1, 3, 4, 8])
    if groups > 1 and d.choose.chance(1, 2):
        few = 1
    lengths = _draw_lengths(d, dims, 17)
    kernel = _draw_kernel(d, lengths)
    attributes = _draw_window(d, lengths, kernel)
    if groups > 1:
        attributes["group"] = groups
    if d.choose.chance(1, 3):
        attributes["kernel_shape"] = kernel
    x = d.tensor((d.size(3), groups * few, *lengths), SUMS)
    w = d.tensor((groups * many, few, *kernel), SUMS, "weight")
    bias = (d.tensor((groups * many,), values.MILD, "weight"),) if d.choose.chance(1, 2) else ()
    return DrawnSpec((x, w, *bias), attributes)


def draw_conv_transpose(d: SpecDraw) -> DrawnSpec:
    dims = _draw_window_dims(d)
    groups, few, many = d.choose.weighted([(1, 4), (2, 2), (3, 1)]), d.choose.of([2, 1, 3]), d.choose.of([2, 1, 3])
    lengths = _draw_lengths(d, dims, 9)
    kernel = [d.choose.of([3, 1, 2, 4]) for _ in range(dims)]
    attributes: dict[str, Any] = {}
    if d.choose.chance(1, 2):
        attributes["strides"] = [d.choose.of([1, 2, 3]) for _ in range(dims)]
    if d.choose.chance(1, 3):
        attributes["dilations"] = [d.choose.of([1, 2]) for _ in range(dims)]
    strides, dilations = (attributes.get(name, [1] * dims) for name in ("strides", "dilations"))
    whole = [(n - 1) * s + (k - 1) * t + 1 for n, s, k, t in zip(lengths, strides, kernel, dilations)]
    if d.choose.chance(1, 2):
        pads = [d.choose.int(0, min(k - 1, max((n - 1) // 2, 0))) for k, n in zip(kernel, whole)]
        ends = [d.choose.int(0, min(k - 1, max((n - 1) // 2, 0))) for k, n in zip(kernel, whole)]
        attributes["pads"] = [*pads, *ends]
    if d.choose.chance(1, 3):
        attributes["output_padding"] = [d.choose.int(0, s - 1) for s in strides]
    if groups > 1:
        attributes["group"] = groups
    x = d.tensor((d.size(3), groups * few, *lengths), SUMS)
    w = d.tensor((groups * few, many, *kernel), SUMS, "weight")
    bias = (d.tensor((groups * many,), values.MILD, "weight"),) if d.choose.chance(1, 2) else ()
    return DrawnSpec((x, w, *bias), attributes)


def _draw_pool(d: SpecDraw, domain: ValueDomain, dilated: bool) -> DrawnSpec:
    dims = _draw_window_dims(d)
    lengths = _draw_lengths(d, dims, 33)
    kernel = _draw_kernel(d, lengths)
    attributes = {"kernel_shape": kernel} | _draw_window(d, lengths, kernel, dilated)
    return DrawnSpec((d.tensor((d.size(3), d.size(9), *lengths), domain),), attributes)


def draw_max_pool(d: SpecDraw) -> DrawnSpec:
    made = _draw_pool(d, values.ANY, True)
    made.attributes.update(_draw_ceil_mode(d, made))
    if d.choose.chance(1, 3):
        made.attributes.update(d.maybe("storage_order", [0, 1]))
        return _check_drawn_windows(DrawnSpec(made.inputs, made.attributes, 2))
    return _check_drawn_windows(made)


def _draw_ceil_mode(d: SpecDraw, made: DrawnSpec) -> dict[str, Any]:
    """ceil_mode, which only goes with pads of one's own. Raises LeftOpen."""
    a = made.attributes
    more = {} if "auto_pad" in a else d.maybe("ceil_mode", [0, 1])
    if more.get("ceil_mode") and d.opset < 22:
        window = find_spatial_window(made.inputs[0].array.shape[2:], a["kernel_shape"], a | more)  # type: ignore[union-attr]
        lengths = zip(made.inputs[0].array.shape[2:], window.begin, window.end, window.kernel, window.dilations)  # type: ignore[union-attr]
        wanted = [-(-(n + b + e - (k - 1) * t - 1) // s) + 1 for (n, b, e, k, t), s in zip(lengths, window.strides)]
        if wanted != list(window.places):
            raise LeftOpen(_CEIL)
    return more


def _check_drawn_windows(made: DrawnSpec) -> DrawnSpec:
    """The case, if each of its windows meets the image. Raises LeftOpen."""
    assert made.inputs[0] is not None
    lengths = made.inputs[0].array.shape[2:]
    if not find_spatial_window(lengths, made.attributes["kernel_shape"], made.attributes).counts(lengths, False).all():
        raise LeftOpen(_NOTHING)
    return made


def draw_average_pool(d: SpecDraw) -> DrawnSpec:
    made = _draw_pool(d, SUMS, d.opset >= 19)
    made.attributes.update(_draw_ceil_mode(d, made) | d.maybe("count_include_pad", [0, 1]))
    return _check_drawn_windows(made)


def draw_lp_pool(d: SpecDraw) -> DrawnSpec:
    made = _draw_pool(d, ValueDomain(-4.0, 4.0, ("halves",)), d.opset >= 18)
    made.attributes.update(d.maybe("p", [2, 1, 3]) | (_draw_ceil_mode(d, made) if d.opset >= 18 else {}))
    return _check_drawn_windows(made)


def draw_over_image(domain: ValueDomain) -> Any:
    return lambda d: DrawnSpec((d.tensor((d.size(3), d.size(9), *_draw_lengths(d, _draw_window_dims(d), 33)), domain),))


def draw_global_lp_pool(d: SpecDraw) -> DrawnSpec:
    return DrawnSpec(draw_over_image(ValueDomain(-4.0, 4.0, ("halves",)))(d).inputs, d.maybe("p", [2, 1, 3]))
