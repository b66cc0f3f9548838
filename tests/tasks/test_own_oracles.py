"""Gradients have an oracle that torch's derivatives have no part in: what both torch's float64 and a backend have wrong is told."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.backends import BackendSpec
from tasks.gradients import analytic, autograd
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group


def rows(group: Group, cache: Path) -> list[dict[str, Any]]:
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(prepare_group(group, cache)[1])])]


# --- derivatives of torch's that are planted in its dispatcher: the reference has them as well as the backend -----


def _of_bmm(g: Any, a: Any, b: Any) -> Sequence[Any]:
    return g.bmm(b.mT), a.mT.bmm(g)


def _of_cholesky_solve(g: Any, b: Any, factor: Any, upper: bool = False) -> Sequence[Any]:
    x, by_b = torch.cholesky_solve(b, factor, upper=upper), torch.cholesky_solve(g, factor, upper=upper)
    both = by_b @ x.mT + x @ by_b.mT
    return by_b, -(factor @ both if upper else both @ factor)


def _of_norm(g: Any, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, **more: Any) -> Sequence[Any]:
    dims, p = tuple(range(x.dim())) if dim is None else tuple(dim), float(order)
    size = x.abs()
    if math.isinf(p) or p == 0:
        raise NotImplementedError
    norm = size.pow(p).sum(dims, keepdim=True).pow(1 / p)
    return ((size / norm).pow(p - 1) * x.sign() * g.reshape(norm.shape),)


def _of_polygamma(g: Any, n: int, x: Any) -> Sequence[Any]:
    return (g * torch.polygamma(n + 1, x),)


RULES: dict[str, tuple[str, Callable[..., Sequence[Any]]]] = {
    "bmm": ("bmm", _of_bmm),
    "cholesky_solve": ("cholesky_solve", _of_cholesky_solve),
    "linalg.vector_norm": ("linalg_vector_norm", _of_norm),
    "polygamma": ("polygamma", _of_polygamma),
}


@contextlib.contextmanager
def planted(operator: str, rule: Callable[..., Sequence[Any]], off: float) -> Iterator[None]:
    """In here torch's derivative of an operator is ``rule``, times 1 + ``off``."""
    packet = getattr(torch.ops.aten, operator)

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, kwargs: Any, *given: Any) -> Any:
            ctx.given, ctx.kwargs = given, kwargs
            with torch._C._AutoDispatchBelowAutograd():
                return packet(*given, **kwargs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            found = iter(rule(g, *ctx.given, **ctx.kwargs))
            return None, *(next(found) * (1 + off) if isinstance(x, torch.Tensor) else None for x in ctx.given)

    library = torch.library.Library("aten", "IMPL", "AutogradCPU")
    library.impl(operator, lambda *given, **kwargs: Own.apply(kwargs, *given))
    try:
        yield
    finally:
        library._destroy()


@pytest.mark.parametrize("off", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("op", RULES)
def test_a_derivative_that_is_wrong_in_float64_too_is_told(op: str, off: float, tmp_path: Path) -> None:
    variant = "polygamma_n_1" if op == "polygamma" else ""
    with planted(*RULES[op], off):
        found = rows(Group(f"torch:{op}", variant, "float32", 3, 0, "backward"), tmp_path)
    judged = [r for r in found if r["status"] in ("pass", "wrong", "imprecise", "invalid") and r["second_oracle"]]
    said = {(r["status"], r["kind"]) for r in judged}
    assert judged and all(r["second_oracle"] != autograd.DIFFERENCES for r in judged)
    if not off:
        assert said == {("pass", "")}, judged
    else:  # what steep inputs explain as well, passes
        assert said <= {("invalid", "oracle"), ("pass", "")} and ("invalid", "oracle") in said, judged
        assert off < 1e-2 or said == {("invalid", "oracle")}, judged


# --- the ways to a slope ------------------------------------------------------------------------------------------

N = 300
X = np.random.default_rng(4).normal(size=N)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    analytic.COMPLEX: (lambda x: x * x * x, lambda x: 3 * x**2),
    analytic.LINEAR: (lambda x: torch.relu(x) if not x.is_complex() else None, lambda x: (x > 0) * 1.0),
    analytic.EXTRAPOLATED: (lambda x: torch.lgamma(x * x + 1) if not x.is_complex() else None, lambda x: _of_lgamma(x)),
}


def _of_lgamma(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = 2 * x * torch.digamma(torch.from_numpy(x * x + 1)).numpy()
    return found


@pytest.mark.parametrize("way", FUNCTIONS)
@pytest.mark.parametrize("scale", [1.0, 1e-14])
def test_slopes_bear_out_a_right_gradient_and_trace_a_wrong_one(way: str, scale: float) -> None:
    function, slope = FUNCTIONS[way]
    x, c = torch.from_numpy(X), torch.ones(N, dtype=torch.float64)
    problem = autograd.make_gradient_problem("backward", lambda x: scale * function(x), (x,), {}, (0,), [c])
    right = scale * slope(X)
    given = problem.function, problem.inputs, problem.cotangents
    found = analytic.compare_slopes_along(*given, [right], "complex")
    assert found is not None and found[0] == way and np.array_equal(found[1][0], right)
    wrong = right.copy()
    place = int(np.argmax(np.abs(right)))
    wrong[place] *= 1 + 1e-5
    found = analytic.compare_slopes_along(*given, [wrong], "complex")
    assert found is not None and found[0] == way
    (traced,) = found[1]
    assert traced[place] == pytest.approx(right[place], rel=1e-7)
    assert (np.delete(traced, place) == np.delete(wrong, place)).all()


def test_a_function_that_is_not_analytic_is_not_taken_for_one() -> None:
    """The complex step of Σ|x|² as torch has it is 0, or twice too much."""
    x, c = torch.from_numpy(X), torch.ones((), dtype=torch.float64)
    for function in (lambda x: (x * x.conj()).real.sum(), lambda x: torch.vdot(x, x), lambda x: x.abs().square().sum()):
        problem = autograd.make_gradient_problem("backward", function, (x,), {}, (0,), [c])
        given = problem.function, problem.inputs, problem.cotangents
        found = analytic.compare_slopes_along(*given, [2 * X], "complex")
        assert found is not None and found[0] == analytic.EXTRAPOLATED and np.array_equal(found[1][0], 2 * X)


def test_a_kernel_that_somebody_wrote_is_given_no_complex_numbers() -> None:
    met = []

    def kernel(x: Any) -> Any:
        met.append(x.dtype)
        return x.square()

    x, c = torch.from_numpy(X), torch.ones(N, dtype=torch.float64)
    problem = autograd.make_gradient_problem("backward", kernel, (x,), {}, (0,), [c])
    oracle, why = autograd.compute_second_gradient_oracle(problem, [2 * X])
    assert oracle is not None and not why and set(met) == {torch.float64}


@pytest.mark.parametrize("off", [0.0, 1e-4])
def test_second_derivatives_are_looked_at_by_the_complex_step_of_the_first(off: float) -> None:
    x, c, v = torch.from_numpy(X), torch.ones(N, dtype=torch.float64), torch.ones(N, dtype=torch.float64)
    problem = autograd.make_gradient_problem("double_backward", lambda x: x * x * x, (x,), {}, (0,), [c, v])
    right = [6 * X, 3 * X**2]
    oracle, _ = autograd.compute_second_gradient_oracle(problem, [g * (1 + off) for g in right], numbers="complex")
    assert oracle is not None and oracle.name == analytic.COMPLEX
    assert bool(np.array_equal(oracle.references[0], right[0] * (1 + off))) is not bool(off)
