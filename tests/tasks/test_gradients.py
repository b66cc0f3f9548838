"""Gradients: the float64 gradient, its noise floor, finite differences beside it, and backends that get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks import catalogs
from tasks.arrays import torch_tree
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.torch import TorchEager
from tasks.catalogs.torch import gradient_samples as torch_gradients
from tasks.gradients import analytic, differences
from tasks.gradients import autograd as gradients
from tasks.judge import policy_files
from tasks.model import Form, Group, OpClass, OwnKernel, Program, Status
from tasks.model.errors import Misbehaviour
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

EAGER = BackendSpec.parse("torch-cpu")


def prepared(
    op: str, cache: Path, dtype: str = "float32", check: str = "backward", variant: str = "", samples: int = 3
) -> PreparedGroup:
    return prepare_group(Group(f"torch:{op}", variant, dtype, samples, 0, check), cache)[1]


def rows(group: PreparedGroup, backend: Backend | None = None) -> list[dict[str, Any]]:
    backend = backend or EAGER.create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(group)])]


class Faulty(TorchEager):
    """torch eager whose gradients pass through ``change``."""

    def __init__(self, change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> None:
        super().__init__("torch-cpu", "cpu", {})
        self.change = change

    def build(self, form: Form) -> Program:
        program = super().build(form)
        run = program.run
        program.run = lambda: self.change([g.copy() for g in run()])
        return program


def off_by_a_term(found: list[np.ndarray]) -> list[np.ndarray]:
    return [g + np.float32(1e-3) for g in found]


def transposed(found: list[np.ndarray]) -> list[np.ndarray]:
    return [np.ascontiguousarray(g.T) if g.ndim == 2 and g.shape[0] == g.shape[1] else -g for g in found]


def unsummed(found: list[np.ndarray]) -> list[np.ndarray]:
    return [np.broadcast_to(g, (3, *g.shape)) for g in found]


# --- the check on backends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [
        "tanh",
        "softmax",
        "nn.functional.layer_norm",
        "matmul",
        "cumsum",
        "amax",
        "linalg.svd",
        "cholesky",
        "nn.functional.conv2d",
        "index_select",
        "nn.functional.embedding",
    ],
)
def test_eager_gradients_are_right(op: str, cache: Path) -> None:
    found = rows(prepared(op, cache))
    assert {r["status"] for r in found} <= {"pass", "vacuous"}, [
        (r["sample"], r["error_units"], r["error"]) for r in found
    ]
    assert any(r["status"] == "pass" and not r["weak"] for r in found)


@pytest.mark.parametrize("change", [off_by_a_term, transposed, unsummed, lambda g: [x * np.float32(1.1) for x in g]])
def test_a_wrong_gradient_is_wrong_by_both_oracles(
    change: Callable[[list[np.ndarray]], list[np.ndarray]], cache: Path
) -> None:
    found = [r for r in rows(prepared("softmax", cache), Faulty(change)) if r["status"] != "vacuous" and not r["weak"]]
    assert found and {r["status"] for r in found} == {Status.WRONG.value}
    for row in found:
        assert row["kind"] == "shape" or row["second_units"] > row["limit"]


def test_double_backward_has_a_gradient_per_input_and_cotangent(cache: Path) -> None:
    group = prepared("mul", cache, check="double_backward")
    sample = next(s for s in group.samples if not s.failure and len(s.record.wrt) == 2)
    assert len(sample.record.cotangents) == 1 + 2  # of the output, then of the two gradients
    assert len(sample.expected()) == 2 + 1  # of the inputs, then of the output's cotangent
    assert {r["status"] for r in rows(group)} <= {"pass", "vacuous"}
    assert any(r["status"] == "wrong" for r in rows(group, Faulty(off_by_a_term)))


def test_a_backend_without_the_check_says_so(cache: Path) -> None:
    class ForwardOnly(TorchEager):
        checks = ("forward",)

    found = rows(prepared("exp", cache), ForwardOnly("torch-cpu", "cpu", {}))
    assert {(r["status"], r["error"]) for r in found if r["status"] != "vacuous"} == {
        ("unsupported", "torch-cpu does not run the backward check")
    }


def test_inductor_compiles_the_gradient(cache: Path) -> None:
    group = prepared("nn.functional.gelu", cache, samples=1)
    backend = BackendSpec.parse("inductor-cpu").create()
    (row, *_) = rows(group, backend)
    assert row["status"] == "pass" and row["flags"].startswith("kernels=2"), row  # one forward, one backward


def test_groups_of_other_checks_are_other_units() -> None:
    assert Group("torch:exp", "", "float32", 1, check="backward").unit != Group("torch:exp", "", "float32", 1).unit


# --- what is prepared ---------------------------------------------------------------------------------------------


def test_the_noise_floor_knows_what_the_forward_pass_rounds(cache: Path) -> None:
    """1 − tanh² of a saturated tanh cannot be better than the rounding of tanh near 1: the floor has to say so."""
    sample = next(s for s in prepared("tanh", cache).samples if s.record.shapes == "20x20")
    (leaf,), (x, *_) = sample.expected(), sample.inputs()
    saturated = np.abs(x) > 7
    assert saturated.any() and leaf.reference is not None and leaf.noise is not None
    assert (leaf.noise[saturated] > 2.0**-26).all() and np.abs(leaf.reference[saturated]).min() < 1e-6


def test_the_noise_floor_of_a_maximum_keeps_equal_elements_equal(cache: Path) -> None:
    """Its gradient looks for the elements that are equal to it: were they moved apart, nothing would be judged."""
    for sample in prepared("amax", cache).samples:
        for leaf in sample.expected():
            assert leaf.noise is None or (leaf.noise < 1e-6).all()


def test_an_order_that_rounding_decides_is_made_one(cache: Path) -> None:
    """LAPACK gives the eigenvalues of a rounded matrix in another order: the cotangents would meet others."""
    assert {r["status"] for r in rows(prepared("linalg.eigvals", cache, samples=2))} <= {"pass", "vacuous"}


def test_cotangents_are_fixed_and_not_ones() -> None:
    first = gradients.draw_cotangents([((4, 5), "bfloat16"), ((), "complex64")], "a")
    again = gradients.draw_cotangents([((4, 5), "bfloat16"), ((), "complex64")], "a")
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    assert first[0].dtype.name == "bfloat16" and len({float(v) for v in np.abs(first[0]).ravel()}) > 5
    assert first[0].tobytes() != gradients.draw_cotangents([((4, 5), "bfloat16")], "b")[0].tobytes()


def test_an_input_nothing_depends_on_has_a_gradient_of_zeros() -> None:
    x, y, c = torch.ones(3), torch.ones(2), torch.ones(3)
    first, second = gradients.differentiate_backward("backward", lambda a, b: a * 2, (x, y), {}, (0, 1), [c])
    assert first.tolist() == [2, 2, 2] and second.tolist() == [0, 0]


def test_gradients_of_exact_ops_are_judged_by_error_units() -> None:
    assert gradients.class_gradient_of(OpClass.EXACT) is OpClass.COMPOSITE
    assert gradients.class_gradient_of(OpClass.CONTRACTION) is OpClass.CONTRACTION


def test_an_op_without_gradient_offers_no_backward_check() -> None:
    from tasks import catalogs

    checks = {(e.op, e.variant): set(e.checks) for e in catalogs.get_catalog("torch").entries()}
    gradients = {"backward", "double_backward"}
    assert not checks["torch:argmax", ""] & gradients
    assert checks["torch:exp", ""] >= gradients


# --- finite differences -------------------------------------------------------------------------------------------


def test_differences_agree_with_autograd(cache: Path) -> None:
    for op in ("nn.functional.gelu", "linalg.inv", "nn.functional.conv2d"):  # a projection, an inverse, several inputs
        for sample in prepared(op, cache, "float64").samples:
            if not sample.failure and sample.expected()[0].reference is not None and sample.record.others:
                assert sample.record.others[0].name in (analytic.COMPLEX, analytic.EXTRAPOLATED)
                assert sample.record.others[0].units == 0


@pytest.mark.parametrize("shape", [(4,), (40, 5)])  # the whole Jacobian; projections
def test_a_wrong_autograd_is_found_by_differences(
    shape: tuple[int, ...], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return g * 0.999

    x = torch.linspace(0.1, 1, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    c = torch.ones(shape, dtype=torch.float64)
    said = [g.numpy() for g in gradients.differentiate_backward("backward", Wrong.apply, (x,), {}, (0,), [c])]
    problem = gradients.make_gradient_problem("backward", Wrong.apply, (x,), {}, (0,), [c])
    oracle, why = gradients.compute_second_gradient_oracle(problem, said)
    assert oracle is not None and not why and np.abs(oracle.references[0] - said[0]).max() > 1e-3
    right, _ = gradients.compute_second_gradient_oracle(problem, [np.cos(x.numpy())])
    assert right is not None and np.array_equal(right.references[0], np.cos(x.numpy()))


@pytest.mark.parametrize("shape", [(4,), (40, 5)])  # the whole Jacobian; projections
@pytest.mark.parametrize("size", [1e-12, 1e-14, 1e-100])
def test_of_tiny_inputs_a_right_gradient_is_borne_out_and_a_wrong_one_told(shape: tuple[int, ...], size: float) -> None:
    """Differences of single elements allow for a roundoff that is larger than such gradients' share of the outputs."""
    x = size * torch.linspace(-1, 2.1, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    c = torch.ones(shape, dtype=torch.float64)
    for function, right in ((lambda x: 3 * x, 3 + 0 * x), (torch.square, 2 * x), (torch.relu, (x > 0).double())):
        problem = gradients.make_gradient_problem("backward", function, (x,), {}, (0,), [c])
        oracle, why = gradients.compute_second_gradient_oracle(problem, [right.numpy()])
        assert oracle is not None and np.array_equal(oracle.references[0], right.numpy()), why
        oracle, why = gradients.compute_second_gradient_oracle(problem, [1.5 * right.numpy()])
        assert oracle is not None
        place = np.unravel_index(np.argmax(np.abs(oracle.references[0] - 1.5 * right.numpy())), shape)
        assert oracle.references[0][place] == pytest.approx(float(right[place]), rel=1e-6)


@pytest.mark.parametrize("off", [1e-5, 1e-3])
def test_a_gradient_is_judged_beside_inputs_that_are_much_larger(off: float) -> None:
    x = torch.linspace(-1, 2.1, 7, dtype=torch.float64)
    problem = gradients.make_gradient_problem(
        "backward", lambda x: 1e-14 * x.sin(), (x,), {}, (0,), [torch.ones_like(x)]
    )
    right = 1e-14 * np.cos(x.numpy())
    oracle, why = gradients.compute_second_gradient_oracle(problem, [right])
    assert oracle is not None and np.array_equal(oracle.references[0], right), why
    oracle, why = gradients.compute_second_gradient_oracle(problem, [right * (1 + off)])
    assert oracle is not None and np.allclose(oracle.references[0], right, 1e-6, 0), why


def test_the_row_of_a_disagreement_names_who_agrees(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_gradients, "NO_DIFFERENCES", {})
    # A cast to float16 moves in steps, and its gradient is the identity's all the same.
    group = prepare_group(Group("torch:half", "", "float32", 2, 1, "backward"), cache)[1]
    found = rows(group)
    assert {(r["status"], r["kind"]) for r in found} == {("invalid", "oracle")}
    assert all(r["error"].endswith("this backend agrees with float64") for r in found)


def test_kinks_have_no_differences() -> None:
    kink, smooth = np.array([0.0]), np.array([0.3])
    relu = lambda inputs: [np.maximum(inputs[0], 0)]  # noqa: E731
    assert np.isinf(differences.difference_gradient(relu, [kink], [np.ones(1)]).errors[0]).all()
    found = differences.difference_gradient(relu, [kink], [np.ones(1)])
    assert found.why == ("not differentiable at the input",)
    assert abs(differences.difference_gradient(relu, [smooth], [np.ones(1)]).gradients[0][0] - 1) < 1e-9


def test_out_of_the_domain_there_are_no_differences() -> None:
    with np.errstate(all="ignore"):
        found = differences.difference_gradient(lambda v: [np.arccos(v[0])], [np.array([1.0, 0.5])], [np.ones(2)])
    assert np.isinf(found.errors[0][0]) and found.errors[0][1] < 1e-7


def test_numpy_vjp_is_accurate_and_knows_its_error() -> None:
    generator = np.random.default_rng(0)
    x, w, c = generator.normal(size=(3, 4)), generator.normal(size=(4, 2)), generator.normal(size=(3, 2))

    def reference(x: np.ndarray, w: np.ndarray, scale: float) -> dict[str, np.ndarray]:
        return {"y": np.tanh(x @ w) * scale}

    found, errors = gradients.differentiate_numpy(reference, {"x": x, "w": w, "scale": 2.0}, ["w", "x"], [c])
    inner = 2 * c * (1 - np.tanh(x @ w) ** 2)
    for value, error, exact in zip(found, errors, (x.T @ inner, inner @ w.T)):
        assert value.shape == exact.shape
        assert np.abs(value - exact).max() < 1e-9 * np.abs(exact).max()
        assert (np.abs(value - exact) <= error + 1e-14).all() and error.max() < 1e-8


def test_numpy_vjp_of_a_complex_function_is_autograds() -> None:
    x = np.array([1 + 2j, -0.5j])
    c = np.array([2.0 - 1j, 1j])
    (found,), _ = gradients.differentiate_numpy(lambda x: x**2 * np.conj(x), {"x": x}, ["x"], [c])
    t = torch.from_numpy(x).requires_grad_()
    (exact,) = torch.autograd.grad(t**2 * t.conj(), t, torch.from_numpy(c))
    assert np.abs(found - exact.numpy()).max() < 1e-9


def test_a_broadcast_input_has_a_summed_gradient() -> None:
    (found,), _ = gradients.differentiate_numpy(
        lambda x, b: x + b, {"x": np.ones((3, 4)), "b": np.ones(4)}, ["b"], [np.ones((3, 4))]
    )
    assert found.shape == (4,) and np.abs(found - 3).max() < 1e-9


# --- the curve ----------------------------------------------------------------------------------------------------


def test_the_curve_is_a_u_with_its_floor_near_the_cube_root_of_epsilon(cache: Path) -> None:
    steps = np.logspace(-1, -13, 25)
    group = prepared("nn.functional.gelu", cache, "float64", samples=1)
    errors = torch_gradients.measure_difference_curve(group.samples[0], steps)
    assert errors is not None
    least = float(steps[np.argmin(errors)])
    assert 1e-7 < least < 1e-3 and errors[0] > 1e-5 and errors[-1] > 1e-6 and errors.min() < 1e-9


@pytest.mark.parametrize("may", [True, False])
def test_an_output_in_an_input_that_the_backward_pass_may_write_to_is_no_mutation(may: bool) -> None:
    class Spoils(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.given = x
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            ctx.given.data.zero_()
            return g

    x = torch.ones(3)
    left = gradients.UntouchedInputs([], [], [x] * may)
    gradients.differentiate_backward("backward", Spoils.apply, (x,), {}, [0], [torch.ones(3)], made=left.note_outputs)
    assert bool(left.describe_change()) != may


def make_square(backward: Any) -> Any:
    """A kernel of one's own, x², with this backward pass of (gradient, x)."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g, *ctx.saved_tensors)

    def call(x: Any) -> Any:
        return Square.apply(x)

    return call


def _dense(g: Any) -> Any:
    return torch.as_strided(g, g.shape, (g.shape[1], 1), g.storage_offset())


def _refusing(g: Any) -> Any:
    if not g.is_contiguous():
        raise ValueError("give me a contiguous gradient")
    return g


@pytest.mark.parametrize(
    ("backward", "kind"),
    [
        (lambda g, x: 2 * x * g, ""),
        (lambda g, x: 2 * x * g.contiguous(), ""),
        (lambda g, x: 2 * x * _dense(g), "layout"),
        (lambda g, x: 2 * x * _refusing(g), ""),
        (lambda g, x: 2 * x * g * torch.rand(()), ""),
    ],
    ids=["right", "copies", "reads_dense", "refuses", "another_every_time"],
)
def test_a_backward_pass_that_takes_its_gradient_for_contiguous_is_told(backward: Any, kind: str) -> None:
    call, x, g = make_square(backward), torch.randn(3, 5), torch.randn(3, 5)
    form = Form(
        "torch", "user:square", "float32", [], call=call, check="backward", wrt=(0,), cotangents=(0,), own=OwnKernel()
    )
    try:
        gradients.compute_gradients(form, call, (), {"x": x}, [g])
        found = ""
    except Misbehaviour as error:
        found = error.kind
    assert found == kind


@pytest.mark.parametrize("refused", [torch.float32, torch.float16])
def test_own_gradients_that_cannot_be_made_dense_are_no_witness(
    refused: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sparse ones in float8 cannot; the float64 ones can."""
    make_dense = torch_tree.dense

    def refuse(x: Any) -> Any:
        if x.dtype == refused:
            raise NotImplementedError("to_dense")
        return make_dense(x)

    monkeypatch.setattr(torch_tree, "dense", refuse)
    (made,) = catalogs.get_catalog("torch").samples(Group("torch:tanh", "", "float32", 1, 0, "backward"), 4)
    assert made.failure is None and made.expected[0].reference is not None
