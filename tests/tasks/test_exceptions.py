"""What a passport says in place of exceptions that are written by hand: float8's accumulator and TF32, with nothing declared."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.devices.exceptions import judge_without_exceptions


@pytest.mark.parametrize(
    ("backend", "op", "variant", "dtype", "declared"),
    [
        ("emulated-hopper", "gemm:scaled_mm", "float32", "float8_e5m2", "imprecise"),
        ("emulated-ampere", "gemm:mm", "nn", "float32", "pass"),
    ],
    ids=["float8 in 13 bits", "TF32"],
)
def test_a_passport_needs_no_declared_adder_and_no_declared_precision(
    backend: str, op: str, variant: str, dtype: str, declared: str
) -> None:
    pytest.importorskip("torch")
    found = judge_without_exceptions(backend, op, variant, dtype, samples=1)
    assert found.declared == Counter({declared: 1}) and found.nothing == Counter({"wrong": 1})
    assert found.passport == Counter({"imprecise": 1}) and found.kinds == Counter({"accumulator": 1})
