"""Normalisations: statistics, epsilon, affine parameters, groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("normalisation", __name__)
EPS = 1e-5


def _layer_norm_reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * weight + bias


def _layer_norm(
    eps: float = EPS,
    outside: bool = False,
    ddof: int = 0,
    axis: int = -1,
    affine: str = "row",
    centre: bool = True,
    one_pass: bool = False,
    sign: int = 1,
) -> Kernel:
    """outside: eps added to the root; affine: "row", "column" (over the wrong axis) or "no bias"."""

    def kernel(x: Any, weight: Any, bias: Any) -> Any:
        wide, n = x.float(), x.shape[axis]
        mean = wide.mean(axis, keepdim=True)
        if one_pass:
            var = wide.square().mean(axis, keepdim=True) - mean.square()
        else:
            var = (wide - mean).square().sum(axis, keepdim=True) / (n - ddof)
        scale = 1 / (var.sqrt() + eps) if outside else torch.rsqrt(var + eps)
        out = (wide - mean if centre else wide) * scale
        w, b = (weight[:, None], bias[:, None]) if affine == "column" else (weight, bias)
        out = out * w.float()
        return (out if affine == "no bias" else out + sign * b.float()).to(x.dtype)

    return kernel


THEME.add(
    "layer_norm",
    reference=_layer_norm_reference,
    inputs={"x": {"shape": ["n", "n"], "low": -0.01, "high": 0.01}, "weight": ["n"], "bias": ["n"]},
    dims={"n": [33, 128]},
    dtypes=["float32"],
    op_class="normalisation",
    right=_layer_norm(),
    wrong={
        "epsilon_1e-6": ("epsilon", _layer_norm(eps=1e-6)),
        "epsilon_outside_root": ("epsilon", _layer_norm(outside=True)),
        "unbiased": ("biased variance", _layer_norm(ddof=1)),
        "wrong_axis": ("wrong axis", _layer_norm(axis=0)),
        "affine_over_rows": ("broadcast", _layer_norm(affine="column")),
        "no_bias": ("argument ignored", _layer_norm(affine="no bias")),
        "bias_subtracted": ("sign", _layer_norm(sign=-1)),
    },
)

THEME.add(
    "layer_norm_of_offset",
    reference=_layer_norm_reference,
    inputs={"x": {"shape": [5, "n"], "low": 4000, "high": 4002}, "weight": ["n"], "bias": ["n"]},
    dims={"n": [65, 127]},
    op_class="normalisation",
    right=_layer_norm(),
    wrong={
        "one_pass": ("cancellation", _layer_norm(one_pass=True)),
        "not_centred": ("missing rescale", _layer_norm(centre=False)),
    },
)


def _narrow_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS) * weight + bias


def _statistics_of_first_row(x: Any, weight: Any, bias: Any) -> Any:
    wide = x.float()
    var, mean = torch.var_mean(wide[:1], -1, correction=0, keepdim=True)
    return ((wide - mean) * torch.rsqrt(var + EPS) * weight.float() + bias.float()).to(x.dtype)


THEME.add(
    "layer_norm_of_half",
    reference=_layer_norm_reference,
    inputs={"x": {"shape": [9, "n"], "low": -400, "high": 600}, "weight": ["n"], "bias": ["n"]},
    dims={"n": [768, 1025]},
    dtypes=["float16"],
    op_class="normalisation",
    right=_layer_norm(),
    wrong={
        "float16_squares": ("overflow", _narrow_layer_norm),
        "statistics_of_first_row": ("broadcast", _statistics_of_first_row),
    },
)


def _rms_norm(eps: float = 1e-6, mean: bool = True, root: bool = True) -> Kernel:
    def kernel(x: Any, weight: Any) -> Any:
        wide = x.float()
        squares = wide.square()
        size = squares.mean(-1, keepdim=True) if mean else squares.sum(-1, keepdim=True)
        return (wide * (torch.rsqrt(size + eps) if root else 1 / (size + eps)) * weight.float()).to(x.dtype)

    return kernel


THEME.add(
    "rms_norm",
    reference=lambda x, weight: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight,
    inputs={"x": {"shape": [5, "n"], "low": -0.003, "high": 0.003}, "weight": ["n"]},
    dims={"n": [33, 256]},
    dtypes=["float16", "float32"],
    op_class="normalisation",
    right=_rms_norm(),
    wrong={
        "no_epsilon": ("epsilon", _rms_norm(eps=0.0)),
        "sum_of_squares": ("missing scale", _rms_norm(mean=False)),
        "no_root": ("cruder formula", _rms_norm(root=False)),
    },
)


def _group_norm(groups: int = 4, interleaved: bool = False, affine: bool = True) -> Kernel:
    def kernel(x: Any, weight: Any) -> Any:
        n, c, width = x.shape
        order = torch.arange(c).reshape(-1, groups).t().reshape(-1) if interleaved else torch.arange(c)
        g = x[:, order].reshape(n, groups, -1)
        var, mean = torch.var_mean(g, -1, correction=0, keepdim=True)
        out = torch.empty_like(x)
        out[:, order] = ((g - mean) * torch.rsqrt(var + EPS)).reshape(n, c, width)
        return out * (weight[:, None] if affine else weight[0])

    return kernel


def _group_norm_reference(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    g = x.reshape(x.shape[0], 4, -1)
    g = (g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + EPS)
    return g.reshape(x.shape) * weight[:, None]


THEME.add(
    "group_norm",
    reference=_group_norm_reference,
    inputs={"x": ["batch", 16, "width"], "weight": [16]},
    dims={"batch": [2], "width": [7, 32]},
    op_class="normalisation",
    right=_group_norm(),
    wrong={
        "eight_groups": ("grouping", _group_norm(groups=8)),
        "interleaved": ("pairing", _group_norm(interleaved=True)),
        "weight_of_first_channel": ("broadcast", _group_norm(affine=False)),
    },
)


def _batch_norm(axes: tuple[int, ...] = (0, 2), ddof: int = 0) -> Kernel:
    def kernel(x: Any) -> Any:
        var, mean = torch.var_mean(x, axes, correction=ddof, keepdim=True)
        return (x - mean) * torch.rsqrt(var + EPS)

    return kernel


THEME.add(
    "batch_norm",
    reference=lambda x: (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + EPS),
    inputs={"x": ["batch", 6, "width"]},
    dims={"batch": [4], "width": [9, 31]},
    op_class="normalisation",
    right=_batch_norm(),
    wrong={"per_sample": ("wrong axis", _batch_norm(axes=(2,))), "unbiased": ("biased variance", _batch_norm(ddof=1))},
)


def _unit(eps: float = 1e-3, added: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        size = x.square().sum(-1, keepdim=True).sqrt()
        return x / (size + eps if added else size.clamp_min(eps))

    return kernel


THEME.add(
    "normalize",
    reference=lambda x: x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 1e-3),
    inputs={"x": {"shape": [4, 3], "data": [1e-4, 2e-4, -3e-4, 0.3, 0.4, 1.2, 0, 0, 0, -2, 1, 5]}},
    op_class="normalisation",
    right=_unit(),
    wrong={"epsilon_added": ("epsilon", _unit(added=True)), "no_epsilon": ("epsilon", _unit(eps=0.0))},
)
