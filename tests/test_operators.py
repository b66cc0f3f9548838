"""The list of torch's operators: what counts as called, and why what is not called is not."""

from __future__ import annotations

import csv
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def operators() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_operators", ROOT / "docs" / "_operators.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_called_is_told_from_what_runs_inside(operators: ModuleType) -> None:
    x = torch.ones(3, requires_grad=True)
    direct, inside = operators.record(iter([("softmax", lambda: torch.softmax(x, 0).sum().backward())]))
    assert direct["softmax", "int"] == "softmax" and ("_softmax", "") in inside
    assert ("_softmax_backward_data", "") in direct  # of the gradient, whose whole result is judged
    assert ("relu", "") not in direct | inside


def test_a_call_that_raises_ends_nothing(operators: ModuleType) -> None:
    def refuse() -> None:
        raise RuntimeError("planted")

    direct, _ = operators.record(iter([("bad", refuse), ("abs", lambda: torch.ones(1).abs())]))
    assert direct["abs", ""] == "abs"


@pytest.mark.parametrize(
    ("name", "overload", "words"),
    [
        ("_softmax", "", "internal"),
        ("absolute", "", "another name"),
        ("len", "str", "TorchScript"),
        ("cudnn_convolution", "", "no kernel for dense tensors on a CPU"),
        ("add", "Tensor", ""),
    ],
)
def test_the_reason_is_what_torch_says(operators: ModuleType, name: str, overload: str, words: str) -> None:
    (schema,) = [x for x in operators.list_overloads()[name] if x.overload_name == overload]
    why = operators.explain(name, schema)
    assert words in why if words else why == ""


def test_the_file_has_every_operator_once() -> None:
    rows: list[dict[str, Any]] = list(csv.DictReader((ROOT / "docs" / "operators.csv").open()))
    status = {row["operator"]: row["status"] for row in rows}
    assert len(status) == len(rows) > 1500
    assert status["matmul"] == status["add"] == "covered" and status["absolute"] == "not covered"
    assert all(bool(row["why"]) == (row["status"] == "not covered") for row in rows)
