"""Which of equal inputs is chosen is nobody's promise: a gradient may go to any of them, and to no other element."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from tasks.catalogs.torch.differentiable import PROCESS, make_output_processing
from tasks.catalogs.torch.gradient_samples import GradientSampleMaker
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Group, Leaf, OpClass
from tasks.model.leaf import reorder_leaf_ties

torch = pytest.importorskip("torch")


def _sample(call, *inputs, check="backward"):  # type: ignore[no-untyped-def]
    info = types.SimpleNamespace(name="sort", variant_test_name="", op=call, ref=None)
    first, *rest = inputs
    source = types.SimpleNamespace(
        input=first, args=tuple(rest), kwargs={}, **{PROCESS: make_output_processing(info, None)}
    )
    return GradientSampleMaker(info, Group("critical:sort", "", "float32", 1, check=check), 4, call).make(0, source)


def _tied() -> Any:
    x = torch.tensor([[3.0, 1.0, 3.0, 2.0], [2.0, 2.0, 1.0, 0.0]])
    return x.requires_grad_()


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_may_change_places_in_the_gradient_of_a_sort(descending: bool) -> None:
    made = _sample(lambda x: torch.sort(x, dim=-1, descending=descending)[0], _tied())
    (leaf,) = made.expected
    swapped = leaf.reference.copy()
    swapped[0, [0, 2]] = swapped[0, [2, 0]]
    swapped[1, [0, 1]] = swapped[1, [1, 0]]
    assert _units(swapped, leaf) == 0.0
    wrong = leaf.reference.copy()
    wrong[0, [0, 1]] = wrong[0, [1, 0]]
    assert _units(wrong, leaf) > 32, "3 and 1 are no equals"
    other = leaf.reference.copy()
    other[0, 3], other[1, 0] = other[1, 0], other[0, 3]
    assert _units(other, leaf) > 32, "2 and 2, of two rows"
    lost = swapped.copy()
    lost[0, 0] = 0.0
    assert _units(lost, leaf) > 32


def test_of_a_second_derivative_equal_outputs_may_change_places_too() -> None:
    made = _sample(lambda x: torch.sort(x, dim=-1)[0], _tied(), check="double_backward")
    assert [leaf.ties is not None for leaf in made.expected] == [True, True]


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x: torch.sort(x, dim=-1)[0], (torch.arange(6.0).reshape(2, 3).requires_grad_(),)),  # none is equal
        (lambda x: x.amax(-1), (_tied(),)),  # shared out among equals, by definition
        (lambda x, i: torch.gather(x, 1, i), (_tied(), torch.tensor([[0, 1], [1, 0]]))),  # told which
        (lambda x: x * 2, (_tied(),)),
    ],
    ids=["distinct", "amax", "gather", "times two"],
)
def test_no_others_may(call, inputs) -> None:  # type: ignore[no-untyped-def]
    assert all(leaf.ties is None for leaf in _sample(call, *inputs).expected)


def test_pooling_chooses() -> None:
    made = _sample(lambda x: torch.nn.functional.max_pool2d(x, 2), torch.ones(1, 1, 4, 4).requires_grad_())
    assert made.expected[0].ties is not None


def _units(actual: np.ndarray, leaf: Leaf) -> float:
    array = actual.astype(np.float32)
    units = compare_outputs(
        [reorder_leaf_ties(array, leaf)], [Leaf(leaf.dtype, leaf.shape, leaf.reference)], OpClass.COMPOSITE
    ).error_units
    assert units is not None
    return units


def test_what_cancels_inside_of_an_operator_has_the_floor_of_its_terms() -> None:
    """Beyond the border all taps of a bicubic sample are one pixel, and the derivatives of their weights add up to
    nothing."""

    def call(x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, mode="bicubic", padding_mode="border", align_corners=False)

    torch.manual_seed(0)
    x = torch.randn(1, 3, 5, 5)
    grid = torch.tensor([[[[1.9, 2.1], [1.7, 1.8], [0.1, 0.2]]]]).requires_grad_()
    (leaf,) = _sample(call, x, grid).expected
    assert leaf.reference is not None and leaf.noise is not None
    left = np.abs(leaf.reference[0, 0, :2])
    assert (left < 1e-13).all() and np.abs(leaf.reference[0, 0, 2]).min() > 1e-3
    assert (leaf.noise[0, 0, :2][left > 0] > 1e-8).all()
