"""Which dimensions the shapes of a kernel's inputs are made of: names alone, and what is computed of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.catalogs.user.dims import collect_kernel_dims, solve_kernel_dims
from tasks.catalogs.user.ops import UserOp


@pytest.mark.parametrize(
    ("inputs", "dims", "shapes", "found"),
    [
        ({"x": ["b", "2*h"]}, {"b": [1, 4], "h": [5, 64]}, {"x": (3, 200)}, {"b": 3, "h": 100}),
        ({"x": ["b", "2*h"]}, {"b": [1, 4], "h": [5, 64]}, {"x": (3, 201)}, None),
        ({"x": ["o+k-1"], "w": ["k"]}, {"o": [2], "k": [3]}, {"x": (10,), "w": (4,)}, {"o": 7, "k": 4}),
        ({"x": ["n//2"]}, {"n": [4]}, {"x": (5,)}, {"n": 10}),  # the least of those that give it
        ({"x": ["100-n"]}, {"n": [4]}, {"x": (5,)}, {"n": 95}),
        ({"x": ["heads*d"]}, {"heads": [4, 2], "d": [8, 3]}, {"x": (24,)}, {"heads": 8, "d": 3}),  # nobody tells which
        ({"x": ["b"]}, {"b": [1], "w": [7, 2]}, {"x": (5,)}, {"b": 5, "w": 2}),  # in no shape
        ({"x": ["b", 3]}, {"b": [1]}, {"x": (5, 4)}, None),
        ({"x": ["b"]}, {"b": [1]}, {"x": (5, 4)}, None),
    ],
)
def test_shapes_say_what_dimensions_are(
    inputs: Any, dims: Any, shapes: dict[str, tuple[int, ...]], found: dict[str, int] | None
) -> None:
    op, arrays = SimpleNamespace(name="k", inputs=inputs, dims=dims), {k: np.zeros(x) for k, x in shapes.items()}
    if found is None:
        with pytest.raises(ValueError, match=r"k: (the input x has|no sizes of its dimensions)"):
            solve_kernel_dims(op, arrays)
    else:
        assert solve_kernel_dims(op, arrays) == found


def test_what_sizes_are_made_of_is_told_by_shapes_ends_arguments_and_outputs_alone() -> None:
    inputs = {"x": ["b", "2*h"], "index": {"shape": ["m"], "dtype": "int64", "low": 0, "high": "vocabulary"}}
    outputs = ["int32", {"dtype": "float32", "shape": ["o//2"]}]
    op = UserOp("k", len, len, inputs, kwargs={"window": {"dim": "w"}, "mode": "mean"}, outputs=outputs)
    assert collect_kernel_dims(op) == {"b", "h", "m", "vocabulary", "o", "w"}
