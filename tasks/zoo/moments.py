"""Moments: variances, covariances and distances as a difference of squares, which has no digit left where the mean is large.

Values are the ordinary ones: what shows these faults is the adversarial theme `squares` (`tasks.arrays.inputs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.zoo.specimen import BLOCK, Kernel, Theme, blocks, torch

THEME = Theme("moments", __name__)
EPS = 1e-5
CANCELLATION = "cancellation"
ROWS = {"x": ["rows", "n"]}
PAIRS = {"x": ["rows", "n"], "y": ["rows", "n"]}
DIMS = {"rows": [1, 5, 16], "n": [31, 129, 1000]}

#: Mean and variance along the last axis, which stays.
Moments = Callable[[Any], tuple[Any, Any]]


def _two_passes(x: Any) -> tuple[Any, Any]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


def _one_pass(x: Any) -> tuple[Any, Any]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)


def _one_pass_of_blocks(x: Any) -> tuple[Any, Any]:
    parts, n = [x[..., at] for at in blocks(x.shape[-1])], x.shape[-1]
    mean = sum(part.sum(-1, keepdim=True) for part in parts) / n
    return mean, (sum(part.square().sum(-1, keepdim=True) for part in parts) / n - mean.square()).clamp_min(0)


def _shifted(x: Any) -> tuple[Any, Any]:
    """One pass over x − K with the middle of the values for K (Chan, Golub, LeVeque 1983)."""
    middle = (x.amax(-1, keepdim=True) / 2) + (x.amin(-1, keepdim=True) / 2)
    mean, var = _one_pass(x - middle)
    return mean + middle, var


def _merged(count: Callable[[int, int], float] = lambda n, m: n * m / (n + m), own: float = 0.0) -> Moments:
    """Moments of blocks, merged in pairs (Chan, Golub, LeVeque 1983). count: the weight of the square of a difference
    of means; own: the size that every block is taken for, 0 for its own."""

    def moments(x: Any) -> tuple[Any, Any]:
        n, mean, squares = 0.0, torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
        for at in blocks(x.shape[-1]):
            part = x[..., at]
            m = own or part.shape[-1]
            other, var = _two_passes(part)
            delta = other - mean
            mean = mean + delta * (m / (n + m))
            squares = squares + var * m + delta.square() * (count(n, m) if n else 0.0)  # type: ignore[arg-type]
            n += m
        return mean, squares / n

    return moments


def _running(x: Any) -> tuple[Any, Any]:
    """Welford's recurrence (1962), one element at a time."""
    mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for k in range(x.shape[-1]):
        delta = x[..., k : k + 1] - mean
        mean = mean + delta / (k + 1)
        squares = squares + delta * (x[..., k : k + 1] - mean)
    return mean, squares / x.shape[-1]


def _normalised(moments: Moments, x: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) * torch.rsqrt(var + EPS)


def _exactly_normalised(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    result: np.ndarray = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    return result


def _layer_norm(moments: Moments) -> Kernel:
    def kernel(x: Any, weight: Any, bias: Any) -> Any:
        return (_normalised(moments, x.float()) * weight.float() + bias.float()).to(x.dtype)

    return kernel


_LAYER_NORM: dict[str, Any] = {
    "reference": lambda x, weight, bias: _exactly_normalised(x) * weight + bias,
    "inputs": {**ROWS, "weight": ["n"], "bias": ["n"]},
    "dims": DIMS,
    "op_class": "normalisation",
}

THEME.add(
    "layer_norm_of_moments",
    **_LAYER_NORM,
    dtypes=["float32", "float16"],
    right=_layer_norm(_two_passes),
    wrong={
        "one_pass": (CANCELLATION, _layer_norm(_one_pass)),
        "one_pass_of_blocks": (CANCELLATION, _layer_norm(_one_pass_of_blocks)),
    },
)
THEME.add(
    "layer_norm_of_merged_moments",
    **_LAYER_NORM,
    right=_layer_norm(_merged()),
    wrong={
        "means_not_merged": ("missing rescale", _layer_norm(_merged(lambda n, m: 0.0))),
        "equal_counts": ("missing rescale", _layer_norm(_merged(own=BLOCK))),
    },
)
THEME.add(
    "layer_norm_gradient_of_moments",
    **_LAYER_NORM | {"dims": {"rows": [1, 3], "n": [31, 65]}},
    gradient=["x", "weight"],
    right=_layer_norm(_two_passes),
    wrong={"one_pass": (CANCELLATION, _layer_norm(_one_pass))},
)


def _channels(moments: Moments) -> Kernel:
    def kernel(x: Any) -> Any:
        by_channel = x.transpose(0, 1).reshape(x.shape[1], -1)
        return _normalised(moments, by_channel).reshape(x.shape[1], x.shape[0], -1).transpose(0, 1).contiguous()

    return kernel


def _channels_exactly(x: np.ndarray) -> np.ndarray:
    by_channel = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
    return _exactly_normalised(by_channel).reshape(x.shape[1], x.shape[0], -1).transpose(1, 0, 2)


THEME.add(
    "batch_norm_of_moments",
    reference=_channels_exactly,
    inputs={"x": ["batch", 6, "width"]},
    dims={"batch": [2, 5], "width": [7, 64]},
    op_class="normalisation",
    right=_channels(_shifted),
    wrong={"one_pass": (CANCELLATION, _channels(_one_pass))},
)


def _groups(moments: Moments) -> Kernel:
    return lambda x: _normalised(moments, x.reshape(x.shape[0], 4, -1)).reshape(x.shape)


THEME.add(
    "group_norm_of_moments",
    reference=lambda x: _exactly_normalised(x.reshape(x.shape[0], 4, -1)).reshape(x.shape),
    inputs={"x": ["batch", 16, "width"]},
    dims={"batch": [2, 5], "width": [7, 64]},
    op_class="normalisation",
    right=_groups(_running),
    wrong={"one_pass": (CANCELLATION, _groups(_one_pass))},
)
THEME.add(
    "var_of_moments",
    reference=lambda x: x.var(-1),
    inputs=ROWS,
    dims=DIMS,
    op_class="reduction",
    right=lambda x: _shifted(x)[1][..., 0],
    wrong={"one_pass": (CANCELLATION, lambda x: _one_pass(x)[1][..., 0])},
)
THEME.add(
    "std_of_moments",
    reference=lambda x: x.std(-1),
    inputs=ROWS,
    dims=DIMS,
    op_class="reduction",
    right=lambda x: _merged()(x)[1][..., 0].sqrt(),
    wrong={
        "one_pass": (CANCELLATION, lambda x: _one_pass_of_blocks(x)[1][..., 0].sqrt()),
        "means_not_merged": ("missing rescale", lambda x: _merged(lambda n, m: 0.0)(x)[1][..., 0].sqrt()),
    },
)


def _centred(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True)


def _raw_covariance(x: Any, y: Any) -> Any:
    return (x * y).mean(-1) - x.mean(-1) * y.mean(-1)


THEME.add(
    "covariance_of_moments",
    reference=lambda x, y: (_centred(x) * _centred(y)).mean(-1),
    inputs=PAIRS,
    dims=DIMS,
    op_class="reduction",
    right=lambda x, y: (_centred(x) * _centred(y)).mean(-1),
    wrong={"of_raw_products": (CANCELLATION, _raw_covariance)},
)


def _correlation(x: Any, y: Any) -> Any:
    a, b = _centred(x), _centred(y)
    return (a * b).sum(-1) / (a * a).sum(-1) ** 0.5 / (b * b).sum(-1) ** 0.5


def _raw_correlation(x: Any, y: Any) -> Any:
    return _raw_covariance(x, y) / (_one_pass(x)[1] * _one_pass(y)[1])[..., 0].sqrt()


THEME.add(
    "correlation_of_moments",
    reference=_correlation,
    inputs=PAIRS,
    dims=DIMS,
    op_class="normalisation",
    right=_correlation,
    wrong={"of_raw_products": (CANCELLATION, _raw_correlation)},
)
THEME.add(
    "slope_of_moments",
    reference=lambda x, y: (_centred(x) * y).sum(-1) / (_centred(x) ** 2).sum(-1),
    inputs=PAIRS,
    dims=DIMS,
    op_class="normalisation",
    right=lambda x, y: (_centred(x) * _centred(y)).sum(-1) / (_centred(x) ** 2).sum(-1),
    wrong={"of_raw_products": (CANCELLATION, lambda x, y: _raw_covariance(x, y) / _one_pass(x)[1][..., 0])},
)


def _expanded_distances(x: Any) -> Any:
    a, b = x[1:], x[:-1]
    return ((a * a).sum(-1) + (b * b).sum(-1) - 2 * (a * b).sum(-1)).clamp_min(0).sqrt()


THEME.add(
    "distances_of_moments",
    reference=lambda x: np.sqrt(((x[1:] - x[:-1]) ** 2).sum(-1)),
    inputs=ROWS,
    dims={"rows": [3, 9], "n": [8, 33]},
    op_class="reduction",
    right=lambda x: (x[1:] - x[:-1]).square().sum(-1).sqrt(),
    wrong={"of_squares": (CANCELLATION, _expanded_distances)},
)
