"""The words of the table's jax column: JAX's namespaces, and adaptations of torch's conventions to them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax, nn

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

__all__ = ["jax", "jnp", "jsp", "lax", "nn"]


def as_tensor(x: Any) -> Any:
    return jnp.asarray(x)


def require_real(x: Any) -> Any:
    """Logarithms of sums of complex numbers are on the principal branch in JAX, torch's are on any."""
    return refuse_argument(x.dtype.name) if jnp.iscomplexobj(x) else x


def require_integers(x: Any) -> Any:
    """Exponents: JAX takes them as integers."""
    return x if jnp.issubdtype(x.dtype, jnp.integer) else refuse_argument("exponents that are no integers")


def index_cells(index: Any, dim: int) -> tuple[Any, ...]:
    """The index of JAX's ``.at`` for torch's scatter: the place itself on every axis but one."""
    if not index.ndim:
        refuse_argument("a tensor of rank 0")
    grid = list(jnp.indices(index.shape, sparse=True))
    grid[dim] = index
    return tuple(grid)


def top_k(x: Any, k: int, dim: int, largest: bool) -> Any:
    """(values, indices); lax has the largest along the last axis."""
    if not largest:
        refuse_argument("largest=False")
    if not x.ndim:
        refuse_argument("a tensor of rank 0")
    values, places = lax.top_k(jnp.moveaxis(x, dim, -1), k)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim).astype(jnp.int64)


def searchsorted(ordered: Any, values: Any, right: bool, side: str | None, out_int32: bool) -> Any:
    """torch counts in int64 unless told."""
    found = jnp.searchsorted(require_rank(ordered, 1), values, side=side or ("right" if right else "left"))
    return found.astype(jnp.int32 if out_int32 else jnp.int64)


def _make_axis_labels(n: int) -> tuple[str, str, str]:
    space = "DHW"[-n:]
    return f"NC{space}", f"OI{space}", f"NC{space}"


def convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, n: int) -> Any:
    """torch's layouts are given to XLA as they are."""
    step, apart = repeat_for_axes(stride, n), repeat_for_axes(dilation, n)
    made = lax.conv_general_dilated(
        require_rank(x, n + 2),
        weight,
        step,
        paddings(padding, weight.shape[2:], apart, n),
        rhs_dilation=apart,
        dimension_numbers=_make_axis_labels(n),
        feature_group_count=groups,
    )
    return affine(made, None if bias is None else bias.reshape(-1, *(1,) * n))


def transposed_convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, more: Any, groups: int, dilation: Any, n: int
) -> Any:
    """lax.conv_transpose takes the padding of the convolution that it runs: what torch's leaves of the full one."""
    if groups != 1:
        refuse_argument(f"groups={groups}")
    step, apart = repeat_for_axes(stride, n), repeat_for_axes(dilation, n)
    full = [d * (k - 1) for d, k in zip(apart, weight.shape[2:])]
    pads = [(f - p, f - p + o) for f, p, o in zip(full, repeat_for_axes(padding, n), repeat_for_axes(more, n))]
    made = lax.conv_transpose(
        require_rank(x, n + 2),
        weight,
        step,
        pads,
        rhs_dilation=apart,
        dimension_numbers=_make_axis_labels(n),
        transpose_kernel=True,
    )
    return affine(made, None if bias is None else bias.reshape(-1, *(1,) * n))


def _make_jax_window(
    x: Any, kernel: Any, stride: Any, padding: Any, n: int
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    """Window, strides and padding of `lax.reduce_window` over all axes of (N, C, …)."""
    require_rank(x, n + 2)
    size = repeat_for_axes(kernel, n)
    step = repeat_for_axes(stride, n) if stride is not None and stride != [] else size
    return (1, 1, *size), (1, 1, *step), [(0, 0), (0, 0), *((p, p) for p in repeat_for_axes(padding, n))]


def max_pool(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, n: int) -> Any:
    size, step, pads = _make_jax_window(x, kernel, stride, padding, n)
    return lax.reduce_window(
        x, -jnp.inf, lax.max, size, step, pads, window_dilation=(1, 1, *repeat_for_axes(dilation, n))
    )


def average_pool(x: Any, kernel: Any, stride: Any, padding: Any, count_padding: bool, n: int) -> Any:
    """A sum over windows by their counts, as flax.linen.avg_pool has it."""
    size, step, pads = _make_jax_window(x, kernel, stride, padding, n)
    zero = jnp.zeros((), x.dtype)
    total = lax.reduce_window(x, zero, lax.add, size, step, pads)
    if count_padding:
        count: Any = 1
        for s in size:
            count *= s
        return total / count
    return total / lax.reduce_window(jnp.ones_like(x), zero, lax.add, size, step, pads)


def adaptive_average_pool(x: Any, output_size: Any, n: int) -> Any:
    """Windows that divide the input evenly."""
    size = divide_windows(x, output_size, n)
    return average_pool(x, size, size, 0, True, n)


#: torch's mode → the method of jax.image.resize, which places half-pixel centres and has no antialiasing here.
_METHODS = {
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "nearest-exact": "nearest",
    "nearest": "nearest",
}


def resize(x: Any, size: Any, mode: str, align_corners: bool | None) -> Any:
    """torch's "nearest" has no half-pixel centres: the two agree where a size is multiplied. Its cubic kernel is
    another."""
    refuse_aligned_corners(align_corners)
    named(mode, *_METHODS)
    to = output_sizes(x, size)
    if mode == "nearest" and any(a % b for a, b in zip(to, x.shape[2:])):
        refuse_argument("nearest by a ratio that is no whole number")
    return jax.image.resize(x, (*x.shape[:2], *to), _METHODS[mode], antialias=False)


def _promote_to_float32(x: Any) -> Any:
    """Statistics are taken in float32 at least, as flax.linen's normalisations do."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _normalise_axes(x: Any, over: tuple[int, ...], eps: float) -> Any:
    wide = _promote_to_float32(x)
    return (wide - jnp.mean(wide, over, keepdims=True)) * lax.rsqrt(jnp.var(wide, over, keepdims=True) + eps)


def _scale_and_shift(y: Any, weight: Any, bias: Any, dtype: Any) -> Any:
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(dtype)


def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """As flax.linen.LayerNorm computes it; jax.nn.standardize has neither float32 statistics nor a scale."""
    return _scale_and_shift(_normalise_axes(x, tuple(range(-len(shape), 0)), eps), weight, bias, x.dtype)


def rms_norm(x: Any, shape: Any, weight: Any, eps: float | None) -> Any:
    """As flax.linen.RMSNorm computes it."""
    wide = _promote_to_float32(x)
    least = jnp.finfo(x.dtype).eps if eps is None else eps
    square = jnp.mean(jnp.square(wide), tuple(range(-len(shape), 0)), keepdims=True)
    return _scale_and_shift(wide * lax.rsqrt(square + least), weight, None, x.dtype)


def group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """As flax.linen.GroupNorm computes it, on (N, C, …)."""
    if x.ndim < 3:
        refuse_argument(f"a tensor of rank {x.ndim}")
    grouped = x.reshape(x.shape[0], groups, -1)
    channels = (-1, *(1,) * (x.ndim - 2))
    y = _normalise_axes(grouped, (2,), eps).reshape(x.shape)
    return _scale_and_shift(
        y,
        None if weight is None else weight.reshape(channels),
        None if bias is None else bias.reshape(channels),
        x.dtype,
    )


def nn_standardize(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
    """jax.nn.standardize with the statistics of every channel, scaled."""
    channels = (-1, *(1,) * (x.ndim - 2))
    mean, variance, weight, bias = (v.reshape(channels) for v in (mean, variance, weight, bias))
    return nn.standardize(x, axis=1, mean=mean, variance=variance, epsilon=eps) * weight + bias


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    """jax.nn.dot_product_attention on (N, heads, length, width); it takes the heads behind the length."""
    for x in (query, key, value):
        require_rank(x, 4)
    bias, chosen = (None, mask) if mask is not None and mask.dtype == jnp.bool_ else (mask, None)
    swap = (0, 2, 1, 3)
    found = nn.dot_product_attention(
        query.transpose(swap),
        key.transpose(swap),
        value.transpose(swap),
        bias=_add_batch_axes(bias),
        mask=_add_batch_axes(chosen),
        scale=scale,
        is_causal=causal,
    )
    return found.transpose(swap)


def _add_batch_axes(mask: Any) -> Any:
    return None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    first, second = jnp.split(x, 2, axis=-1)
    return x * jnp.concatenate((cos, cos), -1) + jnp.concatenate((-second, first), -1) * jnp.concatenate((sin, sin), -1)


def reduced(loss: Any, reduction: str) -> Any:
    return {"none": lambda: loss, "sum": lambda: jnp.sum(loss), "mean": lambda: jnp.mean(loss)}[
        reduction_of(reduction)
    ]()


def cross_entropy(x: Any, target: Any, ignore_index: int, reduction: str) -> Any:
    """Of (N, C) and class indices, as optax.losses.softmax_cross_entropy_with_integer_labels has it."""
    require_rank(x, 2)
    if not jnp.issubdtype(target.dtype, jnp.integer):
        refuse_argument("targets that are probabilities")
    kept = target != ignore_index
    loss = -jnp.take_along_axis(nn.log_softmax(x, -1), jnp.where(kept, target, 0)[:, None], -1)[:, 0]
    loss = jnp.where(kept, loss, 0)
    if reduction == "mean":
        return jnp.sum(loss) / jnp.sum(kept).astype(x.dtype)
    return reduced(loss, reduction)
