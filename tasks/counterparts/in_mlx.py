"""The words of the table's mlx column: MLX's namespaces, and adaptations of torch's conventions to them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from tasks.counterparts.arguments import (
    affine,
    divide_windows,
    named,
    output_sizes,
    paddings,
    reduction_of,
    refuse_aligned_corners,
    refuse_argument,
    repeat_for_axes,
    require_rank,
)

__all__ = ["mx", "nn"]


def as_int64(x: Any) -> Any:
    """torch's indices are int64, MLX's uint32."""
    return x.astype(mx.int64)


def channels_last(x: Any, n: int) -> Any:
    """(N, C, …) as MLX has it, (N, …, C)."""
    return mx.moveaxis(require_rank(x, n + 2), 1, -1)


def channels_first(x: Any) -> Any:
    return mx.moveaxis(x, -1, 1)


def convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, n: int) -> Any:
    """As mlx.nn.Conv2d computes it; torch's weights are (out, in, …), MLX's (out, …, in)."""
    step, apart = repeat_for_axes(stride, n), repeat_for_axes(dilation, n)
    pads = paddings(padding, weight.shape[2:], apart, n)
    made = mx.conv_general(
        channels_last(x, n),
        mx.moveaxis(weight, 1, -1),
        step,
        ([a for a, _ in pads], [b for _, b in pads]),
        apart,
        groups=groups,
    )
    return channels_first(affine(made, bias))


def transposed_convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, more: Any, groups: int, dilation: Any, n: int
) -> Any:
    """torch's weights are (in, out, …), MLX's (out, …, in)."""
    if groups != 1:
        refuse_argument(f"groups={groups}")
    function = (mx.conv_transpose1d, mx.conv_transpose2d, mx.conv_transpose3d)[n - 1]
    given = [repeat_for_axes(value, n) for value in (stride, padding, dilation, more)]
    made = function(
        channels_last(x, n), mx.moveaxis(weight, 0, -1), *(value[0] if n == 1 else tuple(value) for value in given)
    )
    return channels_first(affine(made, bias))


def no(padding: Any) -> Any:
    """MLX counts the padding in its averages."""
    return refuse_argument("count_include_pad=False") if any(repeat_for_axes(padding, 1)) else padding


def pool(layer: Any, x: Any, kernel: Any, stride: Any, padding: Any, n: int) -> Any:
    size = repeat_for_axes(kernel, n)
    step = repeat_for_axes(stride, n) if stride is not None and stride != [] else size
    made = layer(*((value[0] if n == 1 else tuple(value)) for value in (size, step, repeat_for_axes(padding, n))))
    return channels_first(made(channels_last(x, n)))


def adaptive_average_pool(layer: Any, x: Any, output_size: Any, n: int) -> Any:
    """Windows that divide the input evenly."""
    return pool(layer, x, divide_windows(x, output_size, n), None, 0, n)


def resize(x: Any, size: Any, mode: str, align_corners: bool | None) -> Any:
    """mlx.nn.Upsample, which takes factors; its "nearest" agrees with torch's where a size is multiplied. It computes
    in float32, and returns that."""
    refuse_aligned_corners(align_corners)
    to, own = output_sizes(x, size), x.shape[2:]
    if any(a % b for a, b in zip(to, own)):
        refuse_argument("a ratio that is no whole number")
    method = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}[
        named(mode, "nearest", "linear", "bilinear")
    ]
    factors = tuple(a // b for a, b in zip(to, own))
    return channels_first(nn.Upsample(factors, method)(channels_last(x, len(factors)))).astype(x.dtype)


def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Over the last axis."""
    return mx.fast.layer_norm(x, weight, bias, eps) if len(shape) == 1 else refuse_argument(f"normalized_shape={shape}")


def rms_norm(x: Any, shape: Any, weight: Any, eps: float | None) -> Any:
    """Over the last axis."""
    least = mx.finfo(x.dtype).eps if eps is None else eps
    return mx.fast.rms_norm(x, weight, least) if len(shape) == 1 else refuse_argument(f"normalized_shape={shape}")


def group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """As mlx.nn.GroupNorm(pytorch_compatible=True) computes it, on (N, C, …)."""
    if x.ndim < 3:
        refuse_argument(f"a tensor of rank {x.ndim}")
    grouped = mx.fast.layer_norm(x.reshape(x.shape[0], groups, -1), None, None, eps).reshape(x.shape)
    return _scale_and_shift(grouped, weight, bias)


def batch_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
    """As mlx.nn.BatchNorm computes it, whose statistics are given to the layer, not to a function."""
    mean, variance = (_shape_channels(x, v) for v in (mean, variance))
    return _scale_and_shift((x - mean) * mx.rsqrt(variance + eps), weight, bias)


def _shape_channels(x: Any, v: Any) -> Any:
    return v.reshape(-1, *(1,) * (x.ndim - 2))


def _scale_and_shift(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else y * _shape_channels(y, weight)
    return y if bias is None else y + _shape_channels(y, bias)


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    """mx.fast.scaled_dot_product_attention on (N, heads, length, width); MLX's causal mask ends at the last key,
    torch's begins at the first."""
    for x in (query, key, value):
        require_rank(x, 4)
    if causal and query.shape[2] != key.shape[2]:
        refuse_argument("is_causal of different lengths")
    scale = query.shape[3] ** -0.5 if scale is None else scale
    return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask="causal" if causal else mask)


def index_cells(index: Any, dim: int) -> tuple[Any, ...]:
    """The index of ``.at`` for torch's scatter: the place itself on every axis but one."""
    n = index.ndim or refuse_argument("a tensor of rank 0")
    grid = [mx.arange(size).reshape((-1,) + (1,) * (n - 1 - i)) for i, size in enumerate(index.shape)]
    grid[dim] = index
    return tuple(grid)


def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    first, second = mx.split(x, 2, axis=-1)
    return x * mx.concatenate((cos, cos), -1) + mx.concatenate((-second, first), -1) * mx.concatenate((sin, sin), -1)


def reduced(loss: Any, reduction: str) -> Any:
    return {"none": lambda: loss, "sum": lambda: mx.sum(loss), "mean": lambda: mx.mean(loss)}[reduction_of(reduction)]()


def cross_entropy(x: Any, target: Any, ignore_index: int, reduction: str) -> Any:
    """Of (N, C) and class indices; mlx.nn.losses.cross_entropy ignores none."""
    require_rank(x, 2)
    if not mx.issubdtype(target.dtype, mx.integer):
        refuse_argument("targets that are probabilities")
    kept = target != ignore_index
    loss = mx.where(kept, nn.losses.cross_entropy(x, mx.where(kept, target, 0)), 0)
    if reduction == "mean":
        return mx.sum(loss) / mx.sum(kept).astype(x.dtype)
    return reduced(loss, reduction)
