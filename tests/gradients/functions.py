"""Functions whose gradients are hard to judge: steep, tied, saturated, cancelling. Each as a kernel that is right, one with a planted fault
(a sign, a factor, a term that is missing), a reference of NumPy arrays and one of torch tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F


def derived(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of x, or of x and y, with a backward pass of its own: from a gradient and the inputs to their
    gradients."""

    class Derived(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.save_for_backward(*given)
            return forward(*given)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g, *ctx.saved_tensors)

    def of_one(x: Any) -> Any:
        return Derived.apply(x)

    def of_two(x: Any, y: Any) -> Any:
        return Derived.apply(x, y)

    return of_two if forward.__code__.co_argcount == 2 else of_one


@dataclass(frozen=True)
class Function:
    """One function. numpy, torch: references; kernel: right; wrong: the backward pass of its twin; inputs: name →
    values that are hard; low, high: of values that are not, of the same shapes, where the twin is to be found (at a
    tie, next to nothing is wrong)."""

    name: str
    inputs: dict[str, Any]
    numpy: Callable[..., Any]
    torch: Callable[..., Any]
    kernel: Callable[..., Any]
    wrong: Callable[..., Any]
    low: float = -2.0
    high: float = 2.0

    @property
    def twin(self) -> Callable[..., Any]:
        return derived(self.kernel, self.wrong)

    @property
    def plain(self) -> dict[str, Any]:
        generator = np.random.default_rng(1)
        return {name: generator.uniform(self.low, self.high, np.shape(x)) for name, x in self.inputs.items()}


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _logsumexp(x: Any) -> Any:
    m = x.max(-1, keepdims=True)
    return np.log(np.exp(x - m).sum(-1)) + m[..., 0]


def _rms(x: Any) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _rms_torch(x: Any) -> Any:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def _layer(x: Any) -> Any:
    d = x - np.mean(x, axis=-1, keepdims=True)
    return d / np.sqrt(np.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def _layer_torch(x: Any) -> Any:
    d = x - x.mean(-1, keepdim=True)
    return d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-5)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _sigmoid_torch(x: Any) -> Any:
    return 1 / (1 + torch.exp(-x))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _cosine(x: Any, y: Any) -> Any:
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))


def _cosine_torch(x: Any, y: Any) -> Any:
    return (x * y).sum(-1) / torch.sqrt((x * x).sum(-1) * (y * y).sum(-1))


_erf = np.vectorize(math.erf, otypes=[float])
_softmax_less = lambda g, x: torch.softmax(x, -1) * g  # noqa: E731
_rms_kernel = lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)  # noqa: E731
_layer_kernel = lambda x: F.layer_norm(x, (x.shape[-1],))  # noqa: E731
_layer_less = lambda g, x: (  # noqa: E731
    (g - g.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)
)
_rms_less = lambda g, x: g * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)  # noqa: E731
_g = np.random.default_rng(0)

FUNCTIONS = (
    Function(
        "softmax, far apart",
        {"x": [[1e8, 1e8 - 8, 0, -1e8], [1, 2, 3, 4]]},
        _softmax,
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
        _softmax_less,
    ),
    Function(
        "softmax, a tie of 1e9",
        {"x": [[1e9, 1e9, 0, -1]]},
        _softmax,
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
        _softmax_less,
    ),
    Function(
        "softmax, a tie of 1e15",
        {"x": [[1e15, 1e15, 0, -1]]},
        _softmax,
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
        _softmax_less,
    ),
    Function(
        "softmax, all equal",
        {"x": [[3.0] * 5, [-1e6] * 5]},
        _softmax,
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
        _softmax_less,
    ),
    Function(
        "softmax, steep",
        {"x": _g.normal(size=(3, 6)) * 1000},
        lambda x: _softmax(x * 5),
        lambda x: torch.softmax(x * 5, -1),
        lambda x: torch.softmax(x * 5, -1),
        lambda g, x: torch.softmax(x * 5, -1) * g,
    ),
    Function(
        "log softmax, saturated",
        {"x": [[100, 0, -100], [1, 0, 2]]},
        lambda x: x - _logsumexp(x)[..., None],
        lambda x: x - torch.logsumexp(x, -1, keepdim=True),
        lambda x: torch.log_softmax(x, -1),
        lambda g, x: g - torch.softmax(x, -1),
    ),
    Function(
        "logsumexp, a tie of 1e4",
        {"x": [[1e4, 1e4, 0], [1, 2, 3]]},
        _logsumexp,
        lambda x: torch.logsumexp(x, -1),
        lambda x: torch.logsumexp(x, -1),
        lambda g, x: g[..., None] * torch.exp(x - x.amax(-1, keepdim=True)),
    ),
    Function(
        "logaddexp of equals",
        {"x": [1e4, 3, -50], "y": [1e4, 3, 50]},
        lambda x, y: np.logaddexp(x, y),
        torch.logaddexp,
        lambda x, y: torch.logaddexp(x, y),
        lambda g, x, y: (g, g * torch.sigmoid(y - x)),
    ),
    Function(
        "silu, far out",
        {"x": [-1000, -100, -20, -1, 0, 1, 100, 1000]},
        lambda x: x / (1 + np.exp(-x)),
        lambda x: x / (1 + torch.exp(-x)),
        lambda x: F.silu(x),
        lambda g, x: g * (torch.sigmoid(x) + x * torch.sigmoid(x)),
    ),
    Function(
        "sigmoid, ±50",
        {"x": [-50, -20, -1, 0.5, 20, 50]},
        _sigmoid,
        _sigmoid_torch,
        lambda x: torch.sigmoid(x),
        lambda g, x: g * torch.sigmoid(x),
    ),
    Function(
        "log sigmoid, ±100",
        {"x": [-100, -1, 0.5, 100]},
        lambda x: -np.logaddexp(0, -x),
        lambda x: F.logsigmoid(x),
        lambda x: F.logsigmoid(x),
        lambda g, x: g * torch.sigmoid(x),
    ),
    Function(
        "softplus, ±1e3",
        {"x": [-1e3, -30, -1, 0.5, 30, 1e3]},
        lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        lambda x: torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs())),
        lambda x: F.softplus(x),
        lambda g, x: g * torch.sigmoid(-x),
    ),
    Function(
        "tanh, saturated",
        {"x": [-20, -9, -0.01, 0.5, 9, 20]},
        np.tanh,
        torch.tanh,
        lambda x: torch.tanh(x),
        lambda g, x: g * (1 - torch.tanh(x)),
    ),
    Function(
        "gelu of tanh, tails",
        {"x": [-12, -6, -3, -0.1, 0.1, 3, 12]},
        _gelu_tanh,
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda g, x: g * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    Function(
        "gelu of erf, tails",
        {"x": [-12, -5, -3, -0.1, 0.1, 3, 12]},
        lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        lambda x: F.gelu(x),
        lambda g, x: g * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    ),
    Function(
        "erf, tails",
        {"x": [-4, -1, 0, 2, 5]},
        _erf,
        torch.erf,
        lambda x: torch.erf(x),
        lambda g, x: g * torch.exp(-x * x),
    ),
    Function(
        "RMSNorm of one number",
        {"x": [[3.0], [-0.25], [1e-3], [2e-2]]},
        _rms,
        _rms_torch,
        _rms_kernel,
        _rms_less,
        low=-2e-3,
        high=2e-3,
    ),
    Function(
        "RMSNorm, one large",
        {"x": [[1e6, 1, -2, 0.5], [1e-3, 2e-3, -1e-3, 0]]},
        _rms,
        _rms_torch,
        _rms_kernel,
        _rms_less,
    ),
    Function(
        "LayerNorm, tiny variance",
        {"x": 1 + 1e-3 * _g.normal(size=(3, 8))},
        _layer,
        _layer_torch,
        _layer_kernel,
        lambda g, x: -_layer_less(g, x),
    ),
    Function(
        "LayerNorm, no variance",
        {"x": [[2.0] * 6, [0.0] * 6]},
        _layer,
        _layer_torch,
        _layer_kernel,
        lambda g, x: g * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5),
    ),
    Function(
        "LayerNorm, offset", {"x": 1000 + _g.normal(size=(2, 7))}, _layer, _layer_torch, _layer_kernel, _layer_less
    ),
    Function(
        "norm at 0",
        {"x": [[0, 0, 0], [3, 4, 0], [1e-6, 0, 0]]},
        lambda x: np.sqrt((x * x).sum(-1)),
        lambda x: torch.sqrt((x * x).sum(-1)),
        lambda x: torch.linalg.vector_norm(x, dim=-1),
        lambda g, x: 2 * g[..., None] * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    ),
    Function(
        "normalise",
        {"x": [[1e-3, 2e-3, 0], [5, 0, 0], [1e4, -3, 2]]},
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)),
        lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True)),
        lambda x: F.normalize(x, dim=-1),
        lambda g, x: g / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    ),
    Function(
        "cosine of the nearly parallel",
        {"x": [[1, 2, 3], [1, 0, 1e-3]], "y": [[1, 2, 3.001], [1, 1e-3, 0]]},
        _cosine,
        _cosine_torch,
        lambda x, y: F.cosine_similarity(x, y, dim=-1),
        lambda g, x, y: tuple(
            g[..., None] * b / (x.norm(dim=-1, keepdim=True) * y.norm(dim=-1, keepdim=True)) for b in (y, x)
        ),
    ),
    Function(
        "sqrt near 0",
        {"x": [1e-30, 1e-12, 1e-4, 1]},
        np.sqrt,
        torch.sqrt,
        lambda x: torch.sqrt(x),
        lambda g, x: g / torch.sqrt(x),
        low=0.5,
    ),
    Function("sqrt at 0", {"x": [0, 1, 4]}, np.sqrt, torch.sqrt, lambda x: torch.sqrt(x), lambda g, x: g / x, low=0.5),
    Function(
        "rsqrt near 0",
        {"x": [1e-8, 1e-3, 2]},
        lambda x: 1 / np.sqrt(x),
        torch.rsqrt,
        lambda x: torch.rsqrt(x),
        lambda g, x: -g * x**-1.5,
        low=0.5,
    ),
    Function(
        "log1p near 0 and −1",
        {"x": [1e-12, -1e-9, -0.99, 1e6]},
        np.log1p,
        torch.log1p,
        lambda x: torch.log1p(x),
        lambda g, x: g / (2 + x),
        low=0.5,
    ),
    Function(
        "expm1 near 0",
        {"x": [1e-12, -1e-6, -50, 3]},
        np.expm1,
        torch.expm1,
        lambda x: torch.expm1(x),
        lambda g, x: g * torch.expm1(x),
    ),
    Function(
        "cross entropy, saturated",
        {"x": [[50, -50, 0], [1, 2, 3]], "y": [[1, 0, 0], [0, 0, 1]]},
        lambda x, y: _logsumexp(x) - (x * y).sum(-1),
        lambda x, y: torch.logsumexp(x, -1) - (x * y).sum(-1),
        lambda x, y: F.cross_entropy(x, y, reduction="none") + 0 * y.sum(-1) + torch.logsumexp(x, -1) * (1 - y.sum(-1)),
        lambda g, x, y: (g[..., None] * (torch.softmax(x, -1) + y), -g[..., None] * x),
    ),
    Function(
        "binary cross entropy, saturated",
        {"x": [-100, -1, 2, 100], "y": [0.25, 1, 0, 0.5]},
        lambda x, y: np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x))),
        lambda x, y: F.softplus(x) - x * y,
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
        lambda g, x, y: (g * (torch.sigmoid(x) + y), -g * x),
    ),
    Function(
        "hypot",
        {"x": [3, 1e4, 1e-10], "y": [4, 1e-4, 1e-10]},
        lambda x, y: np.hypot(x, y),
        torch.hypot,
        lambda x, y: torch.hypot(x, y),
        lambda g, x, y: (g * y / torch.hypot(x, y), g * x / torch.hypot(x, y)),
    ),
    Function(
        "atan2 near its cut",
        {"x": [1e-3, -1e-3, 1, 0], "y": [-1, -1, 0, 2]},
        lambda x, y: np.arctan2(x, y),
        torch.atan2,
        lambda x, y: torch.atan2(x, y),
        lambda g, x, y: (g * y / (x * x + y * y), g * x / (x * x + y * y)),
    ),
    Function("abs at 0", {"x": [-2, 0, 3]}, np.abs, torch.abs, lambda x: torch.abs(x), lambda g, x: g),
    Function(
        "relu at 0",
        {"x": [-2, 0, 3]},
        lambda x: np.maximum(x, 0),
        torch.relu,
        lambda x: torch.relu(x),
        lambda g, x: g * (x < 0),
    ),
    Function(
        "max at ties",
        {"x": [[2, 2, 1], [3, 1, 0]]},
        lambda x: x.max(-1),
        lambda x: torch.amax(x, -1),
        lambda x: torch.amax(x, -1),
        lambda g, x: g[..., None] * torch.ones_like(x),
    ),
    Function(
        "maximum of equals",
        {"x": [1, 2, 3e8], "y": [1, 3, 3e8]},
        lambda x, y: np.maximum(x, y),
        torch.maximum,
        lambda x, y: torch.maximum(x, y),
        lambda g, x, y: (g * (x < y), g * (y < x)),
    ),
    Function(
        "clamp at its ends",
        {"x": [-1.5, -1, 0.3, 1, 2]},
        lambda x: np.clip(x, -1, 1),
        lambda x: torch.clamp(x, -1, 1),
        lambda x: torch.clamp(x, -1, 1),
        lambda g, x: g,
    ),
    Function(
        "elu at 0 and far out",
        {"x": [-100, -1e-3, 0.5, 0]},
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        lambda x: F.elu(x),
        lambda x: F.elu(x),
        lambda g, x: g * torch.where(x > 0, 1, torch.expm1(x)),
    ),
    Function(
        "huber at its bend",
        {"x": [-3, -1, 0.25, 1, 1e5]},
        lambda x: np.where(np.abs(x) < 1, 0.5 * x * x, np.abs(x) - 0.5),
        lambda x: torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5),
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
        lambda g, x: g * x,
    ),
    Function(
        "x·log x",
        {"x": [1e-20, 0.5, 1, 40]},
        lambda x: x * np.log(x),
        lambda x: x * torch.log(x),
        lambda x: torch.xlogy(x, x),
        lambda g, x: g * torch.log(x),
        low=0.5,
    ),
    Function(
        "cumsum, cancelling",
        {"x": [[1e6, 1, -1e6, 2, -3], [1, 2, 3, 4, 5]]},
        lambda x: np.cumsum(x, -1) ** 2,
        lambda x: torch.cumsum(x, -1) ** 2,
        lambda x: torch.cumsum(x, -1).square(),
        lambda g, x: torch.cumsum(2 * g * torch.cumsum(x, -1), -1),
    ),
    Function(
        "sum, cancelling",
        {"x": [[1e4, -1e4, 1e-2, 3], [1, -1, 1, -1]]},
        lambda x: np.sin(x.sum(-1)),
        lambda x: torch.sin(x.sum(-1)),
        lambda x: torch.sin(x.sum(-1)),
        lambda g, x: (g * torch.cos(x[..., 0]))[..., None].expand_as(x),
    ),
    Function(
        "variance by squares",
        {"x": 100 + _g.normal(size=(2, 6))},
        lambda x: (x * x).mean(-1) - x.mean(-1) ** 2,
        lambda x: (x * x).mean(-1) - x.mean(-1) ** 2,
        lambda x: torch.var(x, -1, correction=0),
        lambda g, x: 2 * g[..., None] * x / x.shape[-1],
    ),
    Function(
        "product, cancelling",
        {"x": [[1e4, -1e4, 1], [1, 2, 3]], "y": [[1, 2], [1, 2.001], [3, 4]]},
        lambda x, y: np.tanh(x @ y),
        lambda x, y: torch.tanh(x @ y),
        lambda x, y: torch.tanh(x @ y),
        lambda g, x, y: (g @ y.T, x.T @ (g * (1 - torch.tanh(x @ y) ** 2))),
    ),
    Function(
        "reciprocal near 0",
        {"x": [1e-5, -1e-3, 7, 1e9]},
        lambda x: 1 / x,
        torch.reciprocal,
        lambda x: 1 / x,
        lambda g, x: g / x**2,
    ),
    Function(
        "power of 1.5",
        {"x": [1e-10, 1e-2, 4]},
        lambda x: x**1.5,
        lambda x: x**1.5,
        lambda x: x * torch.sqrt(x),
        lambda g, x: g * torch.sqrt(x),
        low=0.5,
    ),
    Function(
        "logit near its ends",
        {"x": [1e-6, 0.3, 1 - 2.0**-20]},
        lambda x: np.log(x / (1 - x)),
        lambda x: torch.log(x / (1 - x)),
        lambda x: torch.logit(x),
        lambda g, x: g / x,
        low=0.1,
        high=0.9,
    ),
    Function(
        "log of cosh",
        {"x": [-80, -1, 1e-3, 80]},
        lambda x: np.log(np.cosh(x)),
        lambda x: torch.log(torch.cosh(x)),
        lambda x: x.abs() + F.softplus(-2 * x.abs()) - math.log(2),
        lambda g, x: -g * torch.tanh(x),
    ),
    Function(
        "sine of large numbers",
        {"x": [1e4, -3e5, 0.5]},
        np.sin,
        torch.sin,
        lambda x: torch.sin(x),
        lambda g, x: -g * torch.cos(x),
    ),
    Function(
        "a steep step",
        {"x": [-1e-7, 1e-8, 0.5, 1]},
        lambda x: np.tanh(1e6 * x),
        lambda x: torch.tanh(1e6 * x),
        lambda x: torch.tanh(1e6 * x),
        lambda g, x: g * (1 - torch.tanh(1e6 * x) ** 2),
        low=-1e-6,
        high=1e-6,
    ),
)
