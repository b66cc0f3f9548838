"""What a gradient is held against: how far autograd is believed of an op, of somebody's tensors, of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tasks.gradients import autograd, floors
from tasks.gradients.oracle import (
    NUMPY_REFERENCE,
    TORCH_OP,
    TORCH_REFERENCE,
    Derivative,
    Exact,
    NoDerivative,
    Point,
    Trust,
    choose_oracle,
)

torch = pytest.importorskip("torch")
ALL = (TORCH_OP, TORCH_REFERENCE, NUMPY_REFERENCE)


def differentiate(
    function: Callable[[Any], Any], trust: Trust, rounds: tuple[str, ...] = (), dtype: str = "float32"
) -> Derivative:
    """The derivative of a function of one tensor. Its values are those of the function without a graph."""

    def compute(check: str, point: Point, **hooks: Any) -> list[np.ndarray]:
        given = [torch.from_numpy(np.array(c)) for c in point.cotangents]
        found = autograd.differentiate_backward(
            check, function, (torch.from_numpy(np.array(point.inputs)),), {}, [0], given, **hooks
        )
        return [g.numpy() for g in found]

    def evaluate(values: Any) -> list[np.ndarray]:
        with torch.no_grad():
            return [function(torch.from_numpy(values[0])).numpy()]

    def pose(check: str, point: Point) -> autograd.GradientProblem:
        return autograd.GradientProblem(evaluate, [point.inputs], list(point.cotangents))

    return Derivative("backward", dtype, trust, compute, pose, rounds=rounds)


def chosen(function: Callable[[Any], Any], trust: Trust, x: list[float], not_followed: str = "") -> Exact:
    inputs = np.array(x)
    with np.errstate(all="ignore"):
        outputs = [function(torch.from_numpy(inputs)).numpy()]
    return choose_oracle(differentiate(function, trust), Point(inputs, [np.ones(len(x))]), outputs, not_followed)


def overflowing(x: Any) -> Any:
    return x / (1 + torch.exp(-x))


def cut(x: Any) -> Any:
    """x³, of whose graph a factor has been cut off, as a NumPy function's may be that leaves torch."""
    return x * x * x.detach()


@pytest.mark.parametrize("trust", ALL)
def test_a_sound_derivative_is_autograds_for_all(trust: Trust) -> None:
    found = chosen(torch.sin, trust, [0.5, -1.0])
    assert np.array_equal(found.values[0], np.cos([0.5, -1.0])) and found.plain
    assert found.other is not None and np.array_equal(found.other.references[0], found.values[0])


@pytest.mark.parametrize(("trust", "recovers"), zip(ALL, (False, True, True)))
def test_what_is_not_finite_is_taken_from_differences_of_a_reference(trust: Trust, recovers: bool) -> None:
    found = chosen(overflowing, trust, [-1000.0, 1.0])
    assert np.isnan(found.values[0][0]) != recovers and found.plain != recovers
    assert found.values[0][1] == pytest.approx(0.9276705118714867)


@pytest.mark.parametrize(("trust", "outvoted"), zip(ALL, (False, False, True)))
def test_differences_outvote_autograd_of_numpy_arrays_alone(trust: Trust, outvoted: bool) -> None:
    found = chosen(cut, trust, [1.5, -0.5])
    right, by_autograd = 3 * np.array([1.5, -0.5]) ** 2, 2 * np.array([1.5, -0.5]) ** 2
    assert np.allclose(found.values[0], right if outvoted else by_autograd, 1e-9)
    # Where it is not outvoted, the second oracle says that it is wrong.
    assert found.other is not None and np.allclose(found.other.references[0], right, 1e-9)


def test_a_function_that_is_not_followed_has_differences_alone() -> None:
    found = chosen(cut, NUMPY_REFERENCE, [1.5], not_followed="it leaves torch")
    assert found.columns == {"by_differences": True} and found.other is None
    assert found.values[0] == pytest.approx([3 * 1.5**2])
    with pytest.raises(NoDerivative, match="rounds where it casts"):
        rounding = differentiate(cut, NUMPY_REFERENCE, rounds=("bfloat16",))
        choose_oracle(rounding, Point(np.array([1.5]), [np.ones(1)]), [np.ones(1)], "it leaves torch")


@pytest.mark.parametrize(("trust", "moves"), zip(ALL, (False, True, True)))
def test_what_a_step_hands_on_is_rounded_where_the_steps_are_a_kernels_own(trust: Trust, moves: bool) -> None:
    """Of x + x nothing is kept for the backward pass."""
    one = differentiate(lambda x: (x + x) + x, trust)
    point = Point(np.array([1.5]), [np.array([0.75])])
    exact = one.apply_rules(point, one.follow(point))
    moved = one.move(point, 0)
    assert exact[0] == [2.25] and (moved[0] != exact[0]).all() == moves
    assert one.move(point, None)[0] == exact[0]


def test_the_strict_floor_stands_beside_that_of_a_rounded_result() -> None:
    asked: list[tuple[tuple[str, ...], bool]] = []

    def floor(kept: Any, last: bool) -> floors.Floors:
        asked.append((tuple(kept), last))
        return [np.full(1, 3.0 if kept else 5.0)]

    for trust, wide in ((TORCH_OP, 3.0), (NUMPY_REFERENCE, 5.0)):
        asked.clear()
        one = differentiate(torch.tanh, trust)
        point = Point(np.array([1.0]), [np.ones(1)])
        one.apply_rules(point, one.follow(point))
        found, strict = floors.measure_floors(one, floor)
        assert asked == [((), False), (("TanhBackward0",), True)]
        assert strict is not None and found[0] == [wide] and strict[0] == [5.0]
    assert floors.measure_floors(differentiate(torch.neg, TORCH_OP), floor) == ([np.full(1, 5.0)], None)


@pytest.mark.parametrize(("trust", "ruled"), zip(ALL, (False, True, True)))
def test_a_real_step_of_complex_numbers_has_its_own_derivative(trust: Trust, ruled: bool) -> None:
    """1 − y² of the rounded y = tanh |z| is 0 where |z| is 25. A complex number that reaches tanh itself has no rule."""
    point = Point(np.array([25.0 + 0.0j]), [np.ones(1)])
    one = differentiate(lambda z: z.abs().tanh(), trust, dtype="complex64")
    found = one.apply_rules(point, one.follow(point))
    assert found[0] == pytest.approx([4 * np.exp(-50) if ruled else 0.0], rel=1e-12)
    _, strict = floors.measure_floors(one, lambda kept, last: [np.ones(1)])
    assert (strict is not None) == ruled  # a kernel that loses it is told from one that does not

    other = differentiate(lambda z: z.tanh().abs(), trust, dtype="complex64")
    followed = other.follow(point)
    assert other.apply_rules(point, followed) is followed and not other.graph.rules
