"""Gradients held against differences in the client: what is lost, declared, raised, or cannot be judged."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

import farm


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise RuntimeError("boom")


def test_what_is_declared_to_be_differentiable_once_is_not_blamed_for_it() -> None:
    x = torch.linspace(-2, 2, 7)
    found = farm.validate_autograd_function(_Swish, (x,))
    assert found.passed and "double_backward: declared once-differentiable" in str(found)
    again = farm.check_autograd(lambda x: 3 * _Swish.apply(x), (x,), double=True)
    assert again.passed and "declared once-differentiable" in str(again)


def test_a_sparse_gradient_is_not_taken_for_one_without_a_graph() -> None:
    def taken(weight: Any) -> Any:
        return torch.nn.functional.embedding(torch.tensor([0, 2, 2]), weight, sparse=True)

    found = farm.check_autograd(taken, (torch.linspace(-1, 1, 12).reshape(4, 3),), double=True)
    assert found.passed, found.message


class _AsksForAGpu(_Swish):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def test_what_tritons_interpreter_cannot_run_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = farm.check_autograd(_AsksForAGpu.apply, (torch.linspace(-2, 2, 7),))
    assert not found.passed and "backward: not judged: Triton's interpreter cannot run this kernel" in found.message
    with pytest.raises(farm.ClientError, match="Triton's interpreter cannot run this kernel"):
        farm.check_autograd(lambda x: _AsksForAGpu.backward(None, x), (torch.linspace(-2, 2, 7),))


def test_a_lost_graph_fails_and_what_nothing_was_said_of_has_not_passed() -> None:
    x = torch.linspace(-2, 2, 7)
    lost = farm.check_autograd(lambda x: _Swish.apply(x.detach()), (x,))
    assert not lost.passed and "something detaches them" in lost.message
    constant = farm.check_autograd(torch.zeros_like, (x,))
    assert constant.passed and "no output depends" in str(constant)
    for function in (torch.nn.functional.dropout, torch.argmax):
        silent = farm.check_autograd(function, (x,))
        assert not silent.passed and "backward: not judged: " in silent.message
        with pytest.raises(AssertionError, match="not judged"):
            silent.check()


def test_a_function_that_draws_random_numbers_is_called_random_and_judged_where_it_is_seeded() -> None:
    x = torch.linspace(-2, 2, 40)

    def seeded(x: Any) -> Any:
        torch.manual_seed(0)
        return torch.nn.functional.dropout(x)

    for function in (torch.nn.functional.dropout, lambda x: x + 1e-3 * torch.randn_like(x), torch.rand_like):
        found = farm.check_autograd(function, (x,), double=True)
        assert not found.passed and "the function is random: two runs on the same inputs differ" in found.message
        assert "torch.manual_seed" in found.message and "not differentiable" not in str(found)
    assert farm.check_autograd(seeded, (x,)).passed
    assert "not differentiable" in farm.check_autograd(torch.relu, torch.zeros(1)).message  # nothing random


class _InFloat32(_Swish):
    """As published kernels are written: float32 inside, whatever they are given."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return (x.float() * torch.sigmoid(x.float())).to(x.dtype)


class _Rounds(_Swish):
    """Sound in float64, though its result has no fractions."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.round() + 2 * x - 2 * x


def test_a_function_that_computes_in_float32_is_not_blamed_for_what_differences_of_it_say() -> None:
    for x in (torch.linspace(-2, 2, 7), torch.linspace(-2, 2, 700)):
        found = farm.validate_autograd_function(_InFloat32, (x,))
        assert (
            not found.passed
            and "backward: not judged: it always computes in float32 or less internally" in found.message
        )
        assert all(c.passed for c in found.checks)
        wrong = farm.check_autograd(_Rounds.apply, (x + 0.1,))
        assert "backward: failed" in wrong.message and "float32" not in wrong.message


class _Scaled(torch.autograd.Function):
    """The gradient of the factor, which is broadcast, is summed over one axis of two."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: Any) -> Any:
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, factor = ctx.saved_tensors
        return g * factor, (g * x).sum(0)[0]


def test_which_gradient_is_wrong_is_told() -> None:
    found = farm.check_autograd(_Scaled.apply, (torch.randn(2, 3, 4), torch.randn(4)))
    assert "apart (gradient of tensor 1, at [" in found.message
    many = farm.check_autograd(_Scaled.apply, (torch.randn(20, 3, 4), torch.randn(4)))
    assert "apart (gradient of tensor 1, at [" in many.message  # traced by halving


def test_the_element_that_is_furthest_off_is_told_with_both_values() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * torch.tensor([[2.0, 2.0], [2.0, -2.0]], dtype=g.dtype)

    (found,) = farm.check_autograd(Wrong, (torch.randn(2, 2),)).checks
    told = re.search(r"at \[1, 1\]: (\S+), by differences (\S+)\)$", found.message)
    assert told and float(told[1]) == -float(told[2])
    number = farm.check_autograd(lambda x: 2 * x.detach() + 0 * x, (torch.tensor(1.0),))
    assert "(at []: 0, by differences " in number.message


def test_a_tensor_of_an_autograd_library_is_told_what_to_pass() -> None:
    class Value:
        def backward(self) -> None: ...

    with pytest.raises(
        farm.ClientError, match=r"an input is a Value: pass its NumPy array, and put @farm.autograd\(Value\)"
    ):
        farm.check_autograd(lambda x: x, (Value(),))


def test_a_backward_pass_that_raises_fails_and_silences_no_other_check() -> None:
    found = farm.validate_autograd_function(_Raises, (torch.ones(3),), reference=lambda x: 2 * x)
    assert not found.passed and [c.name for c in found.checks if c.passed] == ["forward"]
    assert "backward: failed: raised RuntimeError: boom" in found.message
    assert "raised RuntimeError: boom" in farm.check_autograd(_Raises.apply, (torch.ones(3),)).message


@pytest.mark.parametrize("tie", [1e3, 1e8, 1e9, 1e12])
def test_a_tie_of_large_numbers_is_no_float32(tie: float) -> None:
    found = farm.check_autograd(lambda x: torch.softmax(x, -1), (torch.tensor([tie, tie, 0.0], dtype=torch.float64),))
    assert found.passed and found.checks[0].judged, found.message


def test_what_no_step_shows_is_not_judged() -> None:
    found = farm.check_autograd(lambda x: torch.softmax(x, -1), (torch.tensor([1e15, 1e15, 0.0], dtype=torch.float64),))
    assert not found.passed and "differences say nothing" in found.message and "float32" not in found.message


@pytest.mark.parametrize("shape", [(3, 4), (20, 20)])  # every element; projections
@pytest.mark.parametrize(("eps", "fits"), [(1e-3, True), (1e-5, True), (0.1, False), (1e-12, False), (1e3, False)])
def test_a_step_is_used_where_it_is_given(shape: tuple[int, ...], eps: float, fits: bool) -> None:
    x = torch.linspace(-2, 2, shape[0] * shape[1]).reshape(shape)
    found = farm.check_autograd(torch.sin, (x,), eps=eps)
    assert ("does not fit these values" not in found.message) is fits, found.message
    assert found.passed is (eps < 1)


def test_a_wrong_gradient_is_found_with_a_step_of_ones_own() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 0.99 * g * x.cos()

    for shape in ((5,), (200,)):
        assert not farm.check_autograd(Wrong.apply, (torch.linspace(-1, 1, shape[0]),), eps=1e-4).passed


@pytest.mark.parametrize(
    "function, x",
    [
        (lambda x: x.median(-1).values, torch.ones(3)),
        (lambda x: x.sort().values[1], torch.ones(3)),
        (lambda x: torch.max(torch.min(x[0], x[1]), torch.min(x[0], x[2])), torch.ones(3)),
        (lambda x: (x[0] * x[1]).abs().sqrt(), torch.zeros(2)),
    ],
)
def test_a_tie_that_single_elements_do_not_show_is_a_kink(function: Any, x: Any) -> None:
    found = farm.check_autograd(function, (x,))
    assert [c.judged for c in found.checks] == [False] and "not differentiable at the input" in found.message


class _Median(torch.autograd.Function):
    """The median with a gradient of so many times what it is."""

    @staticmethod
    def forward(ctx: Any, x: Any, share: float) -> Any:
        ctx.share, (value, place) = share, x.median(-1)
        ctx.one = torch.nn.functional.one_hot(place, x.shape[-1])
        return value

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        return ctx.share * g * ctx.one, None


def test_a_wrong_gradient_away_from_a_tie_fails() -> None:
    x = torch.tensor([1.0, 2.0, 4.0, 1.0, 7.0])
    assert farm.check_autograd(lambda x: _Median.apply(x, 1.0), (x,)).passed
    found = farm.check_autograd(lambda x: _Median.apply(x, 1.01), (x,))
    assert not found.passed and found.checks[0].judged


class _SlightlySteep(torch.autograd.Function):
    """1e-14·sin x, with a derivative that is off by a thousandth."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return 1e-14 * x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 1.001e-14 * x.cos() * gradient


class _SumOfSoftmax(torch.autograd.Function):
    """1 whatever x is, with a gradient that is not 0."""

    @staticmethod
    def forward(ctx: Any, x: Any, off: float) -> Any:
        ctx.shape, ctx.off = x.shape, off
        return torch.softmax(x, -1).sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        return (g[..., None] * ctx.off).expand(ctx.shape), None


def test_a_gradient_of_0_is_judged_by_how_small_it_is_beside_the_outputs() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for function in (
        lambda x: torch.softmax(x, -1).sum(-1),
        lambda x: torch.log_softmax(x, -1).exp().sum(-1),
        lambda x: torch.nn.functional.normalize(x, dim=-1).norm(dim=-1),
        lambda x: x.sin() ** 2 + x.cos() ** 2,
    ):
        farm.check_autograd(function, (x,)).check()
    for off in (0.1, 1e-3, 1e-7):
        found = farm.check_autograd(lambda x, off=off: _SumOfSoftmax.apply(x, off), (x,))
        assert not found.passed and found.checks[0].judged
    # Small because its outputs are small: told from their own size.
    assert farm.check_autograd(lambda x: 1e-14 * x.sin(), (x,)).passed
    steep = farm.check_autograd(lambda x: _SlightlySteep.apply(x), (x,))
    assert not steep.passed and steep.checks[0].judged


def test_what_cancels_in_float64_is_not_called_float32() -> None:
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = farm.check_autograd(lambda x: torch.nn.functional.layer_norm(x, (6,)).sum(-1), (x,))
    assert "float32" not in str(found)


@pytest.mark.parametrize(
    "kernel, reference, names",
    [(lambda x: torch.sin(x), np.sin, ["x"]), (lambda a, b: torch.maximum(a, b), np.maximum, ["a", "b"])],
)
def test_a_ufunc_is_a_reference_whatever_the_inputs_are_called(kernel: Any, reference: Any, names: list[str]) -> None:
    shapes = {"inputs": {name: ["n"] for name in names}, "dims": {"n": (1, 9)}}
    farm.fuzz(kernel, reference, **shapes, cases=2, results=None).check()
    wrong = farm.fuzz(lambda **given: kernel(**given) + 1, reference, **shapes, cases=2, results=None)
    assert wrong.failed == 2
