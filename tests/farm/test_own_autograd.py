"""Autograd libraries of one's own: NumPy kernels with a gradient, at every entry point, each fault beside its sound twin."""

from __future__ import annotations

import functools
import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
import tasks
from farm.client.cases import Cases
from tests import prepared
from tests.conftest import ROOT
from tests.kernels.scaled import by_name, in_place, lost, narrow, not_summed, of_a_sign, of_lists, one, right, scaled

X = np.random.default_rng(0).standard_normal((3, 4))
W = np.random.default_rng(1).standard_normal(4)


#: Backward function → what is said of it, "" where it is right.
BACKWARDS: dict[Callable[..., Any], str] = {
    right: "",
    by_name: "",
    not_summed: "the gradient of w has the shape (3, 4), that of w is (4,)",
    of_a_sign: "error units",
    lost: "error units",
    narrow: "the gradient of x has the dtype float32, that of x is float64",
    one: "returned 1 gradients: 2 are asked for, of x, w",
    of_lists: "returned a list of 3 as the gradient of x",
    in_place: "the gradient that the backward pass was given for output 0, of shape (3, 4), was changed",
}
SHAPES = {"x": [3, 4], "w": [4]}
#: Of a seed whose case is no weak one.
HOW: dict[str, Any] = {"framework": "numpy", "dtypes": ["float64"], "seed": 3}


@pytest.mark.parametrize("backward", BACKWARDS, ids=lambda f: f.__name__)
def test_a_fault_is_named_wherever_the_kernel_is_judged(backward: Any) -> None:
    says = BACKWARDS[backward]
    found = farm.fuzz(scaled, scaled, SHAPES, cases=1, results=None, backward=backward, **HOW)
    assert (found.passed, found.failed) == ((2, 0) if not says else (1, 1)), found
    assert all(says in one.message for one in found.findings)
    with farm.validate(scaled, {"x": X, "w": W}, reference=scaled, backward=backward, framework="numpy") as v:
        v.output = scaled(X, W)
    assert [o.passed for o in v.outcomes] == [True, not says] and says in v.outcome.message
    cases = Cases.of(scaled, scaled, SHAPES, cases=1, backward=backward, **HOW)
    (case,) = cases
    if says:
        with pytest.raises(AssertionError) as told:
            case.check(scaled(**case.inputs))
        assert says in str(told.value)
    else:
        case.check(scaled(**case.inputs))
    if backward is not in_place:  # the gradient of a call that nobody watches
        checked = farm.check_autograd(scaled, (X, W), backward=backward)
        assert checked.passed is not bool(says) and says in checked.message


class Plain:
    """A tensor whose backward takes no gradient, and whose gradient is None until there is one."""

    takes_gradient = False

    def __init__(self, values: Any) -> None:
        self.values, self.g, self.undo = np.asarray(values), None, lambda: None

    def made(self, values: Any, *parents: tuple[Plain, Callable[[Any], Any]]) -> Plain:
        out = type(self)(values)

        def undo() -> None:
            for parent, local in parents:
                parent.g = local(out.g) if parent.g is None else parent.g + local(out.g)
                parent.undo()

        out.undo = undo
        return out

    def __add__(self, other: Plain) -> Plain:
        return self.made(self.values + other.values, (self, lambda g: g), (other, lambda g: g))

    def __mul__(self, other: Plain) -> Plain:
        a, b = self.values, other.values
        return self.made(a * b, (self, lambda g: g * b), (other, lambda g: g * a))

    def sum(self) -> Plain:
        return self.made(self.values.sum(), (self, lambda g: g * np.ones_like(self.values)))

    def differentiate(self) -> None:
        self.g = np.ones_like(self.values)
        self.undo()


class Seeded(Plain):
    """One whose backward takes the gradient, and whose gradient is a tensor."""

    def differentiate(self, gradient: Any) -> None:  # type: ignore[override]
        self.g = gradient
        self.undo()

    @property
    def grad(self) -> Any:
        return None if self.g is None else type(self)(self.g)


@pytest.mark.parametrize(("tensor", "grad"), [(Plain, "g"), (Seeded, "grad")])
def test_a_library_of_other_names_and_other_ways(tensor: Any, grad: str) -> None:
    library = tasks.autograd(tensor, data="values", grad=grad, backward="differentiate")

    @library
    def one_output(a: Any, b: Any, times: int = 1) -> Any:
        return a * b

    assert farm.check_autograd(one_output, (X, X + 1)).passed
    assert one_output(X, X).tolist() == (X * X).tolist() and one_output.__name__ == "one_output"

    @library
    def unused(a: Any, b: Any) -> Any:
        return a * a

    # Nothing hangs on b: its gradient is None, which is 0.
    assert farm.check_autograd(unused, (X, X)).passed


def test_several_outputs_and_what_is_no_floating_array() -> None:
    @tasks.autograd(Plain, data="values", grad="g", backward="differentiate")
    def two(a: Any, b: Any, places: Any) -> Any:
        assert isinstance(places, np.ndarray)
        return a * b, a + b

    assert farm.check_autograd(two, (X, X + 1, np.arange(3))).passed


def test_a_second_derivative_is_refused_with_a_line(tmp_path: Path) -> None:
    found = farm.check_autograd(scaled, (X, W), backward=right, double=True)
    assert str(found.checks[1]) == "double_backward: declared once-differentiable"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: farm.check_autograd(scaled, (X, W)),
            "a kernel of NumPy arrays has no gradient of its own: give backward",
        ),
        (lambda: farm.check_autograd(scaled, (X, W), backward=lambda g, x: g), "is called with a gradient, x, w"),
        (
            lambda: farm.check_autograd(scaled, (X, W), backward=3),
            "backward: True, the names of inputs, or the function",
        ),
        (
            lambda: farm.fuzz(scaled, scaled, SHAPES, backward=right, results=None),
            "backward: autograd differentiates a kernel of tensors",
        ),
        (lambda: farm.check_autograd(scaled, (X,), func=scaled), "function and func are both given"),
        (lambda: farm.check_autograd(inputs=(X,)), "None is not a function"),
    ],
)
def test_a_call_that_cannot_be_meant_is_a_line(call: Any, says: str) -> None:
    with pytest.raises(farm.ClientError) as told:
        call()
    assert says in str(told.value)


def test_the_code_of_the_manual_runs() -> None:
    page = (ROOT / "docs" / "kernel_tests.md").read_text().partition("## Your own autograd")[2]
    functions, library = re.findall(r"```python\n(.*?)```", page, re.S)[:2]
    softmax = "def softmax(x):\n    e = np.exp(x - x.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True)\n"
    names: dict[str, Any] = {"farm": farm, "np": np, "tasks": tasks, "x": X, "Tensor": Plain}
    called = functools.partial(tasks.autograd, data="values", grad="g", backward="differentiate")
    exec(softmax + "softmax_f64 = softmax\n", names)
    assert functions.count("def softmax(x): ...") == functions.count("cases=20") == 1
    exec(functions.replace("def softmax(x): ...", "").replace("cases=20", "cases=3, results=None"), names)
    assert (names["result"].passed, names["result"].failed) == (6, 0)
    assert library.count("import farm\n") == 1
    names["farm"] = types.SimpleNamespace(op=tasks.op, autograd=called)  # Plain has other names than the manual's
    exec(library.replace("import farm\n", ""), names)
    found = farm.fuzz(names["mul"], cases=2, dims={"rows": 1, "columns": (1, 4)}, results=None, backward=True)
    assert found.failed == 2  # it does not sum over what was broadcast: the gradient of b has another shape


def test_the_example_and_its_planted_fault(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(ROOT / "examples" / "own_autograd", mine, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    options = ["-q", "-p", "farm_pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = prepared.run([sys.executable, "-m", "pytest", *options, mine], cwd=mine)
    assert done.returncode == 0, done.stdout + done.stderr
