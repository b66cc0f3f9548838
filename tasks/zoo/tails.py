"""Tails: gradients of functions that saturate or cancel, where the derivative is far smaller than what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.zoo.gradients import sigmoid, with_backward
from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("tails", __name__)
KEPT, CANCELS, TERM = "rounded result kept", "cancellation", "gradient term"


def _add(
    name: str,
    reference: Kernel,
    forward: Callable[..., Any],
    slope: Callable[..., Any],
    wrong: Mapping[str, tuple[str, Callable[..., Any]]],
    low: float = -30.0,
    high: float = 30.0,
    **settings: Any,
) -> None:
    """slope, wrong: the derivative of x, and of (y, x), in the dtype of x."""
    THEME.add(
        f"{name}_tail",
        reference=reference,
        inputs={"x": {"shape": ["n"], "low": low, "high": high}},
        dims={"n": [63, 64]},
        gradient=["x"],
        right=with_backward(forward, lambda g, y, x: g * slope(x)),
        wrong={
            fault: (kind, with_backward(forward, lambda g, y, x, one=one: g * one(y, x)))  # type: ignore[misc]
            for fault, (kind, one) in wrong.items()
        },
        **{"dtypes": ["float32", "float64"]} | settings,
    )


def _sech2(x: Any) -> Any:
    e = torch.exp(-2 * x.abs())
    return 4 * e / (1 + e) ** 2


def _logistic(x: Any) -> Any:
    e = torch.exp(-x.abs())
    return e / (1 + e) ** 2


_add(
    "tanh",
    np.tanh,
    lambda x: torch.tanh(x),
    _sech2,
    {
        "of_the_result": (KEPT, lambda y, x: 1 - y * y),
        "factored": (KEPT, lambda y, x: (1 - y) * (1 + y)),
        "half": (TERM, lambda y, x: _sech2(x) / 2),
    },
)
_add(
    "sigmoid",
    lambda x: 1 / (1 + np.exp(-x)),
    lambda x: torch.sigmoid(x),
    _logistic,
    {
        "of_the_result": (KEPT, lambda y, x: y * (1 - y)),
        "difference": (CANCELS, lambda y, x: y - y * y),
        "inner_result": (CANCELS, lambda y, x: 1 / (1 + torch.exp(-x)) * (1 - 1 / (1 + torch.exp(-x)))),
    },
)
_add(
    "expm1",
    np.expm1,
    lambda x: torch.expm1(x),
    lambda x: torch.exp(x),
    {"of_the_result": (KEPT, lambda y, x: y + 1)},
    high=1.0,
)
_add(
    "elu",
    lambda x: torch.nn.functional.elu(x),
    lambda x: torch.nn.functional.elu(x),
    lambda x: torch.where(x > 0, torch.ones_like(x), torch.exp(x)),
    {"of_the_result": (KEPT, lambda y, x: torch.where(x > 0, torch.ones_like(x), y + 1))},
    reference_framework="torch",
)
_add(
    "log_sigmoid",
    lambda x: torch.nn.functional.logsigmoid(x),
    lambda x: torch.nn.functional.logsigmoid(x),
    lambda x: torch.where(x > 0, torch.exp(-x.abs()), torch.ones_like(x)) / (1 + torch.exp(-x.abs())),
    {"one_minus": (CANCELS, lambda y, x: 1 - torch.sigmoid(x)), "of_the_result": (KEPT, lambda y, x: 1 - torch.exp(y))},
    reference_framework="torch",
)
_add(
    "softplus",
    lambda x: np.log1p(np.exp(x)),
    lambda x: torch.nn.functional.softplus(x, threshold=100),
    lambda x: torch.sigmoid(x),
    {"of_the_result": (KEPT, lambda y, x: 1 - torch.exp(-y))},
)


def _gelu_slope(x: Any) -> Any:
    return 0.5 * torch.erfc(-x * math.sqrt(0.5)) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


_add(
    "silu",  # whose slope is nearly 1 there, and whose second derivative is made of 1 − σ alone
    lambda x: x / (1 + np.exp(-x)),
    lambda x: x * torch.sigmoid(x),
    lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
    {"of_the_result": (CANCELS, lambda y, x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))))},
    low=20.0,
    high=60.0,
)
_add(
    "gelu",
    lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
    lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)),
    _gelu_slope,
    {
        "one_plus_erf": (
            CANCELS,
            lambda y, x: (
                0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
            ),
        ),
        "no_tail": (TERM, lambda y, x: torch.where(x < -3, torch.zeros_like(x), _gelu_slope(x))),
    },
    low=-9.0,
    high=9.0,
    reference_framework="torch",
)


def _mish_slope(x: Any) -> Any:
    w = torch.exp(-x.abs())
    n, d = w * w + 2 * w, 1 + 2 * w + 2 * w * w
    t = torch.where(x < 0, n / (n + 2), (1 + 2 * w) / d)
    s = torch.where(x < 0, 4 * (1 + w) ** 2 / (n + 2) ** 2, 4 * w * w * (1 + w) ** 2 / d**2)
    return t + x * s * torch.sigmoid(x)


def _of_gate(x: Any, t: Any) -> Any:
    return t + x * (1 - t * t) * torch.sigmoid(x)


_add(
    "arctan",
    np.arctan,
    lambda x: torch.atan(x),
    lambda x: 1 / (1 + x * x),
    {"of_the_result": (KEPT, lambda y, x: torch.cos(y) ** 2), "root": (TERM, lambda y, x: (1 + x * x).rsqrt())},
    low=-1e4,
    high=1e4,
)
_add(
    "versine",
    lambda x: 2 * np.sin(x / 2) ** 2,
    lambda x: 2 * torch.sin(x / 2) ** 2,
    lambda x: torch.sin(x),
    {"of_the_cosine": (CANCELS, lambda y, x: torch.sign(x) * torch.sqrt(1 - torch.cos(x) ** 2))},
    low=-1e-3,
    high=1e-3,
)
_add(
    "hyperbola",
    lambda x: np.sqrt(1 + x * x),
    lambda x: torch.sqrt(1 + x * x),
    lambda x: x / torch.sqrt(1 + x * x),
    {"of_the_result": (KEPT, lambda y, x: torch.sign(x) * torch.sqrt(y * y - 1) / y)},
    low=-1e-3,
    high=1e-3,
)
_add(
    "sinc",
    lambda x: torch.sinc(x),
    lambda x: torch.sinc(x),
    lambda x: -(math.pi**2) * x / 3 * (1 - (math.pi * x) ** 2 / 10),
    {"quotient": (CANCELS, lambda y, x: (torch.cos(math.pi * x) - y) / x)},
    low=-1e-3,
    high=1e-3,
    dtypes=["float32"],
    reference_framework="torch",
)
_add(
    "logcosh",
    lambda x: np.log1p(2 * np.sinh(x / 2) ** 2),
    lambda x: torch.log1p(2 * torch.sinh(x / 2) ** 2),
    lambda x: torch.tanh(x),
    {"of_the_result": (KEPT, lambda y, x: torch.sign(x) * torch.sqrt(1 - torch.exp(-2 * y)))},
    low=-1e-3,
    high=1e-3,
)
_add(
    "erf",
    lambda x: torch.erf(x),
    lambda x: torch.erf(x),
    lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x),
    {"difference_quotient": (CANCELS, lambda y, x: (torch.erf(x + 1e-3) - torch.erf(x - 1e-3)) / 2e-3)},
    low=-5.0,
    high=5.0,
    reference_framework="torch",
)
_add(
    "mish",
    lambda x: torch.nn.functional.mish(x),
    lambda x: torch.nn.functional.mish(x),
    _mish_slope,
    {"log_of_one_plus": (CANCELS, lambda y, x: _of_gate(x, torch.tanh(torch.log(1 + torch.exp(x)))))},
    low=-20.0,
    high=-5.0,
    reference_framework="torch",
)
_add(
    "cross_entropy",
    lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none"),
    lambda x: torch.nn.functional.softplus(-x, threshold=100),
    lambda x: -torch.sigmoid(-x),
    {"sigmoid_minus_target": (CANCELS, lambda y, x: torch.sigmoid(x) - 1)},
    reference_framework="torch",
)
