"""The operations of minigrad, as tests: pytest"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from kernels import Forgetful, forgetful_mul, mul, softmax
from minigrad import Tensor

import farm
from farm import lake
from farm.launch import main

HERE = Path(__file__).parent
PAIRS = farm.strategies.broadcastable()


def test_farm_yaml(tmp_path):
    """What farm.yaml asks for: the planted fault is found, nothing else."""
    code = main([str(HERE / "farm.yaml"), "--on", "inline", "--results", str(tmp_path)])
    rows = lake.read(tmp_path)
    bad = rows[~rows["status"].isin(["pass", "imprecise"])]
    assert code == 1 and set(zip(bad["op"], bad["check"])) == {("user:forgetful_mul", "backward")}, bad.to_string()


@pytest.mark.farm(softmax, dims={"rows": (1, 4), "columns": (1, 9)}, cases=6, backward=True)
def test_softmax(farm_case):
    """A test per case, of any size: pytest --farm-cases 200 --farm-seed 7"""
    farm_case.check(softmax(**farm_case.inputs))


@settings(max_examples=30, deadline=None)
@given(pair=PAIRS)
def test_shapes_that_broadcast(pair):
    """Gradients against differences in float64, on pairs of shapes such as (3, 1, 4) and (1, 4)."""
    a, b = (np.random.default_rng(0).standard_normal(shape) for shape in pair)
    farm.check_autograd(mul, (a, b)).check()


def test_the_fault_is_seen_on_one_such_pair():
    a, b = np.ones((4, 3)), np.ones((1, 3))
    assert farm.check_autograd(mul, (a, b)).passed
    assert "gradient of tensor 1" in farm.check_autograd(forgetful_mul, (a, b)).message
    result = farm.fuzz(forgetful_mul, cases=20, backward=True, results=None)
    assert result.findings and all(found.case_id.startswith("backward/") for found in result.findings)


@pytest.mark.parametrize(("tensor", "passes"), [(Tensor, True), (Forgetful, False)])
def test_a_function_that_nothing_declares(tensor, passes):
    """A layer, held against differences of itself."""

    @farm.autograd(tensor)
    def layer(x, weight, bias):
        return (x @ weight + bias).softmax()

    g = np.random.default_rng(1)
    inputs = (g.standard_normal((5, 3)), g.standard_normal((3, 4)), g.standard_normal((1, 4)))
    assert farm.check_autograd(layer, inputs).passed is passes
