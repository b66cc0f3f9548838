"""Operators of aten by the names that folders of submissions have."""

from __future__ import annotations

import pytest

from tasks.catalogs.user import aten


@pytest.mark.parametrize(
    ("name", "overload"),
    [
        *((x, "Tensor") for x in ("add", "mul", "eq", "bitwise_and", "add__Tensor", "add.Tensor")),
        *((x, "default") for x in ("relu", "maximum", "addmm")),
        ("pow", "Tensor_Tensor"),
        ("add__Scalar", "Scalar"),
    ],
)
def test_a_name_without_an_overload_means_that_of_tensors(name: str, overload: str) -> None:
    assert aten.find_aten_operator(name)._overloadname == overload
