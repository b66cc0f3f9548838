"""Finite differences: their error estimate holds where the step swallows what it is to measure."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.arrays import differences


@pytest.mark.parametrize("accurate", [False, True])
def test_the_error_estimate_covers_an_even_function_beside_huge_elements(accurate: bool) -> None:
    # Beside 1e37 the step of every element is 1e36: (x + h)² and (x − h)² are equal, and x is gone from both.
    x, c = np.array([1e37, 1e12, 1e-30, 3.0]), np.array([1.0, -0.7, 0.5, 0.9])
    found = differences.gradient(lambda values: [values[0] ** 2], [x], [c], accurate)
    assert (np.abs(found.gradients[0] - 2 * c * x) <= found.errors[0]).all()
    assert found.errors[0][0] < 1e-9 * 2e37


def test_what_does_not_depend_on_an_element_adds_nothing_to_its_error() -> None:
    x, c = np.array([1.0, 2.0]), np.array([1.0, 1e9])
    found = differences.gradient(
        lambda values: [np.stack([values[0][0] ** 2, np.float64(1e9)])], [x], [c], accurate=True
    )
    assert np.abs(found.gradients[0] - [2.0, 0.0]).max() <= found.errors[0].max() < 1e-2


def test_a_small_element_beside_large_ones_is_not_stepped_over() -> None:
    x = np.array([0.5, 1e17])
    found = differences.gradient(lambda v: [np.tanh(v[0])], [x], [np.ones(2)])
    assert abs(found.gradients[0][0] - (1 - np.tanh(0.5) ** 2)) <= min(1e-6, found.errors[0][0])


def test_what_a_large_output_may_hide_is_in_the_error() -> None:
    x, b = np.array([1e34]), np.array([0.5])
    found = differences.gradient(lambda v: [v[0] + v[1]], [x, b], [np.ones(1)])
    assert abs(found.gradients[1][0] - 1.0) <= found.errors[1][0]
