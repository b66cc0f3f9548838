"""The pytest plug-in and the Hypothesis strategies, as a kernel's author uses them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import farm
from farm import lake
from tests.kernels.norms import DIMS, INPUTS, exact, rms_norm, tail_lost

pytest_plugins = "pytester"

MODULE = """
import numpy as np
import pytest
import torch
import tasks

def exact(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

@tasks.op(reference=exact, inputs={"x": ["b", "n"]}, dims={"b": [1, 3], "n": [1, 40]}, op_class="normalisation")
def softmax(x):
    return torch.softmax(x, -1)

def wrong(x):
    return torch.softmax(x[:, :32], -1) if x.shape[-1] > 32 else torch.softmax(x, -1)

@pytest.mark.farm(dims={"n": (1, 64)}, dtypes=["float32", "bfloat16"], cases=4)
def test_softmax(farm_case):
    farm_case.check(softmax(**farm_case.inputs))

@pytest.mark.farm(softmax, backward=True, dims={"n": (2, 12)}, cases=2)
def test_its_gradient(farm_case):
    farm_case.check(softmax(**farm_case.inputs))
"""
FAULTY = """
@pytest.mark.farm(softmax, dims={"n": (1, 64)}, cases=12)
def test_wrong(farm_case):
    made = torch.zeros_like(farm_case.inputs["x"])
    found = wrong(farm_case.inputs["x"])
    made[:, :found.shape[-1]] = found
    farm_case.check(made)

@pytest.mark.farm(softmax, cases=1)
def test_forgets(farm_case):
    softmax(**farm_case.inputs)
"""


@pytest.fixture(autouse=True, scope="module")
def imported() -> None:
    """pytester forgets the modules that a run of its own was the first to import, and torch's cannot be imported twice
    in a process."""
    for name in ("torch._dynamo", "torch.testing._internal.common_methods_invocations"):
        importlib.import_module(name)


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_kernels=text)
    return pytester.runpytest_inprocess("-p", "farm_pytest", "-p", "no:cacheprovider", *options)


def test_cases_are_tests_and_rows_are_kept(pytester: pytest.Pytester) -> None:
    done = run(pytester, MODULE, "-v", "--farm-results=kept")
    done.assert_outcomes(passed=10)
    done.stdout.fnmatch_lines(["*test_softmax?bfloat16-3?*", "farm: run * of kept: farm report --results kept"])
    rows = lake.read(Path(pytester.path, "kept"))
    assert len(rows) == 12 and set(rows.status) == {"pass"} and set(rows.check) == {"forward", "backward"}


def test_a_fault_fails_with_its_case_and_what_is_not_judged_fails(pytester: pytest.Pytester) -> None:
    done = run(pytester, MODULE + FAULTY, "-k", "wrong or forgets", "--farm-seed=3", "--farm-cases=12")
    found = done.parseoutcomes()
    assert found["failed"] >= 1 and found["errors"] == 12 and found["passed"] >= 12  # short rows pass
    said = done.stdout.str()
    assert re.search(r"forward/user:test_kernels.test_wrong/float32/fuzz/\d+@3 \[\S+\] wrong .*seed \d+", said), said
    assert "farm_case.check(…) was not called: nothing was judged" in said
    assert "> " in said and "def check(self" not in said  # the test's line, not the farm's


IMPRECISE = """
import torch

def product(a, b): return a @ b

def in_float16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total

given = dict(reference=product, inputs={"a": [8, 512], "b": [512, 8]}, dtypes=["float16"], cases=3)

@pytest.mark.farm(**given)
def test_may_be_imprecise(farm_case):
    farm_case.check(in_float16(**farm_case.inputs))

@pytest.mark.farm(**given, imprecise=False)
def test_may_not(farm_case):
    farm_case.check(in_float16(**farm_case.inputs))
"""


def test_a_marker_can_ask_for_more_than_imprecise(pytester: pytest.Pytester) -> None:
    done = run(pytester, MODULE + IMPRECISE, "-k", "test_may")
    assert done.parseoutcomes()["passed"] == 3 and done.parseoutcomes()["failed"] > 0
    done.stdout.fnmatch_lines(["*imprecise * accumulated in float16*"])


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("dims={'m': (1, 4)}", "which kernel? Its module has no 'other' with @farm.op"),
        ("softmax, dims={'n': 0}", "test_other: dims.n.0: 0 is no size"),
        ("softmax, clas='exact'", "unknown argument 'clas'"),
        ("'no.where:softmax'", "no module 'no.where'"),
        ("softmax, seed='x'", "seed: a whole number from 0 to"),
        ("softmax, policy='strict'", "no policy 'strict'"),
    ],
)
def test_a_marker_that_cannot_be_meant_is_a_line(pytester: pytest.Pytester, mark: str, says: str) -> None:
    test = f"\n@pytest.mark.farm({mark})\ndef test_other(farm_case): pass\n"
    done = run(pytester, MODULE + test)
    line = f"test_kernels.py::test_other: @pytest.mark.farm: *{says}*"
    done.stdout.fnmatch_lines([line.replace("[", "?").replace("]", "?")])
    assert done.ret == pytest.ExitCode.INTERRUPTED and not {"_hookexec", "During"} & set(
        re.findall(r"\w+", done.stdout.str())
    )


def test_a_lake_that_cannot_be_is_a_line(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest("--farm-results", "/proc/lake")
    done.stderr.fnmatch_lines(["*--farm-results '/proc/lake' cannot be written*"])
    assert done.ret != 0 and "Traceback" not in done.stderr.str()


GIVEN = {"reference": exact, "inputs": INPUTS, "dims": DIMS, "op_class": "normalisation"}


@settings(max_examples=15, deadline=None)
@given(case=farm.strategies.cases(**GIVEN))
def test_cases_of_hypothesis(case: Any) -> None:
    case.check(rms_norm(**case.inputs))


def more_than_one(x: Any, weight: Any) -> Any:
    return rms_norm(x, weight) + (x.shape[-1] > 1)


@pytest.mark.parametrize(
    ("kernel", "largest", "smallest"),
    [(tail_lost, 600, (1, 129)), (more_than_one, 600, (1, 2)), (more_than_one, 512, (1, 2))],
)
def test_hypothesis_finds_the_fault_and_makes_it_small(kernel: Any, largest: int, smallest: tuple[int, int]) -> None:
    seen: list[tuple[int, int]] = []
    dims = {"b": (1, 4), "n": (1, largest)}

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(case=farm.strategies.cases(kernel, **GIVEN | {"dims": dims}), more=st.none())
    def holds(case: Any, more: None) -> None:
        try:
            case.check(kernel(**case.inputs))
        except AssertionError:
            seen.append(tuple(case.arrays["x"].shape))
            raise

    with pytest.raises(AssertionError, match="wrong numbers"):
        holds()
    assert seen[-1] == smallest
    with pytest.raises(farm.ClientError, match="cases: Hypothesis decides it"):
        farm.strategies.cases(tail_lost, cases=3, **GIVEN)


def product(summed: Any) -> Any:
    """x·y whose gradients are brought back to the shapes of x and y by ``summed``."""

    def back(g: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        g = g.reshape(-1, *g.shape[g.ndim - len(shape) :]).sum(0)
        for axis, n in enumerate(shape):
            g = summed(g, axis) if n < g.shape[axis] else g
        return g

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            x, y = ctx.saved_tensors
            return back(g * y, x.shape), back(g * x, y.shape)

    return Product.apply


@pytest.mark.parametrize(
    ("summed", "right"),
    [(lambda g, axis: g.sum(axis, keepdim=True), True), (lambda g, axis: g.mean(axis, keepdim=True), False)],
)
def test_pairs_that_broadcast_show_a_gradient_that_is_not_summed(summed: Any, right: bool) -> None:
    drawn: list[Any] = []

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(pair=farm.strategies.broadcastable())
    def holds(pair: Any) -> None:
        shape, partner = pair
        assert np.broadcast_shapes(shape, partner) == shape
        drawn.append(pair)
        farm.check_autograd(product(summed), tuple(torch.randn(s, dtype=torch.float64) for s in pair)).check()

    if right:
        holds()
        assert {len(shape) - len(partner) for shape, partner in drawn} >= {0, 1}
    else:
        with pytest.raises(AssertionError, match="error units from differences"):
            holds()
        shape, partner = drawn[-1]
        assert np.prod(shape) == 2 and np.prod(partner) == 1  # the smallest pair that shows it
