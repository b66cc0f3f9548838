"""Activations and other functions of one number: their formulas, their tails, their NaN and infinities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tasks.operators.formulas import erf, erfc
from tasks.zoo.specimen import INF, NAN, Theme, torch

THEME = Theme("activations", __name__)
X = {"x": {"shape": ["n"], "low": -5, "high": 5}}
DIMS = {"n": [33, 129, 1000]}


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


THEME.add(
    "gelu",
    reference=lambda x: 0.5 * x * erfc(-x / math.sqrt(2)),
    inputs=X,
    dims=DIMS,
    dtypes=["float32", "bfloat16"],
    op_class="composite",
    right=lambda x: (0.5 * x.float() * torch.erfc(x.float() * -math.sqrt(0.5))).to(x.dtype),
    wrong={
        "tanh": ("cruder formula", _gelu_tanh),
        "sigmoid": ("cruder formula", lambda x: x * torch.sigmoid(1.702 * x)),
        "negative": ("sign", lambda x: 0.5 * x * torch.erfc(x * math.sqrt(0.5))),
        "one_plus_erf": ("cancellation", lambda x: 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))),
    },
)


def _polynomial_erf(x: Any) -> Any:
    """Abramowitz and Stegun 7.1.25, good to 2.5·10⁻⁵."""
    t = 1 / (1 + 0.47047 * x.abs())
    return torch.sign(x) * (1 - (((0.7478556 * t - 0.0958798) * t) + 0.3480242) * t * torch.exp(-x * x))


THEME.add(
    "erf",
    reference=erf,
    inputs=X,
    dims=DIMS,
    op_class="elementary",
    right=lambda x: torch.erf(x),
    wrong={"polynomial": ("cruder formula", _polynomial_erf)},
)

THEME.add(
    "silu",
    reference=lambda x: x / (1 + np.exp(-x)),
    inputs=X,
    dims=DIMS,
    dtypes=["float32", "bfloat16"],
    op_class="composite",
    right=lambda x: (x.float() * torch.sigmoid(x.float())).to(x.dtype),
    wrong={
        "sigmoid_alone": ("missing scale", lambda x: torch.sigmoid(x)),
        "negative": ("sign", lambda x: x * torch.sigmoid(-x)),
    },
)

THEME.add(
    "softplus",
    reference=lambda x: np.logaddexp(0, x),
    inputs={"x": {"shape": ["n"], "low": -200, "high": 200}},
    dims=DIMS,
    op_class="composite",
    right=lambda x: x.clamp_min(0) + torch.log1p(torch.exp(-x.abs())),
    wrong={
        "no_threshold": ("overflow", lambda x: torch.log1p(torch.exp(x))),
        "log_of_one_plus": ("cancellation", lambda x: x.clamp_min(0) + torch.log(1 + torch.exp(-x.abs()))),
    },
)

THEME.add(
    "sigmoid_of_large",
    reference=lambda x: np.where(x < 0, np.exp(x), 1.0) / (1 + np.exp(-np.abs(x))),
    inputs={"x": {"shape": ["n"], "low": -80, "high": 80}},
    dims=DIMS,
    op_class="elementary",
    right=lambda x: torch.sigmoid(x),
    wrong={"half_of_tanh": ("small beside large", lambda x: 0.5 * (1 + torch.tanh(0.5 * x)))},
)

THEME.add(
    "leaky_relu",
    reference=lambda x: np.where(x >= 0, x, 0.125 * x),
    inputs=X,
    dims=DIMS,
    op_class="exact",
    right=lambda x: torch.where(x >= 0, x, 0.125 * x),
    wrong={
        "slope_of_positive": ("sign", lambda x: torch.where(x <= 0, x, 0.125 * x)),
        "no_slope": ("argument ignored", lambda x: x.clamp_min(0)),
    },
)

THEME.add(
    "elu",
    reference=lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    dims=DIMS,
    op_class="elementary",
    inputs={"x": {"shape": ["n"], "low": -0.01, "high": 0.01}},
    right=lambda x: torch.where(x > 0, x, torch.expm1(x)),
    wrong={"exp_minus_one": ("cancellation", lambda x: torch.where(x > 0, x, torch.exp(x) - 1))},
)

THEME.add(
    "hardswish",
    reference=lambda x: x * np.clip(x + 3, 0, 6) / 6,
    inputs=X,
    dims=DIMS,
    op_class="composite",
    right=lambda x: x * (x + 3).clamp(0, 6) / 6,
    wrong={
        "not_divided": ("missing scale", lambda x: x * (x + 3).clamp(0, 6)),
        "upper_bound_3": ("off by one", lambda x: x * (x + 3).clamp(0, 3) / 6),
    },
)


def _swiglu_reference(x: np.ndarray) -> np.ndarray:
    gate, value = np.split(x, 2, -1)
    return gate / (1 + np.exp(-gate)) * value


def _swiglu(gate: Any, value: Any) -> Any:
    return torch.nn.functional.silu(gate) * value


THEME.add(
    "swiglu",
    reference=_swiglu_reference,
    inputs={"x": [3, "2*n"]},
    dims={"n": [17, 64]},
    op_class="composite",
    right=lambda x: _swiglu(*x.chunk(2, -1)),
    wrong={
        "halves_swapped": ("order", lambda x: _swiglu(*reversed(x.chunk(2, -1)))),
        "interleaved": ("pairing", lambda x: _swiglu(x[..., ::2], x[..., 1::2])),
    },
)

SPECIAL = {"x": {"shape": [12], "data": [NAN, 1.5, -2.0, INF, -INF, 0.0, 3.0, -0.5, NAN, 200.0, -200.0, 0.25]}}

THEME.add(
    "relu",
    reference=lambda x: np.where(x < 0, 0.0, x),
    inputs=SPECIAL,
    dtypes=["float32", "float16"],
    op_class="exact",
    right=lambda x: torch.relu(x),
    wrong={"compared": ("NaN swallowed", lambda x: torch.where(x > 0, x, torch.zeros_like(x)))},
)

THEME.add(
    "clamp",
    reference=lambda x: np.clip(x, -1, 2),
    inputs=SPECIAL,
    op_class="exact",
    right=lambda x: x.clamp(-1, 2),
    wrong={
        "fmin_fmax": ("NaN swallowed", lambda x: torch.fmin(torch.fmax(x, torch.tensor(-1.0)), torch.tensor(2.0))),
        "upper_bound_ignored": ("argument ignored", lambda x: x.clamp_min(-1)),
    },
)

THEME.add(
    "exp",
    reference=lambda x: np.exp(x),
    inputs=SPECIAL,
    op_class="elementary",
    right=lambda x: torch.exp(x),
    wrong={"saturated": ("Inf clamped", lambda x: torch.exp(x).clamp_max(torch.finfo(x.dtype).max))},
)

THEME.add(
    "to_float16",
    reference=lambda x: x,
    outputs=["float16"],
    op_class="exact",
    right=lambda x: x.half(),
    inputs={"x": {"shape": [6], "data": [1.0, 70000.0, -1e6, 0.333333, INF, -65504.0]}},
    wrong={"saturated": ("Inf clamped", lambda x: x.clamp(-65504, 65504).half())},
)

THEME.add(
    "halve",
    reference=lambda x: x * 0.5,
    op_class="exact",
    right=lambda x: x * 0.5,
    inputs={"x": {"shape": [6], "data": [1.0, 2.0**-126, 2.0**-130, -(2.0**-140), 2.0**-125, 2.0**-148]}},
    wrong={"flushed": ("subnormals flushed", lambda x: torch.where((x * 0.5).abs() < 2.0**-126, 0.0, x * 0.5))},
)

THEME.add(
    "half_sum_of_small",
    reference=lambda x, y: x + y,
    dtypes=["float16"],
    op_class="exact",
    right=lambda x, y: x + y,
    inputs={"x": {"shape": ["n"], "low": -1e-4, "high": 1e-4}, "y": {"shape": ["n"], "low": -1e-4, "high": 1e-4}},
    dims={"n": [64]},
    wrong={
        "inputs_flushed": (
            "subnormals flushed",
            lambda x, y: torch.where(x.abs() < 2.0**-14, 0, x) + torch.where(y.abs() < 2.0**-14, 0, y),
        )
    },
)

THEME.add(
    "sub",
    reference=lambda x, y: x - y,
    inputs={"x": ["n"], "y": ["n"]},
    dims=DIMS,
    dtypes=["float32", "float16", "int32"],
    op_class="exact",
    right=lambda x, y: x - y,
    wrong={"swapped": ("sign", lambda x, y: y - x)},
)
