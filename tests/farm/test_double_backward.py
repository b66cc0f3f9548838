"""Gradients of gradients wherever gradients are: the same fault and its sound twin at every way in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

import farm
from farm import lake
from farm.client.cases import Cases
from farm.client.kernels import ClientError, find_kernel
from tests.kernels.cubes import Cube, cube, detached, right, wave, wave_right

pytest_plugins = "pytester"

INPUTS: dict[str, Any] = {"inputs": {"x": ["n"]}, "dims": {"n": (1, 33)}}


def wrong(rows: Any) -> set[str]:
    """Checks that found something."""
    return set(rows.loc[rows["status"] == "wrong", "check"])


def test_fuzz_finds_it_and_makes_it_small(tmp_path: Path) -> None:
    every = {"forward", "backward", "double_backward"}
    sound = farm.fuzz(cube, right, **INPUTS, cases=10, double=True, results=None)
    assert set(sound.rows["check"]) == every and not wrong(sound.rows)
    found = farm.fuzz(detached, right, **INPUTS, cases=10, backward=True, double=True, results=tmp_path / "lake")
    assert set(found.rows["check"]) == every and wrong(found.rows) == {"double_backward"}
    (one,) = found.findings
    assert "double_backward/user:detached" in one.command
    assert one.minimal.shapes == {"x": (1,)} and one.minimal.status == "wrong"
    alone = farm.fuzz(detached, right, **INPUTS, cases=10, backward=True, results=None)
    assert set(alone.rows["check"]) == {"forward", "backward"} and not wrong(alone.rows)


def test_given_inputs(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    farm.assert_correct(cube, (x,), right, double=True)
    with pytest.raises(AssertionError, match="double_backward/user:detached"):
        farm.assert_correct(detached, (x,), right, double=True)


@pytest.mark.parametrize(("kernel", "last"), [(cube, "pass"), (detached, "wrong")])
def test_a_call_of_ones_own(kernel: Any, last: str, tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)
    with farm.validate(kernel, {"x": x}, right, double=True, results=tmp_path / "lake") as v:
        v.output = kernel(x)
    assert [(o.row.check, o.status) for o in v.outcomes] == [
        ("forward", "pass"),
        ("backward", "pass"),
        ("double_backward", last),
    ]
    assert set(lake.read(tmp_path / "lake")["check"]) == {"forward", "backward", "double_backward"}
    with pytest.raises(ClientError, match="no input requires a gradient"):
        with farm.validate(kernel, {"x": x.detach()}, right, double=True):
            pass


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"], ["b"]])
def test_gradients_come_in_the_order_of_the_inputs_however_they_are_named(names: list[str]) -> None:
    two = {"inputs": {"a": ["n"], "b": ["n"]}, "dims": {"n": (1, 9)}}
    for case in Cases.of(wave, wave_right, cases=3, backward=names, double=True, **two):
        case.check(wave(**case.inputs))


def test_what_double_is_of() -> None:
    assert find_kernel(cube, right, **INPUTS, double=True).checks == ["forward", "backward", "double_backward"]
    assert find_kernel(cube, right, **INPUTS, backward=True).checks == ["forward", "backward"]
    assert find_kernel(cube, right, **INPUTS).checks == ["forward"]
    some = find_kernel(wave, wave_right, {"a": [3], "b": [3]}, backward=["b"], double=True)
    assert list(some.op.gradient) == ["b"]


@settings(max_examples=5, deadline=None)
@given(case=farm.strategies.cases(cube, reference=right, double=True, **INPUTS))
def test_cases_of_hypothesis(case: Any) -> None:
    case.check(cube(**case.inputs))


def test_hypothesis_finds_it() -> None:
    # That it is made small is shown in test_pytest_plugin.
    @settings(max_examples=20, deadline=None, database=None, phases=[Phase.generate])
    @given(case=farm.strategies.cases(detached, reference=right, double=True, **INPUTS))
    def check(case: Any) -> None:
        case.check(detached(**case.inputs))

    with pytest.raises(AssertionError, match="double_backward/user:detached"):
        check()


def test_the_marker_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_kernels="""
        import pytest
        from tests.kernels.cubes import cube, detached, right

        @pytest.mark.farm(cube, reference=right, inputs={"x": [7]}, cases=3, double=True)
        def test_sound(farm_case):
            farm_case.check(cube(**farm_case.inputs))

        @pytest.mark.farm(detached, reference=right, inputs={"x": [7]}, cases=3, double=True)
        def test_fault(farm_case):
            farm_case.check(detached(**farm_case.inputs))
        """
    )
    done = pytester.runpytest_inprocess("-p", "farm_pytest", "-p", "no:cacheprovider")
    outcomes = done.parseoutcomes()
    assert outcomes["passed"] >= 3 and outcomes["failed"] >= 2 and outcomes["passed"] + outcomes["failed"] == 6
    done.stdout.fnmatch_lines(["*double_backward/user:*test_fault*"])


class Once(Cube):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def looped(x: Any) -> Any:
    """What autograd cannot follow."""
    return np.array([float(v) ** 3 for v in x])


def test_a_check_that_judged_nothing_has_not_passed_unless_the_kernel_has_no_second_derivative() -> None:
    def found(kernel: Any, reference: Any, **settings: Any) -> Any:
        return farm.fuzz(kernel, reference, **INPUTS, cases=2, backward=True, double=True, results=None, **settings)

    silent = found(cube, looped, reference_framework="numpy")
    assert not silent.findings
    with pytest.raises(AssertionError, match="nothing was judged of double_backward: vacuous: autograd cannot follow"):
        silent.check()
    once = found(lambda x: Once.apply(x), right, reference_framework="torch")
    assert "declared once-differentiable" in str(once)
    once.check()
