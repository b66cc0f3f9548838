"""Casts that a program asks for: its reference rounds there, who leaves one out is wrong, and who rounds a computed value the other way is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks import diagnose
from tasks.backends.onnxruntime import OnnxRuntime
from tasks.catalogs import user_definitions
from tasks.catalogs.user import inside_precision
from tasks.catalogs.user.ops import UserOp
from tasks.graphs import torch_module as modules
from tasks.graphs.cast_roundings import CastRoundings, leave_out_graph_cast
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import reference_and_floor
from tasks.judge import policy_files
from tasks.judge.error_metrics import compare_outputs
from tasks.judge.policy import judge_by_policy
from tasks.model import DTYPES, Form, Group, Leaf, OpClass, Program, Status, get_numpy_dtype
from tasks.model.dtypes import does_dtype_hold, get_integer_range
from tasks.model.kind import CAUSE_CAST, KIND_CAST
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
helper, FLOAT16, BFLOAT16, FLOAT = onnx.helper, 10, 16, 1
MISSING = "a cast that was asked for is missing"
POLICY = policy_files.load_policy("error_units")
X = np.random.default_rng(0).uniform(1, 200, (16, 48)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((48, 32)).astype(np.float32)

Nodes = list[Any]


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def there_and_back(x: str, name: str, to: int = FLOAT16) -> Nodes:
    """Casts of ``x`` to fewer digits and back, as the tensor ``name``."""
    return [node("Cast", x, f"{name}_", to=to), node("Cast", f"{name}_", name, to=FLOAT)]


def model(nodes: Nodes, outputs: Sequence[str], x: int = FLOAT) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", x, list(X.shape))],
        [helper.make_tensor_value_info(name, BOOL if name == "same" else FLOAT, [None, None]) for name in outputs],
        [onnx.numpy_helper.from_array(W, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


BOOL = onnx.TensorProto.BOOL
#: Programs whose function has a cast, by name: nodes and outputs.
PROGRAMS: dict[str, tuple[Nodes, list[str]]] = {
    "split": ([*there_and_back("x", "hi"), node("Sub", "x hi", "lo")], ["lo", "hi"]),
    "split in bfloat16": ([*there_and_back("x", "hi", BFLOAT16), node("Sub", "x hi", "lo")], ["lo"]),
    "does float16 hold it": ([*there_and_back("x", "hi"), node("Equal", "x hi", "same")], ["same"]),
    "split of what is computed": (
        [node("MatMul", "x w", "y"), *there_and_back("y", "hi"), node("Sub", "y hi", "lo")],
        ["lo"],
    ),
    "rounded factor": ([*there_and_back("x", "hi", BFLOAT16), node("MatMul", "hi w", "y")], ["y"]),
    "rounded weights": ([*there_and_back("w", "hi", BFLOAT16), node("MatMul", "x hi", "y")], ["y"]),
    "three products": (
        [
            *there_and_back("x", "xh", BFLOAT16),
            *there_and_back("w", "wh", BFLOAT16),
            node("Sub", "x xh", "dx"),
            node("Sub", "w wh", "dw"),
            *there_and_back("dx", "xl", BFLOAT16),
            *there_and_back("dw", "wl", BFLOAT16),
            node("MatMul", "xh wh", "hh"),
            node("MatMul", "xh wl", "hl"),
            node("MatMul", "xl wh", "lh"),
            node("Add", "hl lh", "low"),
            node("Add", "hh low", "y"),
        ],
        ["y", "low"],
    ),
    "moved in between": (
        [
            node("Cast", "x", "h", to=FLOAT16),
            node("Transpose", "h", "t", perm=[1, 0]),
            node("Cast", "t", "f", to=FLOAT),
            node("Transpose", "x", "u", perm=[1, 0]),
            node("Sub", "u f", "lo"),
        ],
        ["lo"],
    ),
    "whole part": (
        [node("Cast", "x", "i", to=onnx.TensorProto.INT32), node("Cast", "i", "f", to=FLOAT), node("Sub", "x f", "lo")],
        ["lo"],
    ),
}


def run(content: bytes, x: np.ndarray = X) -> list[np.ndarray]:
    """What ONNX Runtime gives, with nothing optimised."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def folded(content: bytes) -> bytes:
    """The model as an optimiser leaves it that takes casts there and back for nothing."""
    made = onnx.load_from_string(content)
    for one in made.graph.node:
        if one.op_type == "Cast":
            one.op_type = "Identity"
            del one.attribute[:]
    return bytes(made.SerializeToString())


def leaves(content: bytes, x: np.ndarray = X) -> list[Leaf]:
    graph = EvaluatedGraph(onnx.load_from_string(content))
    found = reference_and_floor(graph, {"x": x}, 4)
    return [
        Leaf(graph.dtypes[name], y.shape, y, delta if delta.any() else None, jumps=jumps)
        for name, y, delta, jumps in zip(graph.outputs, found.references, found.steady, found.jumps)
    ]


def status(actual: Sequence[np.ndarray], expected: Sequence[Leaf], dtype: str = "float32") -> Status:
    return judge_by_policy(
        compare_outputs(actual, expected, OpClass.MODEL), POLICY, "models:m", "model", dtype, "float64"
    )[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cast_is_part_of_the_function_and_who_folds_it_is_wrong(name: str) -> None:
    content = model(*PROGRAMS[name])
    expected = leaves(content)
    assert status(run(content), expected) is Status.PASS
    wrong = run(folded(content))
    assert status(wrong, expected) is Status.WRONG


@pytest.mark.parametrize("name", ["split", "rounded factor", "moved in between", "rounded weights"])
def test_the_cause_is_said_to_be_a_missing_cast(name: str) -> None:
    content = model(*PROGRAMS[name])
    expected, wrong = leaves(content), run(folded(content))
    cause = diagnose.find_error_model([X], wrong, expected, OpClass.MODEL, lambda: content)
    assert cause == diagnose.ErrorCause("a cast that was asked for is missing", CAUSE_CAST)
    other = [y * 1.5 for y in run(content)]
    assert diagnose.find_error_model([X], other, expected, OpClass.MODEL, lambda: content) == diagnose.ErrorCause()


def test_one_of_several_casts_may_be_what_is_missing() -> None:
    nodes, outputs = PROGRAMS["three products"]
    content = model(nodes, outputs)
    kept = [x for x in onnx.load_from_string(content).graph.node if not x.output[0].startswith("xh")]
    for one in kept:
        one.input[:] = ["x" if name == "xh" else name for name in one.input]
    found, expected = run(model(kept, outputs)), leaves(content)
    assert status(found, expected) is Status.WRONG
    assert diagnose.find_error_model([X], found, expected, OpClass.MODEL, lambda: content).code == CAUSE_CAST


def three_products(left: Sequence[str]) -> bytes:
    """The model of three products without some of its casts, by the names of what they make."""
    nodes = [x for x in PROGRAMS["three products"][0] if x.output[0].rstrip("_") not in left]
    of = {"xl": "dx", "wl": "dw", "xh": "x", "wh": "w"}
    nodes = [type(x).FromString(x.SerializeToString()) for x in nodes]
    for one in nodes:
        one.input[:] = [of[name] if name in left else name for name in one.input]
    return model(nodes, ["y"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("left", [("xl",), ("wl",), ("xl", "wl"), ()], ids=["x", "w", "both", "none"])
def test_a_low_cast_that_is_missing_is_told_within_the_limit(left: Sequence[str], seed: int) -> None:
    content, x = three_products(()), np.random.default_rng(seed).uniform(1, 200, X.shape).astype(np.float32)
    expected, found = leaves(content, x), run(three_products(left), x)
    assert status(found, expected) is Status.PASS or len(left) > 1
    cause = diagnose.explain_lost_cast([x], found, expected, lambda: content)
    assert cause == (
        diagnose.ErrorCause("a cast that was asked for is missing", CAUSE_CAST) if left else diagnose.ErrorCause()
    )


def test_who_keeps_the_digits_of_a_cast_that_nothing_compensates_is_right() -> None:
    nodes = [node("MatMul", "x w", "y"), *there_and_back("y", "h", BFLOAT16), node("Tanh", "h", "z")]
    content = model(nodes, ["z"])
    expected, found = leaves(content, X / 100), run(folded(content), X / 100)
    assert not diagnose.explain_lost_cast([X / 100], found, expected, lambda: content).words


def test_a_value_that_was_computed_may_round_either_way_and_one_that_was_given_may_not() -> None:
    y = X.astype(np.float64) @ W.astype(np.float64)
    computed = leaves(model(*PROGRAMS["split of what is computed"]))[0]
    step = np.abs(np.float16(y)).astype(np.float64) * 2.0**-10
    assert computed.jumps is not None and computed.reference is not None
    jumping = computed.jumps > step / 4
    assert 0 < jumping.mean() < 0.1
    other = np.where(jumping, computed.reference + np.sign(computed.reference) * -step, computed.reference)
    assert status([other.astype(np.float32)], [computed]) is Status.PASS  # these are the neighbours
    everywhere = computed.reference - np.sign(computed.reference) * step
    assert status([everywhere.astype(np.float32)], [computed]) is Status.WRONG
    assert all(leaf.jumps is None for leaf in leaves(model(*PROGRAMS["split"])))


def test_a_network_of_float16_is_not_blamed_for_digits_that_it_keeps() -> None:
    nodes = [
        node("Cast", "x", "x16", to=FLOAT16),
        node("Cast", "w", "w16", to=FLOAT16),
        node("MatMul", "x16 w16", "y16"),
        node("Tanh", "y16", "t16"),
        node("Cast", "t16", "t", to=FLOAT),
        node("Softmax", "t", "s", axis=-1),
        node("Cast", "s", "s16", to=FLOAT16),
        node("Mul", "s16 t16", "z16"),
        node("Cast", "z16", "z", to=FLOAT),
    ]
    content = model(nodes, ["z"])
    x = X / 100
    expected = leaves(content, x)
    assert status(run(content, x), expected) is Status.PASS
    assert status(run(folded(content), x), expected) is Status.PASS


def test_a_cast_to_more_digits_rounds_nothing() -> None:
    content = model([node("Exp", "x", "e"), node("Cast", "e", "d", to=11), node("Cast", "d", "y", to=FLOAT)], ["y"])
    graph = EvaluatedGraph(onnx.load_from_string(content))
    assert list(graph.casts.values()) == ["float32"]  # the way down alone
    assert (
        does_dtype_hold("float64", "int32")
        and not does_dtype_hold("float32", "int32")
        and does_dtype_hold("float16", "int8")
    )
    assert (
        not does_dtype_hold("float16", "bfloat16")
        and not does_dtype_hold("bfloat16", "float16")
        and does_dtype_hold("float32", "bfloat16")
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_what_a_dtype_holds_comes_back_from_it(dtype: str) -> None:
    for other in DTYPES:
        if other.startswith(("int", "uint")) and does_dtype_hold(dtype, other):
            ends = np.array(get_integer_range(other), object)
            assert [int(x) for x in ends.astype(np.float64).astype(get_numpy_dtype(dtype)).astype(np.float64)] == list(
                ends
            )


# --- modules
# -----------------------------------------------------------------------------------------------------------


def module(call: Callable[[Any], Any]) -> Any:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return (call(x),)

    return Module()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x - x.half().float(),
        lambda x: x - x.bfloat16().to(x.dtype),
        lambda x: (x == x.half().float()).float(),
        lambda x: x - x.clone().copy_(x.half()),
        lambda x: x - x.half().reshape(-1).reshape(x.shape).float(),
        lambda x: x - x.int().float(),
    ],
    ids=["half", "to", "equal", "copy", "moved", "int"],
)
def test_a_module_rounds_where_it_casts(call: Callable[[Any], Any]) -> None:
    given = module(call)
    casts = CastRoundings()
    (y,) = modules.evaluate_module_exactly(given, [X], round=casts.first)
    (eager,) = modules.run_module(given, [X])
    np.testing.assert_array_equal(y, eager.numpy())
    assert not casts.open
    for draw in range(4):
        (moved,) = modules.evaluate_module_exactly(given, [X], draw, round=casts.either())
        assert np.abs(moved - y).max() <= 2.0**-22 * X.max()


def test_a_module_without_its_casts_is_another_one() -> None:
    given = module(lambda x: x - x.half().float())
    assert not np.any(modules.evaluate_module_exactly(given, [X], round=leave_out_graph_cast)[0])


def test_a_copy_into_fewer_digits_rounds() -> None:
    torch = pytest.importorskip("torch")

    def stored(x: Any) -> Any:
        kept = torch.empty(x.shape, dtype=torch.float16)
        kept.copy_(x)
        return x - kept.float()

    given = module(stored)
    np.testing.assert_array_equal(
        modules.evaluate_module_exactly(given, [X])[0], modules.run_module(given, [X])[0].numpy()
    )


def test_autocast_rounds_the_factors_of_a_product() -> None:
    torch = pytest.importorskip("torch")

    def product(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ torch.ones(48, 1)

    (y,) = modules.evaluate_module_exactly(module(product), [X])
    rounded = torch.from_numpy(X).bfloat16().double().numpy()
    np.testing.assert_allclose(y[:, 0], rounded.sum(1), rtol=1e-12)


# --- kernels
# -----------------------------------------------------------------------------------------------------------


def declared(kernel: Callable[..., Any], **settings: Any) -> Any:
    op = UserOp("k", kernel, np.abs, {"x": [4, 8]}, dtypes=("float32", "bfloat16"), **settings)
    return SimpleNamespace(op=op, function=lambda name: kernel)


@pytest.mark.parametrize(
    ("kernel", "wide"),
    [
        (lambda x: (x.float().exp() / 3).to(x.dtype), True),
        (lambda x: x.double().exp().to(x.dtype), True),
        (lambda x: x.T.float().softmax(-1).T.bfloat16(), True),
        (lambda x: x.exp(), False),
        (lambda x: (x.float().exp().to(x.dtype).float() / 3).to(x.dtype), False),
        (lambda x: x.float().exp().to(x.dtype) * 3, False),
        (lambda x: x @ x.T, False),
        (lambda x: x.float().exp().half().bfloat16(), False),
        (lambda x: x.float() * float(x.sum()), False),
        (lambda x: x.clone(), False),
    ],
)
def test_what_a_kernel_dispatches_tells_whether_it_computes_in_more_digits(
    kernel: Callable[..., Any], wide: bool
) -> None:
    pytest.importorskip("torch")
    x = {"x": np.ones((4, 8), get_numpy_dtype("bfloat16"))}
    assert inside_precision.find_dtype_inside(declared(kernel), x, "bfloat16") == ("float32" if wide else "")
    assert inside_precision.find_dtype_inside(declared(kernel), {"x": np.ones((4, 8), np.float32)}, "float32") == ""


def test_what_is_declared_needs_no_kernel_that_can_be_run() -> None:
    def kernel(x: Any) -> Any:
        raise RuntimeError("no driver")

    x = {"x": np.ones((4, 8), get_numpy_dtype("bfloat16"))}
    assert inside_precision.find_dtype_inside(declared(kernel), x, "bfloat16") == ""
    assert inside_precision.find_dtype_inside(declared(kernel, compute="float32"), x, "bfloat16") == "float32"
    assert inside_precision.find_dtype_inside(declared(kernel, compute="float32"), x, "float32") == ""


def test_a_declared_dtype_that_is_none_is_a_mistake(tmp_path: Path) -> None:
    from tasks.catalogs.user.declaration_schema import list_declaration_mistakes

    def said(compute: str, dtypes: Sequence[str]) -> list[str]:
        op = UserOp("k", abs, np.abs, {"x": [4]}, dtypes=dtypes, compute=compute)
        return [text for key, text in list_declaration_mistakes(op) if key == ("compute",)]

    assert said("float", ["bfloat16"])[0].startswith("unknown floating dtype 'float'")
    assert "the backend's to declare" in said("bfloat16", ["float32"])[0]
    assert not said("float32", ["bfloat16", "float32"])


@pytest.mark.parametrize(
    ("left", "verdict_of"),
    [
        ((), ("pass", "", "")),
        (("xl",), ("imprecise", KIND_CAST, MISSING)),
        (("xh",), ("imprecise", KIND_CAST, MISSING)),
    ],
    ids=["none", "low", "high"],
)
def test_a_runtime_that_drops_a_cast_has_a_row_that_says_so(
    left: Sequence[str], verdict_of: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropping(OnnxRuntime):
        def build(self, form: Form) -> Program:
            given = (
                replace(form, model=three_products(left))
                if len(form.arrays) and form.arrays[0].shape == X.shape
                else form
            )
            return super().build(given)

    (tmp_path / "m.onnx").write_bytes(three_products(()))
    np.savez(tmp_path / "x.npz", x=X)
    one = {"at": 0, "root": str(tmp_path), "name": "m", "model": str(tmp_path / "m.onnx"), "drawn": []}
    user_definitions.announce_definitions(json.dumps({"models": [one | {"inputs": [str(tmp_path / "x.npz")]}]}))
    _, made = prepare_group(Group("models:m", "", "float32", 1), tmp_path / "cache")
    backend = Dropping("ort-cpu", "cpu", {})
    (done,) = Runner(backend, backend.start(), POLICY, lambda *step: None).run([make_item_of_whole_group(made)])
    assert (done.row.status, done.row.kind, done.row.cause or "") == verdict_of, done.row.error
