"""The words of the table's tensorflow column: TensorFlow's namespace, and adaptations of torch's conventions to it."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tasks.counterparts.arguments import (
    cut_to_index,
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

__all__ = ["tf"]


def as_int64(x: Any) -> Any:
    """torch's indices are int64."""
    return tf.cast(x, tf.int64)


def as_dtype_of(value: Any, x: Any) -> Any:
    return tf.cast(value, x.dtype)


def require_matrix(x: Any) -> Any:
    return x if len(x.shape) >= 2 else refuse_argument(f"a factor of rank {len(x.shape)}")


def as_complex(x: Any) -> Any:
    """TensorFlow's transforms take complex numbers alone."""
    return x if x.dtype.is_complex else refuse_argument(f"{x.dtype.name} (it takes complex numbers)")


def require_real(x: Any) -> Any:
    """TensorFlow gives the real results of complex matrices as complex numbers, or takes none."""
    return refuse_argument(x.dtype.name) if x.dtype.is_complex else x


def require_positive_order(order: Any) -> Any:
    return order if order > 0 else refuse_argument(f"ord={order}")


def name_sort_direction(descending: bool) -> str:
    return "DESCENDING" if descending else "ASCENDING"


def top_k(x: Any, k: int, dim: int, largest: bool) -> Any:
    """(values, indices) along the last axis."""
    if not largest or not len(x.shape) or dim % len(x.shape) != len(x.shape) - 1:
        refuse_argument("largest=False or another axis than the last")
    values, places = tf.math.top_k(x, k)
    return values, as_int64(places)


def searchsorted(ordered: Any, values: Any, right: bool, side: str | None, out_int32: bool) -> Any:
    if len(ordered.shape) != len(values.shape):
        refuse_argument("values of another rank")
    return tf.searchsorted(ordered, values, side or ("right" if right else "left"), tf.int32 if out_int32 else tf.int64)


def variance(x: Any, dim: Any, correction: float, keepdim: bool) -> Any:
    """tf.math.reduce_variance divides by the number of elements; the correction is made behind it."""
    found = tf.math.reduce_variance(x, dim, keepdim)
    if correction == 0:
        return found
    over = range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    n = math.prod(int(x.shape[i]) for i in over)
    return (
        found * (n / (n - correction))
        if n > correction
        else refuse_argument(f"{n} elements with correction={correction}")
    )


def channels_last(x: Any) -> Any:
    """(N, C, …) as (N, …, C), the layout of TensorFlow's kernels on a CPU."""
    return tf.transpose(x, [0, *range(2, len(x.shape)), 1])


def channels_first(x: Any) -> Any:
    return tf.transpose(x, [0, len(x.shape) - 1, *range(1, len(x.shape) - 1)])


def _pad_spatial(x: Any, pads: list[tuple[int, int]], value: float = 0.0) -> Any:
    """Channels-last ``x`` with its spatial axes padded."""
    if not any(p for pair in pads for p in pair):
        return x
    return tf.pad(x, [(0, 0), *pads, (0, 0)], constant_values=tf.cast(value, x.dtype))


def convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, n: int) -> Any:
    """tf.nn.convolution, padded before where torch pads; tf.nn.depthwise_conv2d where every channel is a group."""
    step, apart = repeat_for_axes(stride, n), repeat_for_axes(dilation, n)
    if groups > 1 and n == 3:
        refuse_argument(f"groups={groups}")
    if len(set(apart)) > 1 and n == 2 and groups > 1:
        refuse_argument("different dilations of a depthwise convolution")
    last = _pad_spatial(
        channels_last(require_rank(x, n + 2)), paddings(padding, [int(k) for k in weight.shape[2:]], apart, n)
    )
    kernel = tf.transpose(weight, [*range(2, n + 2), 1, 0])
    if n == 2 and groups > 1 and groups == x.shape[1]:
        if len(set(step)) > 1:
            refuse_argument("different strides of a depthwise convolution")
        # (height, width, channel, multiple): torch numbers a channel's multiples one after another.
        multiple = weight.shape[0] // groups
        kernel = tf.reshape(kernel, [*kernel.shape[:2], groups, multiple])
        made = tf.nn.depthwise_conv2d(last, kernel, [1, *step, 1], "VALID", dilations=apart)
    else:
        made = tf.nn.convolution(last, kernel, step, "VALID", dilations=apart)
    return channels_first(made if bias is None else tf.nn.bias_add(made, bias))


def transposed_convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, more: Any, groups: int, dilation: Any, n: int
) -> Any:
    """tf.nn.conv_transpose without padding, of which torch's padding is cut off."""
    step, apart, cut, extra = (repeat_for_axes(v, n) for v in (stride, dilation, padding, more))
    if groups != 1 or any(d != 1 for d in apart) or any(extra):
        refuse_argument("groups, dilation or output_padding")
    last = channels_last(require_rank(x, n + 2))
    kernel = tf.transpose(weight, [*range(2, n + 2), 1, 0])
    whole = [(int(size) - 1) * s + int(k) for size, s, k in zip(last.shape[1:-1], step, kernel.shape[:n])]
    made = tf.nn.conv_transpose(last, kernel, [int(x.shape[0]), *whole, int(weight.shape[1])], step, "VALID")
    made = made[(slice(None), *(slice(p, size - p) for p, size in zip(cut, whole)))]
    return channels_first(made if bias is None else tf.nn.bias_add(made, bias))


def max_pool(x: Any, kernel: Any, stride: Any, padding: Any, n: int) -> Any:
    size = repeat_for_axes(kernel, n)
    step = repeat_for_axes(stride, n) if stride is not None and stride != [] else size
    last = _pad_spatial(
        channels_last(require_rank(x, n + 2)), [(p, p) for p in repeat_for_axes(padding, n)], float("-inf")
    )
    return channels_first(tf.nn.max_pool(last, size, step, "VALID"))


def average_pool(x: Any, kernel: Any, stride: Any, padding: Any, count_padding: bool, n: int) -> Any:
    """Padding that counts is zeros in front of tf.nn.avg_pool."""
    size = repeat_for_axes(kernel, n)
    step = repeat_for_axes(stride, n) if stride is not None and stride != [] else size
    pads = [(p, p) for p in repeat_for_axes(padding, n)]
    if any(p for p, _ in pads) and not count_padding:
        refuse_argument("count_include_pad=False")
    return channels_first(
        tf.nn.avg_pool(_pad_spatial(channels_last(require_rank(x, n + 2)), pads), size, step, "VALID")
    )


def adaptive_average_pool(x: Any, output_size: Any, n: int) -> Any:
    """Windows that divide the input evenly."""
    size = divide_windows(x, output_size, n)
    return average_pool(x, size, size, 0, True, n)


_METHODS = {"bilinear": "bilinear", "nearest": "nearest", "nearest-exact": "nearest"}


def resize(x: Any, size: Any, mode: str, align_corners: bool | None) -> Any:
    """tf.image.resize: half-pixel centres, float32 inside and out; torch's "nearest" agrees where a size is
    multiplied."""
    refuse_aligned_corners(align_corners)
    to = output_sizes(require_rank(x, 4), size)
    if mode == "nearest" and any(a % b for a, b in zip(to, x.shape[2:])):
        refuse_argument("nearest by a ratio that is no whole number")
    method = _METHODS[named(mode, *_METHODS)]
    return tf.cast(channels_first(tf.image.resize(channels_last(x), to, method)), x.dtype)


def _normalise_axes(x: Any, over: list[int], weight: Any, bias: Any, eps: float) -> Any:
    mean, variance_ = tf.nn.moments(x, over, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance_, bias, weight, eps)


def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """tf.nn.moments and tf.nn.batch_normalization."""
    return _normalise_axes(x, list(range(-len(shape), 0)), weight, bias, eps)


def rms_norm(x: Any, shape: Any, weight: Any, eps: float | None) -> Any:
    """In float32 at least, as tf.nn.moments takes its statistics."""
    if eps is None:
        refuse_argument("eps=None")
    wide = x if x.dtype.size > 2 else tf.cast(x, tf.float32)
    square = tf.reduce_mean(tf.square(wide), list(range(-len(shape), 0)), keepdims=True)
    y = tf.cast(wide * tf.math.rsqrt(square + tf.cast(eps, wide.dtype)), x.dtype)
    return y if weight is None else y * weight


def group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """tf.nn.moments and tf.nn.batch_normalization of (N, groups, C / groups · …)."""
    if len(x.shape) < 3:
        refuse_argument(f"a tensor of rank {len(x.shape)}")
    n, channels = int(x.shape[0]), int(x.shape[1])
    space = [1] * (len(x.shape) - 2)
    y = tf.reshape(_normalise_axes(tf.reshape(x, [n, groups, -1]), [2], None, None, eps), x.shape)
    y = y if weight is None else y * tf.reshape(weight, [channels, *space])
    return y if bias is None else y + tf.reshape(bias, [channels, *space])


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    """Two products and tf.nn.softmax on (N, heads, length, width); heads of the keys are repeated for those of the
    queries."""
    heads = query.shape[-3] // key.shape[-3]
    if heads > 1:
        key, value = tf.repeat(key, heads, axis=-3), tf.repeat(value, heads, axis=-3)
    scores = tf.matmul(query, key, transpose_b=True) * tf.cast(scale or int(query.shape[-1]) ** -0.5, query.dtype)
    if causal:
        allowed = tf.linalg.band_part(tf.ones([query.shape[-2], key.shape[-2]], tf.bool), -1, 0)
        scores = tf.where(allowed, scores, tf.cast(float("-inf"), scores.dtype))
    if mask is not None:
        scores = (
            tf.where(mask, scores, tf.cast(float("-inf"), scores.dtype)) if mask.dtype == tf.bool else scores + mask
        )
    return tf.matmul(tf.nn.softmax(scores), value)


def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    first, second = tf.split(x, 2, axis=-1)
    return x * tf.concat((cos, cos), -1) + tf.concat((-second, first), -1) * tf.concat((sin, sin), -1)


def gather(x: Any, dim: int, index: Any) -> Any:
    """tf.gather with all axes before the last as batch axes."""
    r = len(x.shape)
    if not r or dim % r != r - 1:
        refuse_argument("another axis than the last")
    return tf.gather(cut_to_index(x, index, dim), index, axis=r - 1, batch_dims=r - 1)


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """tf.tensor_scatter_nd_add at the cells that torch's index means."""
    if not len(x.shape):
        refuse_argument("a tensor of rank 0")
    grid = tf.meshgrid(*(tf.range(int(n), dtype=tf.int64) for n in index.shape), indexing="ij")
    grid[dim] = tf.cast(index, tf.int64)
    return tf.tensor_scatter_nd_add(x, tf.stack(grid, -1), cut_to_index(src, index, None))


def svd(x: Any, full_matrices: bool) -> Any:
    """(U, S, Vᴴ); TensorFlow gives (S, U, V)."""
    s, u, v = tf.linalg.svd(x, full_matrices)
    return u, s, tf.linalg.adjoint(v)


def reduced(loss: Any, reduction: str) -> Any:
    return {"none": lambda: loss, "sum": lambda: tf.reduce_sum(loss), "mean": lambda: tf.reduce_mean(loss)}[
        reduction_of(reduction)
    ]()


def cross_entropy(x: Any, target: Any, ignore_index: int, reduction: str) -> Any:
    """tf.nn.sparse_softmax_cross_entropy_with_logits of (N, C) and class indices, those to ignore left out of the
    mean."""
    require_rank(x, 2)
    if not target.dtype.is_integer:
        refuse_argument("targets that are probabilities")
    kept = tf.not_equal(target, ignore_index)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(kept, target, 0), x)
    loss = tf.where(kept, loss, tf.zeros_like(loss))
    if reduction == "mean":
        return tf.reduce_sum(loss) / tf.reduce_sum(tf.cast(kept, loss.dtype))
    return reduced(loss, reduction)
