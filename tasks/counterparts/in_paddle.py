"""The words of the table's paddle column: PaddlePaddle's namespaces, and adaptations of torch's conventions to them."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F

from tasks.counterparts.arguments import given, refuse_argument, require_rank

__all__ = ["F", "paddle"]


def as_tensor(x: Any) -> Any:
    return x if isinstance(x, paddle.Tensor) else refuse_argument("a number where a tensor is taken")


def require_integers(x: Any) -> Any:
    """Class indices."""
    return x if x.dtype in (paddle.int64, paddle.int32) else refuse_argument("targets that are probabilities")


def require_wide_float(x: Any) -> Any:
    """float32 and float64, which are all that the function's documentation names."""
    return x if x.dtype in (paddle.float32, paddle.float64) else refuse_argument(str(x.dtype))


def require_real(x: Any) -> Any:
    """The function's documentation names no complex types."""
    return refuse_argument(str(x.dtype)) if x.is_complex() else x


def flatten_weight(x: Any) -> Any:
    """Weights of a normalisation over several axes: Paddle takes them in one."""
    return None if x is None else x.reshape([-1])


def require_batch(x: Any) -> Any:
    return x if len(x.shape) > 1 else refuse_argument(f"a tensor of rank {len(x.shape)}")


def cross_entropy(x: Any, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    """Of (N, C): Paddle's classes are the last axis, torch's the second.

    "A negative value means that no label value needs to be ignored" (of ignore_index, in Paddle's documentation): such
    labels add nothing to the sum, but they count in the mean, which is therefore taken here.
    """
    require_rank(x, 2)
    if ignore_index >= 0 or reduction != "mean" or weight is not None:
        return F.cross_entropy(x, require_integers(target), weight, ignore_index, reduction)
    return F.cross_entropy(x, require_integers(target), None, ignore_index, "sum") / (
        target != ignore_index
    ).sum().astype(x.dtype)


def searchsorted(ordered: Any, values: Any, right: bool, side: str | None, out_int32: bool) -> Any:
    return paddle.searchsorted(ordered, values, out_int32, right or side == "right")


def interpolate(x: Any, size: Any, scale: Any, mode: str, align_corners: bool | None) -> Any:
    """align_mode 0 places half-pixel centres as torch does."""
    if mode == "nearest-exact":
        refuse_argument(repr(mode))
    layout = {3: "NCW", 4: "NCHW", 5: "NCDHW"}[len(x.shape)]
    size = list(size) if isinstance(size, (tuple, list)) else size
    return F.interpolate(x, given(size), scale, mode, bool(align_corners), 0, data_format=layout)


def rms_norm(x: Any, shape: Any, weight: Any, eps: float | None) -> Any:
    return F.rms_norm(x, list(shape), weight, given(eps))[0]  # and the reciprocal root


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: Any, grouped: bool) -> Any:
    """F.scaled_dot_product_attention on (N, heads, length, width); it takes the heads behind the length."""
    for x in (query, key, value):
        require_rank(x, 4)
    swap = [0, 2, 1, 3]
    found = F.scaled_dot_product_attention(
        query.transpose(swap),
        key.transpose(swap),
        value.transpose(swap),
        mask,
        0.0,
        causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return found.transpose(swap)


def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    first, second = paddle.split(x, 2, axis=-1)
    return x * paddle.concat((cos, cos), -1) + paddle.concat((-second, first), -1) * paddle.concat((sin, sin), -1)
