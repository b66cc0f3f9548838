"""Finite differences: their error estimate holds where the step swallows what it is to measure."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.gradients import analytic, differences


@pytest.mark.parametrize("accurate", [False, True])
def test_the_error_estimate_covers_an_even_function_beside_huge_elements(accurate: bool) -> None:
    # Beside 1e37 the step of every element is 1e36: (x + h)² and (x − h)² are equal, and x is gone from both.
    x, c = np.array([1e37, 1e12, 1e-30, 3.0]), np.array([1.0, -0.7, 0.5, 0.9])
    found = differences.difference_gradient(lambda values: [values[0] ** 2], [x], [c], accurate)
    assert (np.abs(found.gradients[0] - 2 * c * x) <= found.errors[0]).all()
    assert found.errors[0][0] < 1e-9 * 2e37


def test_what_does_not_depend_on_an_element_adds_nothing_to_its_error() -> None:
    x, c = np.array([1.0, 2.0]), np.array([1.0, 1e9])
    found = differences.difference_gradient(
        lambda values: [np.stack([values[0][0] ** 2, np.float64(1e9)])], [x], [c], accurate=True
    )
    assert np.abs(found.gradients[0] - [2.0, 0.0]).max() <= found.errors[0].max() < 1e-2


def test_a_small_element_beside_large_ones_is_not_stepped_over() -> None:
    x = np.array([0.5, 1e17])
    found = differences.difference_gradient(lambda v: [np.tanh(v[0])], [x], [np.ones(2)])
    assert abs(found.gradients[0][0] - (1 - np.tanh(0.5) ** 2)) <= min(1e-6, found.errors[0][0])


def test_what_a_large_output_may_hide_is_in_the_error() -> None:
    x, b = np.array([1e34]), np.array([0.5])
    found = differences.difference_gradient(lambda v: [v[0] + v[1]], [x, b], [np.ones(1)])
    assert abs(found.gradients[1][0] - 1.0) <= found.errors[1][0]


def _softmax(values: list[np.ndarray]) -> list[np.ndarray]:
    e = np.exp(values[0] - values[0].max())
    return [e / e.sum()]


@pytest.mark.parametrize("tie", [1e3, 1e6, 1e9, 1e12, 1e15, 1e18])
def test_a_step_within_which_the_function_settles_is_shortened_or_says_nothing(tie: float) -> None:
    x, c = np.array([tie, tie, 0.0]), np.array([0.9, -0.6, 0.7])
    (y,) = _softmax([x])
    found = differences.difference_gradient(_softmax, [x], [c])
    assert (np.abs(found.gradients[0] - y * (c - y @ c)) <= found.errors[0]).all()
    assert found.errors[0][0] < 1e-3 or tie > 1e9


def test_a_kink_within_the_step_is_none_at_the_input() -> None:
    with np.errstate(invalid="ignore"):
        found = differences.difference_gradient(lambda v: [np.abs(v[0])], [np.array([1e-8, 0.0, -3.0])], [np.ones(3)])
    assert found.kinks[0].tolist() == [False, True, False]
    assert found.errors[0][1] == np.inf and np.abs(found.gradients[0][[0, 2]] - [1, -1]).max() < 1e-6


def test_the_functions_own_roundoff_is_in_the_error() -> None:
    x, c = 1e6 + np.arange(4.0), np.ones(())
    found = differences.difference_gradient(lambda v: [(v[0] ** 2).mean() - v[0].mean() ** 2], [x], [c])
    assert (np.abs(found.gradients[0] - (x - x.mean()) / 2) <= found.errors[0]).all()


# --- without a difference's roundoff ------------------------------------------------------------------------------

ANALYTIC = {"softmax": _softmax, "product": lambda v: [v[0] @ v[0]], "clip": lambda v: [np.clip(v[0], -1, 3) ** 2]}
NOT = {
    "abs": lambda v: [2 * np.abs(v[0])],
    "norm": lambda v: [v[0] / np.linalg.norm(v[0])],
    "real": lambda v: [v[0].real ** 2],
}


@pytest.mark.parametrize("name", [*ANALYTIC, *NOT])
def test_the_complex_step_is_believed_of_analytic_functions_alone(name: str) -> None:
    function = (ANALYTIC | NOT)[name]
    x = np.array([0.3, -2.0, 0.7])
    c = [np.linspace(0.5, 1, y.size).reshape(y.shape) for y in function([x])]
    beside = differences.difference_gradient(function, [x], c)
    found = analytic.differentiate_by_complex_step(function, [x], c, beside)
    assert (found is None) == (name in NOT)
    if found is not None:
        assert np.abs(found.gradients[0] - beside.gradients[0]).max() < 1e-8 and found.errors[0].max() < 1e-13


@pytest.mark.parametrize("size", [1.0, 1e9, 1e15])
def test_differences_in_many_digits_are_exact(size: float) -> None:
    x, c = np.array([size, size, 0.0]), np.array([0.9, -0.6, 0.7])
    (y,) = _softmax([x])
    found = analytic.differentiate_in_many_digits(_softmax, [x], [y], [c], [np.ones(3, bool)])
    assert found is not None and np.abs(found.gradients[0] - y * (c - y @ c)).max() < 1e-15


def test_a_kink_is_one_in_many_digits_too() -> None:
    x = np.array([0.0, 1e-9])
    found = analytic.differentiate_in_many_digits(
        lambda v: [np.maximum(v[0], 0)], [x], [x], [np.ones(2)], [np.ones(2, bool)]
    )
    assert found is not None and found.kinks[0].tolist() == [True, False] and found.gradients[0][1] == 1


def test_a_function_of_no_such_numbers_has_none() -> None:
    x = np.array([1.0])
    assert (
        analytic.differentiate_in_many_digits(lambda v: [np.isnan(v[0]) + v[0]], [x], [x], [x], [np.ones(1, bool)])
        is None
    )


def test_a_slope_that_no_output_shows_is_not_zero_for_certain() -> None:
    """Beside an offset of thousands a small term changes no output by a bit: what that may hide is in the error."""
    x = np.array([1e-9, -2e-9])
    given = [np.ones(2)]
    found = differences.difference_gradient(lambda inputs: [3e-3 * inputs[0] - 5894.0], [x], given)
    assert (np.abs(found.gradients[0] - 3e-3) <= found.errors[0]).all()
    unused = differences.difference_gradient(lambda inputs: [inputs[0] * 0.0 - 5894.0], [x], given)
    assert (unused.gradients[0] == 0).all() and (unused.errors[0] < found.errors[0]).all()
