"""Derivatives of their own: they keep their digits, torch's kernels are as before afterwards, and what a kept result costs is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tasks.arrays.torch_tree import tensor_to_numpy
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.torch import TorchEager
from tasks.catalogs import user_definitions
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.gradients import derivatives
from tasks.judge import policy_files
from tasks.model import Form, Group, Program
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

Values = Callable[[list[np.ndarray]], list[np.ndarray]]


def rows(group: Group, cache: Path, backend: Backend | None = None) -> list[dict[str, Any]]:
    backend = backend or BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(prepare_group(group, cache)[1])])]


class Changed(TorchEager):
    """torch eager whose gradients pass through ``change``, with the tensors of the sample."""

    def __init__(self, change: Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]]) -> None:
        super().__init__("torch-cpu", "cpu", {})
        self.change = change

    def build(self, form: Form) -> Program:
        program, given = super().build(form), form.arrays
        run = program.run
        program.run = lambda: self.change([np.array(g) for g in run()], given)
        return program


# --- the formulas -------------------------------------------------------------------------------------------------


def _logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _phi(x: Any) -> Any:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


#: torch's function, the same of mpmath, where it is asked, and the spacings that its derivatives may be off by.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], list[float], float]] = {
    "TanhBackward0": (torch.tanh, mpmath.tanh, [1e-9, 0.3, -3.7, 20.0, -36.0, 300.0], 4),
    "SigmoidBackward0": (torch.sigmoid, _logistic, [1e-9, 0.3, -3.7, 20.0, -36.0, 300.0], 4),
    "SiluBackward0": (F.silu, lambda x: x * _logistic(x), [1e-9, 0.3, -3.7, 20.0, -36.0, 300.0], 8),
    "GeluBackward0": (F.gelu, lambda x: x * _phi(x), [1e-9, 0.3, -3.7, -8.0, 8.0, -12.0], 64),
    "MishBackward0": (
        F.mish,
        lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
        [1e-9, 0.3, -3.7, 20.0, -36.0, 90.0],
        8,
    ),
    "SoftplusBackward0": (
        lambda x: F.softplus(x, threshold=1e9),
        lambda x: mpmath.log1p(mpmath.exp(x)),
        [0.3, -3.7, 20.0, -36.0, 90.0],
        4,
    ),
    "LogSigmoidBackward0": (F.logsigmoid, lambda x: -mpmath.log1p(mpmath.exp(-x)), [0.3, -3.7, 20.0, -36.0, 90.0], 4),
    "CeluBackward0": (F.celu, mpmath.expm1, [-1e-9, -0.3, -20.0, -90.0], 4),
    "EluBackward0": (F.elu, mpmath.expm1, [-1e-9, -0.3, -20.0, -90.0], 4),
    "ExpBackward0": (torch.exp, mpmath.exp, [0.3, -90.0], 2),
    "Exp2Backward0": (torch.exp2, lambda x: mpmath.power(2, x), [0.3, -90.0], 4),
    "Expm1Backward0": (torch.expm1, mpmath.expm1, [1e-9, -20.0, -90.0], 2),
    "LogBackward0": (torch.log, mpmath.log, [1e-9, 3.0], 2),
    "Log1PBackward0": (torch.log1p, mpmath.log1p, [1e-9, -0.999999, 3.0], 4),
    "Log2Backward0": (torch.log2, lambda x: mpmath.log(x, 2), [1e-9, 3.0], 4),
    "Log10Backward0": (torch.log10, mpmath.log10, [1e-9, 3.0], 4),
    "SinBackward0": (torch.sin, mpmath.sin, [0.3, 29.0], 2),
    "CosBackward0": (torch.cos, mpmath.cos, [0.3, 29.0], 2),
    "TanBackward0": (torch.tan, mpmath.tan, [0.3, 29.0, 1.5707], 8),
    "SinhBackward0": (torch.sinh, mpmath.sinh, [0.3, -29.0], 2),
    "CoshBackward0": (torch.cosh, mpmath.cosh, [0.3, -29.0], 2),
    "AsinBackward0": (torch.asin, mpmath.asin, [1e-9, 0.3, 1 - 2.0**-40, -1 + 2.0**-50], 8),
    "AcosBackward0": (torch.acos, mpmath.acos, [1e-9, 0.3, 1 - 2.0**-40, -1 + 2.0**-50], 8),
    "AtanBackward0": (torch.atan, mpmath.atan, [1e-9, 0.3, -1e9], 8),
    "AsinhBackward0": (torch.asinh, mpmath.asinh, [1e-9, 0.3, -1e9], 8),
    "AcoshBackward0": (torch.acosh, mpmath.acosh, [1 + 2.0**-40, 1.3, 1e9], 8),
    "AtanhBackward0": (torch.atanh, mpmath.atanh, [1e-9, 0.3, 1 - 2.0**-40], 8),
    "ErfBackward0": (torch.erf, mpmath.erf, [1e-9, 0.3, 5.0, -9.0], 64),
    "ErfcBackward0": (torch.erfc, mpmath.erfc, [1e-9, 0.3, 5.0, 9.0], 64),
    "ErfinvBackward0": (torch.erfinv, mpmath.erfinv, [1e-9, 0.3, 0.999], 32),
    "SpecialErfcxBackward0": (
        torch.special.erfcx,
        lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
        [0.3, -2.0, 20.0, 1000.0],
        64,
    ),
    "SincBackward0": (torch.sinc, lambda x: mpmath.sin(mpmath.pi * x) / (mpmath.pi * x), [1e-9, 0.1, 0.3, 2.3], 64),
    "SqrtBackward0": (torch.sqrt, mpmath.sqrt, [1e-9, 3.0], 4),
    "RsqrtBackward0": (torch.rsqrt, lambda x: 1 / mpmath.sqrt(x), [1e-9, 3.0], 4),
    "ReciprocalBackward0": (torch.reciprocal, lambda x: 1 / x, [1e-9, 3.0], 4),
    "SpecialEntrBackward0": (torch.special.entr, lambda x: -x * mpmath.log(x), [1e-9, 3.0], 4),
}
OF_ARRAYS = {
    "HypotBackward0",
    "Atan2Backward0",
    "LogaddexpBackward0",
    "Logaddexp2Backward0",
    "SoftmaxBackward0",
    "SafeSoftmaxBackward0",
    "LogSoftmaxBackward0",
    "LogsumexpBackward0",
    "GluBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
}


def slopes(node: str, function: Callable[..., Any], points: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivative of a function of one number, by the rule of a node."""
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    with derivatives.use_own_derivatives([node]):
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    return tensor_to_numpy(first.detach()), tensor_to_numpy(second)


@pytest.mark.parametrize("node", FUNCTIONS)
def test_first_and_second_derivatives_keep_their_digits(node: str) -> None:
    function, exact, points, spacings = FUNCTIONS[node]
    first, second = slopes(node, function, points)
    for x, one, two in zip(points, first, second):
        with mpmath.workdps(400):
            at, h = mpmath.mpf(x), abs(mpmath.mpf(x)) / 10**40
            left, mid, right = exact(at - h), exact(at), exact(at + h)
            for got, right_one in ((one, (right - left) / (2 * h)), (two, (right - 2 * mid + left) / h**2)):
                if abs(right_one) > 1e-300:
                    apart = abs(float((mpmath.mpf(float(got)) - right_one) / right_one))
                    assert apart <= spacings * 2.0**-52, (x, float(got), float(right_one))


def test_every_rule_is_asked_here() -> None:
    assert set(FUNCTIONS) | OF_ARRAYS == set(derivatives.RULES) and not set(FUNCTIONS) & OF_ARRAYS


@pytest.mark.parametrize(
    ("node", "function"),
    [
        ("SoftmaxBackward0", lambda x: torch.softmax(x, 0)),
        ("SafeSoftmaxBackward0", lambda x: torch.ops.aten._safe_softmax(x, 0)),
        ("LogSoftmaxBackward0", lambda x: torch.log_softmax(x, 0)),
        ("LogsumexpBackward0", lambda x: torch.logsumexp(x, 0, keepdim=True)),
        ("GluBackward0", lambda x: F.glu(x.repeat(2))),
        (
            "BinaryCrossEntropyWithLogitsBackward0",
            lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x) * 0.25, reduction="none"),
        ),
    ],
)
def test_rules_of_arrays_are_torchs_where_nothing_saturates(node: str, function: Callable[..., Any]) -> None:
    x = torch.linspace(-1.0, 1.5, 5, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([0.5, -0.7, 0.9, 0.6, -0.8], dtype=torch.float64)
    v = torch.tensor([0.6, 0.8, -0.5, 0.7, 0.9], dtype=torch.float64)

    def twice() -> list[np.ndarray]:
        y = function(x)
        (first,) = torch.autograd.grad(y, x, g[: len(y)], create_graph=True)
        return [tensor_to_numpy(first.detach()), tensor_to_numpy(torch.autograd.grad(first, x, v)[0])]

    expected = twice()
    with derivatives.use_own_derivatives([node]):
        found = twice()
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["hypot", "atan2", "logaddexp", "logaddexp2"])
def test_rules_of_two_tensors_sum_over_what_is_spread(name: str) -> None:
    node = {"hypot": "Hypot", "atan2": "Atan2", "logaddexp": "Logaddexp", "logaddexp2": "Logaddexp2"}[name]
    x = torch.tensor([[0.5], [-1.5]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.25, 2.0, -0.75], dtype=torch.float64, requires_grad=True)
    function = getattr(torch, name)
    expected = torch.autograd.grad(function(x, y).sum(), (x, y))
    with derivatives.use_own_derivatives([f"{node}Backward0"]):
        found = torch.autograd.grad(function(x, y).sum(), (x, y))
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("node", "function"),
    [("SoftmaxBackward0", lambda x: torch.softmax(x, 0)), ("LogSoftmaxBackward0", lambda x: torch.log_softmax(x, 0))],
)
def test_a_softmax_of_one_dominant_element_has_a_gradient(node: str, function: Callable[..., Any]) -> None:
    values, g = [100.0, 0.0, -3.0], [0.75, -0.5, 0.625]
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    with derivatives.use_own_derivatives([node]):
        (found,) = torch.autograd.grad(function(x), x, torch.tensor(g, dtype=torch.float64))
    with mpmath.workdps(80):
        e = [mpmath.exp(v) for v in values]
        p = [v / sum(e) for v in e]
        if node == "SoftmaxBackward0":
            right = [p[i] * (g[i] - sum(a * b for a, b in zip(g, p))) for i in range(3)]
        else:
            right = [g[i] - p[i] * sum(g) for i in range(3)]
    np.testing.assert_allclose(tensor_to_numpy(found), [float(r) for r in right], rtol=1e-14)


def test_torchs_kernels_are_as_before_afterwards() -> None:
    x = torch.tensor([20.0], dtype=torch.float64, requires_grad=True)
    with derivatives.use_own_derivatives(["TanhBackward0"]):
        assert torch.autograd.grad(torch.tanh(x), x)[0].item() == pytest.approx(1.699e-17, rel=1e-3)
    assert type(torch.tanh(x).grad_fn).__name__ == "TanhBackward0"
    with pytest.raises(ZeroDivisionError), derivatives.use_own_derivatives(["TanhBackward0"]):
        raise ZeroDivisionError
    assert torch.autograd.grad(torch.tanh(x), x)[0].item() == 0.0


def test_complex_numbers_have_no_rule_in_here() -> None:
    x = torch.tensor([1 + 1j], requires_grad=True)
    with (
        pytest.raises(derivatives.NoRule, match="tanh of complex numbers"),
        derivatives.use_own_derivatives(["TanhBackward0"]),
    ):
        torch.tanh(x)


def test_what_is_kept_is_what_torch_saves_as_its_result() -> None:
    """The declaration is torch's own: the node of the graph has its result saved."""
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    made = [torch.tanh(x), torch.sigmoid(x), torch.expm1(x), torch.softmax(x, 0), torch.log_softmax(x, 0)]
    made += [torch.logsumexp(x, 0), torch.ops.aten._safe_softmax(x, 0)]
    nodes = {type(y.grad_fn).__name__: y.grad_fn for y in made}
    assert set(nodes) == {name for name, rule in derivatives.RULES.items() if rule.kept}
    assert all(hasattr(node, "_saved_result") for node in nodes.values())


# --- rows of torch's ops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_sweep_of_tanh_says_what_the_rounded_result_costs(dtype: str, cache: Path) -> None:
    (row,) = rows(Group("torch:tanh", "", dtype, 1, 0, "backward", "exhaustive"), cache)
    assert row["status"] == "pass" and row["max_rel"] == 1.0
    assert row["kept"] > 10 * row["limit"] and row["error_units"] < row["limit"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_beyond_what_is_kept_nothing_is_excused(dtype: str, cache: Path) -> None:
    """Zero from 3 on, where 1 − y² still has most of its digits."""

    def clipped(found: list[np.ndarray], given: list[np.ndarray]) -> list[np.ndarray]:
        return [np.where(np.abs(given[0]) > 3, 0, found[0]).astype(found[0].dtype)]

    (row,) = rows(Group("torch:tanh", "", dtype, 1, 0, "backward", "exhaustive"), cache, Changed(clipped))
    assert row["status"] == "wrong" and not row["cause"]


def test_a_gradient_that_loses_its_tail_without_a_kept_result_fails(cache: Path) -> None:
    """GELU's is not computed from its result: in float64 torch's own reference once excused that none of the tail is
    left."""

    def no_tail(found: list[np.ndarray], given: list[np.ndarray]) -> list[np.ndarray]:
        return [np.where(given[0] < -8.5, 0.0, found[0])]

    (row,) = rows(
        Group("torch:nn.functional.gelu", "", "float64", 1, 0, "backward", "exhaustive"), cache, Changed(no_tail)
    )
    assert row["status"] in ("wrong", "imprecise") and row["error_units"] > row["limit"]


@pytest.mark.parametrize("op", ["sigmoid", "gelu", "softmax", "layer_norm", "mean"])
@pytest.mark.parametrize("check", ["backward", "double_backward"])
def test_critical_ops_have_gradients(op: str, check: str, cache: Path) -> None:
    group = Group(f"critical:{op}", "", "float32", 1, 0, check)
    (row,) = rows(group, cache)
    # torch's GELU takes 1 + erf, which cancels in the left tail, as forward.
    assert row["status"] == "pass" or (op == "gelu" and row["status"] == "imprecise"), row["worst"]
    (row,) = rows(group, cache, Changed(lambda found, given: [g + np.float32(0.5) * np.abs(g).max() for g in found]))
    assert row["status"] == "wrong"


@pytest.mark.parametrize("distribution", ["boundary", "adversarial"])
@pytest.mark.parametrize("op", ["exp", "mul", "sum", "nn.functional.softplus"])
def test_gradients_are_asked_at_inputs_that_find_faults(op: str, distribution: str, cache: Path) -> None:
    found = rows(Group(f"torch:{op}", "", "float32", 2, 0, "backward", distribution), cache)
    assert {r["status"] for r in found} <= {"pass", "imprecise"} and any(r["status"] == "pass" for r in found)


# --- kernels of one's own -----------------------------------------------------------------------------------------

KERNELS = """import numpy as np
import torch
from tasks import op

def stable(x):
    e = torch.exp(2 * x.abs())
    return torch.where(x > 0, 1 - 2 / (e + 1), 2 / (e + 1) - 1)

class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        e = torch.exp(-2 * ctx.saved_tensors[0].abs())
        return g * 4 * e / (1 + e) ** 2

def of_the_result(x):
    return torch.tanh(x)

def of_the_input(x):
    return Tanh.apply(x)

def halved(x):
    return torch.tanh(x) + (torch.tanh(x) - torch.tanh(x).detach()) * -0.5

HOW = dict(inputs={"x": {"shape": ["n"], "low": -30, "high": 30}}, dims={"n": [64]}, dtypes=["float32", "float64"], gradient=["x"])
for reference, framework in ((np.tanh, "numpy"), (torch.tanh, "torch"), (stable, "torch")):
    for kernel in (of_the_result, of_the_input, halved):
        for kept in (False, True):
            name = f"{kernel.__name__}_{'stable' if reference is stable else framework}{'_kept' * kept}"
            op(name=name, reference=reference, reference_framework=framework, kept=kept, **HOW)(kernel)
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tanhs.py").write_text(KERNELS)
    given = {"deadline_s": 60.0, "sources": [{"at": 0, "root": str(tmp_path), "modules": ["tanhs.py"], "kernels": []}]}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps(given)])


@pytest.mark.parametrize("reference", ["numpy", "torch", "stable"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tanh_of_ones_own_is_judged_alike_by_any_reference(
    reference: str, dtype: str, kernels: None, cache: Path
) -> None:
    def row(kernel: str) -> dict[str, Any]:
        (found,) = rows(Group(f"user:{kernel}", "", dtype, 1, 0, "backward"), cache)
        return found

    lossy = row(f"of_the_result_{reference}")
    assert (
        (lossy["status"], lossy["kind"]) == ("imprecise", "kept")
        and lossy["kept"] > lossy["limit"]
        and "rounded result" in lossy["cause"]
    )
    declared = row(f"of_the_result_{reference}_kept")
    assert declared["status"] == "pass" and declared["kept"] > declared["limit"]
    for kept in ("", "_kept"):
        sound = row(f"of_the_input_{reference}{kept}")
        assert sound["status"] == "pass" and sound["kept"] <= sound["limit"]
        assert row(f"halved_{reference}{kept}")["status"] == "wrong"


def test_kept_needs_a_gradient() -> None:
    made = UserOp("f", abs, abs, {"x": [3]}, kept=True)
    assert [text for _, text in list_declaration_mistakes(made)] == [
        "gradient does not say of which inputs, e.g. gradient: [x]"
    ]


def test_a_kernel_may_differentiate_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Its result is a gradient, judged as any result: tanh's, computed from the rounded tanh, is wrong in ulps."""
    source = "def slope(x):\n    x = x.detach().requires_grad_()\n    return torch.autograd.grad(torch.tanh(x).sum(), x)[0]\n"
    reference = "def sech2(x):\n    e = np.exp(-2 * np.abs(x))\n    return 4 * e / (1 + e) ** 2\n"
    (tmp_path / "slopes.py").write_text("import numpy as np\nimport torch\n" + source + reference)
    kernel = {
        "name": "slope",
        "kernel": "slopes.py:slope",
        "reference": "slopes.py:sech2",
        "inputs": {"x": {"shape": ["n"], "low": -30, "high": 30}},
        "dims": {"n": [64]},
        "op_class": "elementary",
    }
    given = {"deadline_s": 60.0, "sources": [{"at": 0, "root": str(tmp_path), "modules": [], "kernels": [kernel]}]}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps(given)])
    (row,) = rows(Group("user:slope", "", "float32", 1), cache)
    assert row["status"] == "wrong" and not row["error"].startswith("RuntimeError")
