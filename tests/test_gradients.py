"""Gradients that are hard to judge: no right kernel is blamed, every planted fault is found, by references of both kinds."""

from __future__ import annotations

import pytest

from tests.gradients import said
from tests.gradients.functions import FUNCTIONS, Function

#: Right kernels that lose digits all the same: 1 − y of a y next to 1, 1 + erf of a tail, softplus beside |x|; and
#: those whose derivative autograd computes from their rounded result.
LOSES = ("softmax, steep", "sigmoid, ±50", "gelu of erf, tails", "log of cosh", "tanh, saturated", "expm1 near 0")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_a_right_kernel_is_not_blamed_and_its_twin_is_found(function: Function) -> None:
    rows = list(said([function]))
    assert len(rows) == 8
    assert not [one for one in rows if one.blamed], "a right kernel is blamed"
    assert not [one for one in rows if one.missed], "a planted fault is not found"
    assert function.name in LOSES or {one.row["status"] for one in rows if not one.twin} == {"pass"}


@pytest.mark.parametrize(
    "name", ["softmax, all equal", "LayerNorm, tiny variance", "tanh, saturated", "product, cancelling"]
)
def test_second_derivatives_are_judged_alike(name: str) -> None:
    (function,) = (f for f in FUNCTIONS if f.name == name)
    rows = list(said([function], check="double_backward"))
    assert not [one for one in rows if one.blamed or one.missed]
