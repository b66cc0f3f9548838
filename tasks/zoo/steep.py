"""Steep points: arguments at which a function is steep or hard to reduce, though its value there is well defined.

The inputs are given exactly, so a kernel has to be right to a few ulps; the faulty ones use formulas that are in use.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tasks.zoo.specimen import Theme, torch

THEME = Theme("steep points", __name__)
STEEP = "steep point"


def _at(*values: float) -> dict[str, Any]:
    return {"shape": [len(values)], "data": list(values)}


def _reduced(function: str) -> Any:
    """The function after subtracting multiples of a float32 π: what Cody and Waite's splitting is there to avoid."""

    def kernel(x: Any) -> Any:
        turns = torch.round(x / math.pi)
        rest = x - turns * math.pi
        value = getattr(torch, function)(rest)
        return value if function == "tan" else torch.where(turns % 2 == 0, value, -value)

    return kernel


THEME.add(
    "steep_sin",
    reference=lambda x: np.sin(x),
    inputs={"x": _at(1e6, 0.5, -1e5, 31415.926, 3.1415927, 1e8)},
    op_class="elementary",
    right=lambda x: torch.sin(x.double()).float(),
    wrong={"float32_pi": (STEEP, _reduced("sin"))},
)
THEME.add(
    "steep_cos",
    reference=lambda x: np.cos(x),
    inputs={"x": _at(1e6, 0.5, 1.5707964, 4.712389, 11.0)},
    op_class="elementary",
    right=lambda x: torch.cos(x.double()).float(),
    wrong={"float32_pi": (STEEP, _reduced("cos"))},
)
THEME.add(
    "steep_tan",
    reference=lambda x: np.tan(x),
    inputs={"x": _at(1.5707964, 1.5707962, 4.712389, 0.5, -1.5707964)},
    op_class="elementary",
    right=lambda x: torch.tan(x.double()).float(),
    wrong={"float32_pi": (STEEP, _reduced("tan")), "through_float16": (STEEP, lambda x: torch.tan(x.half().float()))},
)
THEME.add(
    "steep_round",
    reference=lambda x: np.round(x),
    inputs={"x": _at(0.5, 1.5, 2.5, -4.5, 8388607.5, 0.49999997)},
    op_class="exact",
    right=lambda x: torch.round(x),
    wrong={"floor_of_half_more": (STEEP, lambda x: torch.floor(x + 0.5))},
)
THEME.add(
    "steep_argmax",
    reference=lambda x: np.asarray(x.argmax()),
    outputs=["int64"],
    op_class="exact",
    inputs={"x": _at(1.0, 1 + 2.0**-23, 0.0, 1 + 2.0**-22, 1 + 2.0**-23)},
    right=lambda x: x.argmax(),
    wrong={"compared_in_bfloat16": (STEEP, lambda x: x.bfloat16().argmax())},
)


def _log_by_exponent(x: Any) -> Any:
    """log m + e·log 2 with m in [1/2, 1): the two cancel just above 1."""
    m, e = torch.frexp(x)
    return torch.log(m) + e * math.log(2)


THEME.add(
    "steep_log",
    reference=lambda x: np.log(x),
    inputs={"x": _at(1 + 2.0**-23, 1 + 2.0**-15, 1 - 2.0**-24, 2.0, 1e-40, 1.01)},
    op_class="elementary",
    right=lambda x: torch.log(x.double()).float(),
    wrong={"exponent_apart": (STEEP, _log_by_exponent)},
)
THEME.add(
    "steep_log1p",
    reference=lambda x: np.log1p(x),
    inputs={"x": _at(1e-8, -3e-7, 1e-4, 0.5)},
    op_class="elementary",
    right=lambda x: torch.log1p(x),
    wrong={"log_of_sum": (STEEP, lambda x: torch.log(1 + x))},
)
THEME.add(
    "steep_expm1",
    reference=lambda x: np.expm1(x),
    inputs={"x": _at(1e-8, -3e-7, 1e-4, 0.5)},
    op_class="elementary",
    right=lambda x: torch.expm1(x),
    wrong={"exp_minus_one": (STEEP, lambda x: torch.exp(x) - 1)},
)
THEME.add(
    "steep_div",
    reference=lambda x, y: x / y,
    inputs={"x": _at(1e-38, 3e-30, 1.0, 7.0), "y": _at(1000.0, 3e10, 3.0, 2.0**127)},
    op_class="elementary",
    right=lambda x, y: x / y,
    wrong={"flushed": (STEEP, lambda x, y: torch.where((x / y).abs() < 2.0**-126, 0.0, x / y))},
)
THEME.add(
    "steep_div_by_huge",
    reference=lambda x, y: x / y,
    inputs={"x": _at(1e38, 3e38, 1.0), "y": _at(2e38, 3.2e38, 3.0)},
    op_class="elementary",
    right=lambda x, y: x / y,
    wrong={"by_flushed_reciprocal": (STEEP, lambda x, y: x * torch.where((1 / y).abs() < 2.0**-126, 0.0, 1 / y))},
)
THEME.add(
    "steep_exp",
    reference=lambda x: np.exp(x),
    inputs={"x": _at(88.5, 88.7, -87.2, 80.3, 75.123, 66.6, 1.0)},
    op_class="elementary",
    right=lambda x: torch.exp(x.double()).float(),
    wrong={"through_exp2": (STEEP, lambda x: torch.exp2(x * torch.tensor(1.4426950)))},
)
THEME.add(
    "steep_pow",
    reference=lambda x, y: x**y,
    inputs={"x": _at(1e10, 1.0001, 3e15, 2.0), "y": _at(3.5, 8e5, 2.25, 10.0)},
    op_class="elementary",
    right=lambda x, y: (x.double() ** y.double()).float(),
    wrong={"exp_of_log": (STEEP, lambda x, y: torch.exp(y * torch.log(x)))},
)
THEME.add(
    "steep_difference",
    reference=lambda x, y: x - y,
    op_class="elementary",
    inputs={"x": _at(1 + 2.0**-23, 16777215.0, 1e10, 3.0), "y": _at(1.0, 16777214.0, 1e10 - 1024, 3 - 2.0**-22)},
    right=lambda x, y: x - y,
    wrong={"factored": (STEEP, lambda x, y: x * (1 - y * (1 / x)))},
)
THEME.add(
    "steep_sqrt",
    reference=lambda x: np.sqrt(x),
    inputs={"x": _at(1e-40, 2.0**-149, 4.0, 1e38)},
    op_class="elementary",
    right=lambda x: torch.sqrt(x),
    wrong={"of_flushed": (STEEP, lambda x: torch.where(x < 2.0**-126, 0.0, x).sqrt())},
)
THEME.add(
    "steep_hypot",
    reference=lambda x, y: np.hypot(x, y),
    inputs={"x": _at(3e30, 3e-30, 3.0), "y": _at(4e30, 4e-30, 4.0)},
    op_class="elementary",
    right=lambda x, y: torch.hypot(x.double(), y.double()).float(),
    wrong={"root_of_squares": (STEEP, lambda x, y: (x * x + y * y).sqrt())},
)
THEME.add(
    "steep_fmod",
    reference=lambda x, y: np.fmod(x, y),
    inputs={"x": _at(1e30, 1e10, 5.5, -7.25), "y": _at(3.0, 0.1, 2.0, 2.0)},
    op_class="elementary",
    right=lambda x, y: torch.fmod(x, y),
    wrong={"rounded_quotient": (STEEP, lambda x, y: x - torch.trunc(x / y) * y)},
)
THEME.add(
    "steep_atan2",
    reference=lambda y, x: np.arctan2(y, x),
    inputs={"y": _at(-0.0, 0.0, -1e-30, 1.0), "x": _at(-1.0, -1.0, -1.0, 0.0)},
    op_class="elementary",
    right=lambda y, x: torch.atan2(y, x),
    wrong={"sign_of_zero_lost": (STEEP, lambda y, x: torch.atan2(y + 0.0, x))},
)
THEME.add(
    "steep_tanh",
    reference=lambda x: np.tanh(x),
    inputs={"x": _at(1e-6, 1e-4, -3e-5, 0.5, 30.0)},
    op_class="elementary",
    right=lambda x: torch.tanh(x),
    wrong={"by_exp": (STEEP, lambda x: 1 - 2 / (torch.exp(2 * x) + 1))},
)
THEME.add(
    "steep_acos",
    reference=lambda x: np.arccos(x),
    inputs={"x": _at(1 - 2.0**-24, 0.9999, 0.99999, 0.1)},
    op_class="elementary",
    right=lambda x: torch.acos(x.double()).float(),
    wrong={"from_asin": (STEEP, lambda x: torch.tensor(math.pi / 2) - torch.asin(x))},
)
THEME.add(
    "steep_erfc",
    reference=lambda x: np.vectorize(math.erfc, otypes=[np.float64])(x),
    inputs={"x": _at(3.0, 4.5, 8.0, 0.1)},
    op_class="elementary",
    right=lambda x: torch.special.erfc(x.double()).float(),
    wrong={"one_minus_erf": (STEEP, lambda x: 1 - torch.erf(x))},
)
