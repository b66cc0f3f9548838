"""Gradients: kernels that bring their own backward pass, whose forward pass is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.operators.formulas import compute_log_softmax, compute_softmax
from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("gradients", __name__)
TERM, SUM = "gradient term", "gradient not summed"
X = {"x": [3, "n"]}
DIMS = {"n": [5, 8]}


def with_backward(forward: Callable[..., Any], backward: Callable[..., Any]) -> Kernel:
    """A kernel ``forward(*inputs)`` with the gradients ``backward(g, output, *inputs)``: one per input, or a tuple of
    them."""

    def kernel(**inputs: Any) -> Any:
        class Op(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, *tensors: Any) -> Any:
                out = forward(*tensors)
                ctx.save_for_backward(out, *tensors)
                return out

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return backward(g, *ctx.saved_tensors)

        return Op.apply(*inputs.values())

    return kernel


def _add(
    name: str,
    reference: Kernel,
    forward: Callable[..., Any],
    right: Callable[..., Any],
    wrong: dict[str, tuple[str, Callable[..., Any]]],
    inputs: dict[str, Any] | None = None,
    gradient: tuple[str, ...] = ("x",),
    **settings: Any,
) -> None:
    THEME.add(
        f"{name}_gradient",
        reference=reference,
        inputs=inputs or X,
        dims=DIMS,
        gradient=list(gradient),
        right=with_backward(forward, right),
        wrong={fault: (kind, with_backward(forward, backward)) for fault, (kind, backward) in wrong.items()},
        **settings,
    )


_add(
    "linear",
    lambda x, w, b: x @ w + b,
    lambda x, w, b: x @ w + b,
    lambda g, y, x, w, b: (g @ w.t(), x.t() @ g, g.sum(0)),
    {
        "bias_of_one_row": (SUM, lambda g, y, x, w, b: (g @ w.t(), x.t() @ g, g[0])),
        "bias_averaged": (SUM, lambda g, y, x, w, b: (g @ w.t(), x.t() @ g, g.mean(0))),
        "weight_transposed": ("stride ignored", lambda g, y, x, w, b: (g @ w.t(), g.t() @ x, g.sum(0))),
        "weight_not_transposed": ("stride ignored", lambda g, y, x, w, b: (g @ w, x.t() @ g, g.sum(0))),
    },
    inputs={"x": [3, 4], "w": [4, 4], "b": [4]},
    gradient=("x", "w", "b"),
    op_class="contraction",
)

_add(
    "row_scale",
    lambda x, w: x * w,
    lambda x, w: x * w,
    lambda g, y, x, w: (g * w, (g * x).sum(0)),
    {
        "last_row_alone": (SUM, lambda g, y, x, w: (g * w, (g * x)[-1])),
        "input_left_out": (TERM, lambda g, y, x, w: (g * w, g.sum(0))),
        "scale_left_out": (TERM, lambda g, y, x, w: (g, (g * x).sum(0))),
    },
    inputs={"x": [3, "n"], "w": ["n"]},
    gradient=("x", "w"),
)

_add(
    "row_bias",
    lambda x, b: x + b,
    lambda x, b: x + b,
    lambda g, y, x, b: (g, g.sum(0)),
    {"summed_over_columns": ("wrong axis", lambda g, y, x, b: (g, g.sum(1)))},
    inputs={"x": ["n", "n"], "b": ["n"]},
    gradient=("x", "b"),
)

_add(
    "softmax",
    lambda x: compute_softmax(x),
    lambda x: torch.softmax(x, -1),
    lambda g, y, x: y * (g - (g * y).sum(-1, keepdim=True)),
    {
        "no_sum": (TERM, lambda g, y, x: y * g),
        "sum_of_gradient": (TERM, lambda g, y, x: y * (g - g.sum(-1, keepdim=True))),
        "wrong_axis": ("wrong axis", lambda g, y, x: y * (g - (g * y).sum(0, keepdim=True))),
    },
)


def _log_softmax_by_log1p(x: Any) -> Any:
    """The largest term of the sum is 1: torch.log_softmax adds the others to it, and returns 0 where they are less than
    ε."""
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - torch.log1p(shifted.sort(-1).values[..., :-1].exp().sum(-1, keepdim=True))


THEME.add(
    "log_softmax",
    reference=lambda x: compute_log_softmax(x),
    inputs={"x": {"shape": [3, "n"], "low": -40, "high": 40}},
    dims=DIMS,
    op_class="normalisation",
    right=_log_softmax_by_log1p,
    wrong={"log_of_sum": ("cancellation", lambda x: torch.log_softmax(x, -1))},
)

THEME.add(
    "log_softmax_of_tensors",
    reference=lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    reference_framework="torch",
    inputs={"x": {"shape": [3, "n"], "low": -40, "high": 40}},
    dims=DIMS,
    op_class="normalisation",
    right=_log_softmax_by_log1p,
    wrong={"log_of_sum": ("cancellation", lambda x: torch.log_softmax(x, -1))},
)

_add(
    "log_softmax",
    lambda x: compute_log_softmax(x),
    _log_softmax_by_log1p,
    lambda g, y, x: g - y.exp() * g.sum(-1, keepdim=True),
    {
        "no_sum": (TERM, lambda g, y, x: g),
        "not_summed": (SUM, lambda g, y, x: g - y.exp() * g),
        "exp_of_input": (TERM, lambda g, y, x: g - x.exp() * g.sum(-1, keepdim=True)),
    },
)


def _normalised(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _statistics(x: Any) -> tuple[Any, Any]:
    """(normalised x, 1/σ) over the last axis."""
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(var + 1e-5)
    return (x - mean) * scale, scale


def _layer_norm_backward(of_mean: bool = True, of_variance: bool = True, scaled: bool = True) -> Callable[..., Any]:
    def backward(g: Any, y: Any, x: Any) -> Any:
        unit, scale = _statistics(x)
        out = (
            g
            - (g.mean(-1, keepdim=True) if of_mean else 0)
            - (unit * (g * unit).mean(-1, keepdim=True) if of_variance else 0)
        )
        return out * scale if scaled else out

    return backward


_add(
    "layer_norm",
    _normalised,
    lambda x: _statistics(x)[0],
    _layer_norm_backward(),
    {
        "no_term_of_mean": (TERM, _layer_norm_backward(of_mean=False)),
        "no_term_of_variance": (TERM, _layer_norm_backward(of_variance=False)),
        "not_scaled": ("missing scale", _layer_norm_backward(scaled=False)),
    },
    op_class="normalisation",
)


def _rms_backward(term: bool) -> Callable[..., Any]:
    def backward(g: Any, y: Any, x: Any) -> Any:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return scale * (g - (y * (g * y).mean(-1, keepdim=True) if term else 0))

    return backward


_add(
    "rms_norm",
    lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5),
    lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
    _rms_backward(term=True),
    {"no_term_of_scale": (TERM, _rms_backward(term=False))},
    op_class="normalisation",
)


def _phi(x: Any) -> Any:
    """The normal density."""
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


_add(
    "gelu",
    lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
    lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
    lambda g, y, x: g * (0.5 * torch.erfc(-x * math.sqrt(0.5)) + x * _phi(x)),
    {
        "no_density": (TERM, lambda g, y, x: g * 0.5 * torch.erfc(-x * math.sqrt(0.5))),
        "density_subtracted": ("sign", lambda g, y, x: g * (0.5 * torch.erfc(-x * math.sqrt(0.5)) - x * _phi(x))),
    },
    reference_framework="torch",  # NumPy has no erf
)


def sigmoid(x: Any) -> Any:
    """As a function whose derivative is not taken of its result: that is 1 from 17 on, and 1 − σ 0."""
    return torch.exp(torch.nn.functional.logsigmoid(x))


_add(
    "silu",
    lambda x: x / (1 + np.exp(-x)),
    lambda x: x * torch.sigmoid(x),
    lambda g, y, x: g * sigmoid(x) * (1 + x * sigmoid(-x)),
    {"no_second_term": (TERM, lambda g, y, x: g * torch.sigmoid(x))},
)

_add(
    "tanh",
    lambda x: np.tanh(x),
    lambda x: torch.tanh(x),
    lambda g, y, x: g * (1 - y * y),
    {"of_input": (TERM, lambda g, y, x: g * (1 - x * x)), "no_chain": (TERM, lambda g, y, x: 1 - y * y)},
    kept=True,  # 1 − y² of the rounded y is meant; tails has the other
)

_add(
    "relu",
    lambda x: np.maximum(x, 0),
    lambda x: torch.relu(x),
    lambda g, y, x: g * (x > 0),
    {"mask_of_gradient": ("mask", lambda g, y, x: g.clamp_min(0)), "no_mask": ("mask", lambda g, y, x: g)},
)

_add(
    "square",
    lambda x: x * x,
    lambda x: x * x,
    lambda g, y, x: 2 * g * x,
    {
        "half": ("missing scale", lambda g, y, x: g * x),
        "detached": (TERM, lambda g, y, x: torch.zeros_like(x)),
        "saved_changed": ("mutation", lambda g, y, x: g * x.mul_(2)),
    },
)

_add(
    "cube",
    lambda x: x**3,
    lambda x: x**3,
    lambda g, y, x: 3 * g * x * x,
    {"detached": ("second derivative", lambda g, y, x: 3 * g * x * x.detach())},
)

_add(
    "divide",
    lambda x, y: x / y,
    lambda x, y: x / y,
    lambda g, out, x, y: (g / y, -g * x / (y * y)),
    {
        "positive": ("sign", lambda g, out, x, y: (g / y, g * x / (y * y))),
        "not_squared": (TERM, lambda g, out, x, y: (g / y, -g * x / y)),
    },
    inputs={"x": [3, "n"], "y": {"shape": [3, "n"], "low": 0.5, "high": 2}},
    gradient=("x", "y"),
)

_add(
    "mean",
    lambda x: x.mean(-1),
    lambda x: x.mean(-1),
    lambda g, y, x: (g / x.shape[-1])[:, None].expand_as(x),
    {"not_divided": ("missing scale", lambda g, y, x: g[:, None].expand_as(x))},
    op_class="reduction",
)

_add(
    "norm",
    lambda x: np.sqrt((x * x).sum(-1)),
    lambda x: x.square().sum(-1).sqrt(),
    lambda g, y, x: (g / y)[:, None] * x,
    {"of_square": (TERM, lambda g, y, x: 2 * g[:, None] * x)},
    op_class="reduction",
)

_add(
    "cumsum",
    lambda x: np.cumsum(x, -1),
    lambda x: x.cumsum(-1),
    lambda g, y, x: g.flip(-1).cumsum(-1).flip(-1),
    {"not_reversed": ("order", lambda g, y, x: g.cumsum(-1))},
    op_class="reduction",
)

_add(
    "repeat",
    lambda x: np.concatenate([x, x], -1),
    lambda x: torch.cat([x, x], -1),
    lambda g, y, x: g[:, : x.shape[-1]] + g[:, x.shape[-1] :],
    {"first_copy_alone": (SUM, lambda g, y, x: g[:, : x.shape[-1]])},
)

_add(
    "row_max",
    lambda x: x.max(-1),
    lambda x: x.amax(-1),
    lambda g, y, x: g[:, None] * (x == y[:, None]),
    {"spread": ("mask", lambda g, y, x: (g[:, None] / x.shape[-1]).expand_as(x))},
)


def _rows_backward(accumulate: bool) -> Callable[..., Any]:
    def backward(g: Any, y: Any, x: Any, index: Any) -> Any:
        return torch.zeros_like(x).index_put((index,), g, accumulate=accumulate), None

    return backward


_add(
    "embedding",
    lambda x, index: x[index],
    lambda x, index: x[index],
    _rows_backward(accumulate=True),
    {"duplicates_lost": (SUM, _rows_backward(accumulate=False))},
    inputs={"x": [3, "n"], "index": {"shape": [5], "dtype": "int64", "data": [2, 0, 2, 1, 0]}},
)


def _as_if_dense(g: Any) -> Any:
    """What a device kernel reads that is given a pointer and no strides."""
    flat = torch.as_strided(
        g, (g.untyped_storage().nbytes() // g.element_size() - g.storage_offset(),), (1,), g.storage_offset()
    )
    return flat[: g.numel()].view(g.shape)


_add(
    "strided_square",
    lambda x: x * x,
    lambda x: x * x,
    lambda g, y, x: 2 * x * g,
    {"reads_dense": ("stride ignored", lambda g, y, x: 2 * x * _as_if_dense(g))},
)

_add(
    "strided_linear",
    lambda x, w: x @ w,
    lambda x, w: x @ w,
    lambda g, y, x, w: (g @ w.t(), x.t() @ g),
    {
        "weight_reads_dense": ("stride ignored", lambda g, y, x, w: (g @ w.t(), x.t() @ _as_if_dense(g))),
        "input_reads_dense": ("stride ignored", lambda g, y, x, w: (_as_if_dense(g) @ w.t(), x.t() @ g)),
    },
    inputs={"x": [3, "n"], "w": ["n", 4]},
    gradient=("x", "w"),
    op_class="contraction",
)

_add(
    "strided_row_sum",
    lambda x: x.sum(-1),
    lambda x: x.sum(-1),
    lambda g, y, x: g[:, None].expand_as(x),
    {"reads_dense": ("stride ignored", lambda g, y, x: _as_if_dense(g)[:, None].expand_as(x))},
)
