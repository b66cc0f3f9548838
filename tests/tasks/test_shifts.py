"""A softmax that shifts by its row's maximum: a kernel's gradient, p·(g − Σ g·p), rounds what the maximum's own gradient takes back."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from tasks.catalogs.user import of_torch
from tasks.catalogs.user.reference_gradients import KernelReference
from tasks.gradients.oracle import Exact, Graph, Point, by_autograd

pytest.importorskip("torch")
EPS = 2.0**-24


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_the_largest(x: Any) -> Any:
    return x / x.max(-1, keepdims=True)


def _follow(function: Any, inputs: dict[str, np.ndarray], cotangents: list[np.ndarray]) -> tuple[Graph, Exact]:
    """The graph of a NumPy function, and the oracle of its gradient."""
    op: Any = types.SimpleNamespace(inputs={"x": 0}, gradient=["x"], kwargs={}, reference_framework="numpy", kept=False)
    call = of_torch.make_tensor_function(function)
    reference = KernelReference(op, "backward", "float32", lambda a: [function(a["x"])], function, call)
    derivative, point = reference.derivative(), Point(inputs, cotangents)
    found = by_autograd(derivative, point, derivative.follow(point), reference.values(inputs))
    return derivative.graph, found


@pytest.fixture
def given() -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8))
    x[:, 1] += 28.0  # has all of its row's mass but 1e-11
    return {"x": x}, [rng.uniform(0.5, 1, size=(4, 8))]


def test_the_floor_has_what_rounding_a_sum_does(given: tuple[dict[str, np.ndarray], list[np.ndarray]]) -> None:
    graph, found = _follow(softmax, *given)
    assert graph.shifts
    (exact,) = found.values
    moved = [found.again(Point(*given), draw, ())[0] for draw in range(4)]
    floor = np.abs(np.array(moved) - exact).max(0)
    assert (floor[:, 1] > 0.1 * EPS).all(), "a kernel's g - Σ g·p is off by ε·g"
    assert (np.abs(exact[:, 1]) < 1e-10).all()


def test_a_maximum_that_matters_is_no_shift(given: tuple[dict[str, np.ndarray], list[np.ndarray]]) -> None:
    graph, _ = _follow(by_the_largest, *given)
    assert not graph.shifts
