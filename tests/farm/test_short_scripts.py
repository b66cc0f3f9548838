"""Scripts of few lines and the issues with them: they show what they say, and nothing else."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from planted_small import graph

from farm.minimise import beside, issue
from farm.minimise.script import _Writer, short
from farm.reproduce import script as scripts
from farm.reproduce import trial
from tasks import counterparts
from tasks.arrays.tree import TensorSpec, encode, encode_tensor
from tasks.backends import BackendSpec
from tasks.backends.shared import call_lines
from tasks.backends.shared.few_lines import NoScript
from tasks.backends.shared.network import completed
from tasks.backends.shared.told_calls import Code, Trace
from tasks.model import Form, Group, Leaf, Unsupported, is_inexact, np_dtype
from tasks.model.dtypes import TABLE
from tests import stand_in


def shows(text: str, row: dict[str, Any]) -> tuple[bool, str]:
    with trial.written(text) as path:
        return trial.check(path, row, 300, sys.executable, short=True)


def scripted(
    model: Any, feeds: dict[str, np.ndarray], expected: list[np.ndarray], backend: str = "ort-cpu", **row: Any
) -> str:
    """The short script of a case whose expected output is told."""
    spec = BackendSpec.parse(backend)
    form = Form("onnx", "onnx:test", "float32", list(feeds.values()), model=model.SerializeToString())
    leaves = [Leaf(str(y.dtype), y.shape, y.astype(np.float64) if y.dtype.kind == "f" else y) for y in expected]
    row = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 32.0, "error": "", **row}
    group = Group("onnx:test", "", "float32", 1)
    return short(form, group, leaves, row, spec.create(), 'a "title" \\ of text', ["onnxruntime"])


def test_a_short_script_shows_what_is_wrong_and_nothing_else() -> None:
    pytest.importorskip("onnxruntime")
    model = graph("a = Add(x, w)", "y = Softmax(a; axis=0)", w=np.float32([[0.1, 2, -3, np.pi, 1e-8, 7]]))
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 4
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 6
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (4, 6)).astype(np.float32)}
    (right,) = stand_in.run(model, feeds).outputs
    for expected, expectedly in ((right, False), (right + np.float32(1e-3), True), (right.reshape(6, 4), True)):
        text = scripted(model, feeds, [expected])
        assert "farm" not in text
        good, said = shows(text, {"status": "wrong", "kind": "numbers"})
        assert good is expectedly, said


@pytest.mark.parametrize(
    ("op", "said"), [("Neg", "not rising: f(1) = -1"), ("Neg", "not even"), ("Exp", "not odd"), ("Neg", "not falling")]
)
def test_a_short_script_shows_a_broken_promise(op: str, said: str) -> None:
    pytest.importorskip("onnxruntime")
    model = graph(f"y = {op}(x)")
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 6]))
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    text = scripted(model, {"x": x}, [x], kind="property", status="imprecise", breaks=said)
    good, _ = shows(text, {"status": "imprecise", "kind": "property"})
    assert good is (said != "not falling")  # which -x is
    with pytest.raises(NoScript, match="no short script"):
        scripted(model, {"x": x}, [x], kind="property", status="imprecise", breaks="outside [0, 1]: f(1) = -1")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
def test_a_nan_is_written_with_its_own_bits(dtype: str) -> None:
    kind = np_dtype(dtype)
    bits = f"u{kind.itemsize}"
    odd = np.array([np.nan, 1, np.inf], kind)
    odd.view(bits)[0] |= 1 << (8 * kind.itemsize - 1)
    plain = np.abs(odd)
    for x in (odd, plain, odd.reshape(1, 3)):
        text = _Writer().value(x)
        again = eval(text, {"np": np, "ml_dtypes": ml_dtypes})
        assert again.dtype == kind and again.shape == x.shape and (again.view(bits) == x.view(bits)).all(), text
    assert "np.nan" in _Writer().value(np.array([np.nan, 1], kind)) and "view" not in _Writer().value(odd, any_nan=True)


def test_a_script_that_raises_another_error_does_not_show_it() -> None:
    row = {"status": "error", "error": "no kernel for 'x' in this build", "kind": ""}
    same, other = "raise RuntimeError(\"no kernel for 'y' in this build\")", 'raise RuntimeError("a disk is full")'
    assert shows(same, row)[0]
    assert not shows(other, row)[0]
    died = {"status": "crash", "error": "", "kind": "SIGSEGV"}
    assert shows("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", died)[0]
    assert not shows("print('fine')", died)[0]
    own = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 11)'], check=True)"
    assert shows(own, {**row, "error": "the converter died of SIGSEGV: layer 3"})[0]
    assert not shows(own, row)[0]
    coded = "raise RuntimeError(\"no kernel for 'y' in this build: error code: -2\")"
    assert shows(coded, row)[0] and not shows(coded, died)[0]  # a runtime's own code is no signal


def test_what_a_device_says_after_which_it_computes_nothing_is_the_crash_of_a_short_script() -> None:
    row = {"status": "crash", "error": "synStream failed, device was lost", "kind": "", "error_type": "RuntimeError"}
    good, said = shows("raise RuntimeError('synStream failed, device was lost')", row)
    assert good and said == "shows the crash: it raises the same, after which the device computes no more"
    assert not shows("raise RuntimeError('a disk is full')", row)[0]
    assert not shows("raise RuntimeError('')", {**row, "error": "", "error_type": ""})[0]


def test_a_slow_import_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "timeout", "error": "", "kind": ""}
    (tmp_path / "slow_one.py").write_text("import time; time.sleep(2)")
    imported = f"import sys; sys.path.append({str(tmp_path)!r})\nimport slow_one\n"
    real = ast.parse
    with trial.written(f"{imported}import nowhere_to_be_found") as path:
        monkeypatch.setattr(trial.ast, "parse", lambda _: real(imported))  # of which the path is no import
        monkeypatch.setattr(trial.ast, "unparse", lambda _: imported)
        assert not trial.check(path, row, 1, sys.executable, short=True)[0]
    with trial.written(f"{imported}import time; time.sleep(60)") as path:
        assert trial.check(path, row, 1, sys.executable, short=True)[0]
    first, then = beside.sometimes(2, 1)
    with trial.written("\n".join([*first, imported, *then])) as path:
        assert not trial.check(path, row, 1, sys.executable, short=True, times=2)[0]
    assert not trial._checked(None, row, 1, short=True, times=2)[0]  # it has not said that any of its runs did


ONNX = ["ort-cpu", "openvino-cpu", "tvm-cpu", "tinygrad-cpu", "mnn-cpu", "iree-cpu", "ncnn-cpu", "rknn-rk3588"]


@pytest.mark.parametrize("backend", ONNX)
def test_a_runtime_that_takes_onnx_models_is_called_in_few_lines(backend: str) -> None:
    model = graph("y = Relu(x)")
    model.opset_import[0].version = 20
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 6]))
    x = np.zeros((4, 6), np.float32)
    text = scripted(model, {"x": x}, [x], backend)
    compile(text, backend, "exec")
    form = Form("onnx", "onnx:test", "float32", [x], model=model.SerializeToString())
    own = ast.walk(ast.parse("\n".join(BackendSpec.parse(backend).create().few_lines(form).lines)))
    made = {x.id for x in own if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    assert not made & {"model", "feeds"}  # the lines may be run again, and by a function


@pytest.mark.parametrize("backend", ONNX)
def test_a_graph_of_many_nodes_and_outputs_has_a_node_a_line(backend: str) -> None:
    x = np.linspace(-1, 1, 96, dtype=np.float32).reshape(4, 24)
    model = graph(
        "a = Relu(x)", "b = Neg(a)", "c = Abs(b)", "d = Exp(c)", "e = Neg(d)", "f = Abs(e)", "y = Add(f, w)", w=x
    )
    text = scripted(model, {"x": x}, [x, x], backend)
    lines = text.splitlines()
    compile(text, backend, "exec")
    assert sum("helper.make_node(" in line for line in lines) == 7
    nodes: dict[str, Any] = {"helper": onnx.helper}
    begin = next(k for k, line in enumerate(lines) if line.startswith("nodes = ["))
    exec("\n".join(lines[begin : next(k for k, line in enumerate(lines) if line.startswith("inputs"))]), nodes)
    assert [node.op_type for node in nodes["nodes"]] == ["Relu", "Neg", "Abs", "Exp", "Neg", "Abs", "Add"]


def test_the_script_of_iree_gives_bytes_of_several_numbers() -> None:
    x = np.ones(5, np_dtype("int4"))
    inputs, outputs = ([onnx.helper.make_tensor_value_info(k, t, [5])] for k, t in zip("xy", (22, 1)))
    made = onnx.helper.make_graph([onnx.helper.make_node("Cast", ["x"], ["y"], to=1)], "one", inputs, outputs)
    text = scripted(onnx.helper.make_model(made), {"x": x}, [x.astype(np.float32)], "iree-cpu")
    compile(text, "iree", "exec")
    assert "types = {'x': kinds.SINT_4}" in text


def test_the_script_of_ncnn_asks_pnnx_which_axis_is_the_batchs() -> None:
    x = np.zeros((4, 6), np.float32)
    text = scripted(graph("y = Relu(x)"), {"x": x}, [x], "ncnn-cpu")
    said: dict[str, Any] = {
        "re": re,
        "code": 'ex.input("in0", ncnn.Mat(in0.numpy(), batch_index=0).clone())\nex.input("in10", ncnn.Mat(in10.numpy(), '
        'batch_index=2).clone())\n_, out0 = ex.extract("out0")\nout.append(torch.from_numpy(out0.numpy(batch_index=1)))',
    }
    exec(next(line for line in text.splitlines() if line.startswith("axis = ")), said)
    assert [said["axis"](name) for name in ("in0", "in1", "in10", "out0", "out1")] == [0, 233, 2, 1, 233]


def called(backend: str, op: str, call: Any, x: np.ndarray, expected: np.ndarray, **kwargs: Any) -> str:
    """The short script of a call of one tensor whose expected output is told; the gradient of it with ``cotangent``."""
    tree = {"$": "tuple", "v": [encode_tensor(TensorSpec(0))]}
    kind = call.framework if isinstance(call, counterparts.Counterpart) else "torch"
    cotangent = kwargs.pop("cotangent", None)
    form = Form(kind, op, x.dtype.name, [x], call=call, args=tree, kwargs=encode(kwargs))
    if cotangent is not None:
        form = replace(form, arrays=[x, cotangent], check="backward", wrt=(0,), cotangents=(1,))
    reference = expected.astype(np.float64) if x.dtype.kind not in "bu" else expected
    leaf = Leaf(x.dtype.name, expected.shape, reference)
    row = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 32.0, "error": ""}
    group = Group(op, "", x.dtype.name, 1)
    text = short(form, group, [leaf], row, BackendSpec.parse(backend).create(), "a title", ["numpy"])
    assert "farm" not in text and "tasks" not in text
    return text


def said_here(text: str) -> Any:
    """What a script ends with in this process: "wrong", or 0."""
    with pytest.raises(SystemExit) as end:
        exec(compile(text, "script", "exec"), {})
    return end.value.code


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_short_script_calls_torch_by_a_public_name(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3).astype(np_dtype(dtype))
    right = torch.nn.functional.softmax(torch.tensor(x.astype(np.float64)), dim=0).numpy()
    for expected, says in ((right, 0), (right + 0.25, "wrong")):
        text = called("torch-cpu", "torch:softmax", torch.nn.functional.softmax, x, expected, dim=0)
        assert said_here(text) == says and "softmax" in text


@pytest.mark.parametrize(
    ("x", "right", "wrong"),
    [
        (np.array([True, False]), [1.0, 0.0], [0.0, 0.0]),
        (np.float32([-np.inf, np.nan, 2.0]), [-np.inf, np.nan, 2.0], [0.0, np.nan, 2.0]),
        (np.uint8([250, 3]), [250, 3], [250, 4]),
    ],
)
def test_a_short_script_compares_truth_values_infinities_and_small_integers(x: Any, right: Any, wrong: Any) -> None:
    torch = pytest.importorskip("torch")
    for expected, says in ((right, 0), (wrong, "wrong")):
        reference = np.array(expected, np.float64 if x.dtype == np.float32 else x.dtype)
        assert said_here(called("torch-cpu", "torch:clone", torch.clone, x, reference)) == says


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "Exception from a.cpp:105:\nCheck 'false' failed at b.cpp:9:\n-- Celu-28 with a message:\nArguments differ",
            "Arguments differ",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running X node. Name:'' Status Message: "
            "/a/pool.h:236 int64_t ort::Size(int64_t, int64_t) const out >= 0 was false. Negative.",
            "out >= 0 was false. Negative.",
        ),
        ('loc(callsite("" at "g")): failed to legalize\n\nloc(unknown): see current operation', "failed to legalize"),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /a/basic_backend.cc:136 ort::B(int&) [with bool b = "
            "{c<d>&}] [OpenVINO-EP] Exception while Reading network: Check 'false' failed at frontend.cpp:221:\nNot static",
            "Not static",
        ),
        ("Error invoking function: c/runtime/src/buffer_diagnostics.c:225: NOT_FOUND; input0", "NOT_FOUND; input0"),
        ('In ir.Op(span=None, name="relax.divide", support_level=10), dim 1 is 2', "In relax.divide, dim 1 is 2"),
        ("word " * 40, ("word " * 20).strip() + " …"),
    ],
)
def test_the_title_of_an_issue_says_what_the_error_says(error: str, told: str) -> None:
    finding = {"ops": ["Celu"], "attributes": {"Celu.alpha": 0.009999999776482582}, "modes": []}
    record = {
        "finding": finding,
        "backend": "b",
        "dtype": "float16",
        "flaky": False,
        "outcome": {"status": "error", "kind": "", "error": error},
    }
    assert issue.title(record) == f"[b] Celu of float16 with alpha=0.01: {told}"


@pytest.mark.parametrize(
    ("outcome", "results", "told"),
    [
        ({"kind": "numbers"}, ("int64 [1] [3]", "int64 [1] [0]"), "wrong result (0, expected 3)"),
        (
            {"kind": "numbers"},
            ("float32 [2] [0. , 0.5]", "float32 [2] [0., 1.]"),
            "wrong result ([0, 1], expected [0, 0.5])",
        ),
        ({"kind": "nonfinite"}, ("float16 [] [2.361]", "float16 [] [inf]"), "wrong result (inf, expected 2.361)"),
        ({"kind": "nonfinite"}, ("float32 [9] [1.] at [(1,)]", "float32 [9] [nan] at [(1,)]"), "wrong NaN or Inf"),
        ({"kind": "numbers"}, ("float32 [1] [1.]; int64 [1] [0]", "float32 [1] [1.]; int64 [1] [1]"), "wrong result"),
        ({"kind": "shape", "error": "shape (1,), expected (2,)"}, ("", ""), "wrong shape (1,), expected (2,)"),
    ],
)
def test_the_title_of_an_issue_says_what_came_where_it_is_little(
    outcome: dict[str, str], results: tuple[str, str], told: str
) -> None:
    finding = {"ops": ["Add"], "attributes": {}, "modes": ["open sizes"]}
    record = {"finding": finding, "backend": "b", "dtype": "float32", "flaky": False}
    record |= {"outcome": {"status": "wrong", "error": "", **outcome}, "expected": results[0], "got": results[1]}
    assert issue.title(record) == f"[b] Add (dynamic shapes): {told}"
    flaky = issue.title(record | {"flaky": True})
    assert flaky.endswith(", intermittent") and "expected 3" not in flaky


def test_an_issue_names_the_dtype_of_the_result_and_tells_no_ulps_of_what_is_not_rounded() -> None:
    outcome = {"status": "wrong", "kind": "numbers", "error": "", "max_diff": 1.0, "error_units": None, "max_ulp": 1.0}
    record: dict[str, Any] = {
        "op": "onnx:Cast",
        "backend": "b",
        "runtime_version": "1",
        "device": "cpu",
        "packages": [],
        "dtype": "float32",
        "flaky": False,
        "finding": {"ops": ["Cast"], "attributes": {"Cast.to": 16}, "modes": [], "words": ""},
        "outcome": outcome | {"limit": 0.5, "op_class": "exact", "cause": "cut off, not rounded"},
        "triggers": [
            {"what": "without Cast.to", "status": "", "fails": False},
            {"what": "open sizes", "status": "pass", "fails": False},
        ],
    }
    rounded, whole = (issue.text({**record, "results": [dtype]}, "") for dtype in ("bfloat16", "bool"))
    assert rounded.startswith("# [b] Cast of float32 to bfloat16: wrong result\n")
    assert "1 ulps off; the limit is 0.5." in rounded and "ulps" not in whole
    assert (
        whole.startswith("# [b] Cast: wrong result\n")
        and "This would give the same result: cut off, not rounded." in whole
    )
    told = issue.text({**record, "results": ["bool"], "known": "cut off", "link": "https://x/1"}, "")
    assert "\n\nKnown cause: cut off. Published: https://x/1\n\n" in told and "Known cause" not in whole
    assert "| dynamic shapes | correct |" in whole and "without Cast.to" not in whole


def test_a_short_script_of_a_gradient_computes_it() -> None:
    torch = pytest.importorskip("torch")
    x, cotangent = np.float32([-1, 0.5, 3]), np.float32([1, -2, 0.25])
    right = cotangent / (1 + np.exp(-x.astype(np.float64)))
    for expected, says in ((right, 0), (right * 1.01, "wrong")):
        softplus = torch.nn.functional.softplus
        text = called("torch-cpu", "torch:nn.functional.softplus", softplus, x, expected, cotangent=cotangent)
        assert said_here(text) == says and "autograd.grad" in text


def convolved(framework: str, backend: str, off: float = 0.0) -> str:
    """The script of a convolution whose right values are moved by so much, its cut and what is taken of it."""
    torch = pytest.importorskip("torch")
    model = graph(
        "a = Conv(x, w; strides=[2, 2])", "b = Relu(a)", "y = Softmax(b; axis=1)", w=np.ones((2, 3, 2, 2), np.float32)
    )
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 4, 4)).astype(np.float32)
    form = completed(Form(framework, "fuzz:graph", "float32", [x], model=model.SerializeToString()))
    form = replace(form, args={"$": "tuple", "v": [encode_tensor(TensorSpec(0))]})
    weight = torch.ones(2, 3, 2, 2, dtype=torch.float64)
    right = torch.conv2d(torch.from_numpy(x).double(), weight, stride=2).relu().softmax(1).numpy() + off
    row = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 32.0, "error": ""}
    leaf, group = Leaf("float32", right.shape, right), Group("fuzz:graph", "", "float32", 1)
    return short(form, group, [leaf], row, BackendSpec.parse(backend).create(), "t", ["x"])


@pytest.mark.parametrize("backend", ["torch-cpu", "inductor-cpu"])
def test_a_graph_in_functions_of_torch_has_a_short_script(backend: str) -> None:
    for off, says in ((0.0, 0), (0.01, "wrong")):
        text = convolved("torch", backend, off)
        assert said_here(text) == says
        assert "torch.ops.aten.conv2d.default" in text and ("torch.compile" in text) is (backend == "inductor-cpu")


@pytest.mark.parametrize(
    ("framework", "backend", "says"),
    [
        ("jax", "jax-cpu", "lax.conv_general_dilated(x[0], v0, [2, 2], [(0, 0), (0, 0)]"),
        ("tensorflow", "tensorflow-cpu", "tf.nn.convolution(v1, v2, [2, 2], 'VALID'"),
        ("paddle", "paddle-cpu", "F.conv2d(x[0], v0, None, [2, 2]"),
        ("mlx", "mlx-cpu", "mx.conv_general("),
    ],
)
def test_a_graph_has_a_short_script_in_the_calls_of_a_framework(framework: str, backend: str, says: str) -> None:
    text = convolved(framework, backend)
    compile(text, framework, "exec")
    assert says in text, text
    assert "import torch" not in text and "absent" not in text


def test_a_script_of_a_call_asks_for_nothing_that_the_framework_does_not_heed() -> None:
    """What is no argument of its function is no failure of it; what is run on the words of the table is told whole."""
    x, trace = np.ones((2, 3), np.float32), Trace("jax")
    row = counterparts.rows()["sub"]
    sub = counterparts.Counterpart("jax", "sub", row.signature, row.jax)
    with pytest.raises(Unsupported, match="has no alpha"):
        trace.call(sub, (Code(trace, "x[0]", x), Code(trace, "x[1]", x)), {"alpha": 2})
    assert trace.call(sub, (Code(trace, "x[0]", x), Code(trace, "x[1]", x)), {"out": None}).text == "v0"
    assert trace.lines == ["v0 = jnp.subtract(x[0], x[1])"] and list(trace.imports) == ["import jax.numpy as jnp"]
    row = counterparts.rows()["nn.functional.max_pool2d"]
    pool = counterparts.Counterpart("jax", "nn.functional.max_pool2d", row.signature, row.jax)
    trace.call(pool, (Code(trace, "x[0]"), 2), {})  # whose rank nobody knows
    assert trace.lines[1] == "v1 = op_max_pool2d(x[0], 2)" and list(trace.whole) == ["op_max_pool2d"]


@pytest.mark.parametrize(
    ("line", "status", "shown"),
    [
        ("raise SystemExit('wrong')", "wrong", True),
        ("import no_such_module", "wrong", False),
        ("raise SystemExit('wrong')", "crash", False),
        ("import os; os.abort()", "crash", True),
        ("raise SystemExit(3)", "crash", True),
        ("raise ValueError('there is no kernel for it')", "error", True),
        ("import no_such_module", "error", False),
        ("import time; time.sleep(60)", "timeout", True),
        ("raise SystemExit('hung')", "timeout", False),
    ],
)
def test_a_script_that_runs_itself_again_shows_how_it_fails_and_not_only_that(
    line: str, status: str, shown: bool
) -> None:
    error = {"error": "there is no kernel for it", "error_type": "ValueError"} if status == "error" else {"error": ""}
    row = {"status": status, "kind": "exit code 3" * ("(3)" in line), **error}
    first, then = beside.sometimes(2, 5.0 if status == "timeout" else None)
    assert shows("\n".join([*first, *then, line, ""]), row)[0] == shown


@pytest.mark.parametrize("name", ["nn.functional.cross_entropy", "fft.fft"])
def test_what_asks_for_the_kind_of_a_dtype_is_told_by_its_calls(name: str) -> None:
    trace, row = Trace("tensorflow"), counterparts.rows()[name]
    of = counterparts.Counterpart("tensorflow", name, row.signature, row.tensorflow)
    x = np.ones((2, 3), np.complex64 if "fft" in name else np.float32)
    more = [Code(trace, "x[1]", np.array([0, 2]))] * ("fft" not in name)
    trace.call(of, (Code(trace, "x[0]", x), *more), {})
    assert not trace.whole and 0 < len(trace.lines) <= 16


@pytest.mark.parametrize(
    ("backend", "framework", "says"),
    [
        ("jax", "jax", "jnp.divide"),
        ("paddle", "paddle", "paddle.divide"),
        ("tensorflow", "tensorflow", "tf.divide"),
        ("litert", "tensorflow", "tf.lite.TFLiteConverter"),
    ],
)
def test_a_short_script_calls_a_framework_that_is_not_here(backend: str, framework: str, says: str) -> None:
    call = counterparts.counterpart(framework, "torch:div", "no_rounding_mode", "float32")
    x = np.ones((2, 2), np.float32)
    text = called(f"{backend}-cpu", "torch:div", call, x, x, other=2.0)
    compile(text, framework, "exec")
    assert says in text


def test_a_call_that_a_framework_does_not_take_has_no_script() -> None:
    sub, x = counterparts.counterpart("jax", "torch:sub", "", "float32"), np.ones(2, np.float32)
    with pytest.raises(NoScript, match="has no alpha"):
        called("jax-cpu", "torch:sub", sub, x, x, other=2.0, alpha=2)


def test_every_expression_of_the_table_can_be_written_down() -> None:
    """But for those that name another op's counterpart."""
    lacking = []
    for label, row in counterparts.rows().items():
        for framework in counterparts.table.FRAMEWORKS:
            if text := getattr(row, framework):
                made = counterparts.Counterpart(framework, label, row.signature, text)
                try:
                    imports, lines = call_lines.sources({"OP": made})
                    compile("\n".join([*imports, *lines]), label, "exec")
                except NoScript as error:
                    lacking.append(str(error))
    assert len(lacking) < 10, lacking


def test_a_short_script_of_ort_takes_and_gives_strings() -> None:
    pytest.importorskip("onnxruntime")
    words = np.array(["1.5", "-2.25"], object)
    for kinds, given, right in (((8, 1), words, np.array([1.5, -2.25])), ((1, 8), np.float32([1.5, -2.25]), words)):
        inputs, outputs = ([onnx.helper.make_tensor_value_info(k, t, [2])] for k, t in zip("xy", kinds))
        node = onnx.helper.make_node("Cast", ["x"], ["y"], to=kinds[1])
        graph_of_one = onnx.helper.make_graph([node], "one", inputs, outputs)
        model = onnx.helper.make_model(graph_of_one, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
        for kind, expected, says in (
            ("numbers", right, 0),
            ("numbers", right[::-1].copy(), "wrong"),
            ("nondeterministic", right, 0),
        ):
            form = Form("onnx", "onnx:Cast", "float32", [given], model=model.SerializeToString())
            row = {"status": "wrong", "kind": kind, "op_class": "exact", "limit": 0.5, "error": ""}
            leaf = Leaf("str" if kinds[1] == 8 else "float32", (2,), expected)
            backend = BackendSpec.parse("ort-cpu").create()
            assert (
                said_here(short(form, Group("onnx:Cast", "", "float32", 1), [leaf], row, backend, "t", ["x"])) == says
            )


def test_an_error_without_words_is_told_by_its_type() -> None:
    row = {"status": "error", "error": "", "kind": "", "error_type": "AssertionError"}
    assert shows("assert 1 == 2", row)[0] and not shows("raise TypeError('of another kind')", row)[0]


@pytest.mark.parametrize(
    ("kind", "line", "wrong"),
    [
        ("threads", "got = [np.ones(2)]; num_threads = 1", False),
        ("threads", "num_threads = 1; got = [np.array(num_threads)]", True),
        ("threads", "num_threads = 1; got = [np.ones(2) if num_threads < 4 else sys.exit(3)]", True),
        ("threads", "num_threads = 1; print(num_threads); got = [np.ones(2)]", False),
        ("process", "import random; print(random.random()); got = [np.ones(2)]", False),
        ("process", "got = [np.array(['a', 'b'], object)]", False),
        ("process", "got = [np.array([str(hash('a'))], object)]", True),
        ("process", "got = [np.array('a')]", False),
        ("process", "got = [np.array(hash('a'))]", True),
    ],
)
def test_a_script_compares_processes_and_numbers_of_threads(kind: str, line: str, wrong: bool) -> None:
    how = beside.of({"kind": kind, "error": "output 0 differs"})
    assert how is not None
    before, lines, judged = how([line], Form("torch", "torch:abs", "float32", []), Group("torch:abs", "", "float32", 1))
    good, said = shows("\n".join(["import numpy as np", *before, *lines, *judged]), {"status": "wrong", "kind": kind})
    assert good is wrong, said


@pytest.mark.parametrize(
    "line",
    [
        "options.intra_op_num_threads = options.inter_op_num_threads = {}",
        "compile_model(model, 'CPU', {{'INFERENCE_NUM_THREADS': {}, 'NUM_STREAMS': 1}})",
        'os.environ["TVM_NUM_THREADS"] = str({})',
        "tf.config.threading.set_intra_op_parallelism_threads({})",
    ],
)
def test_a_script_of_other_numbers_of_threads_asks_the_runtime_for_them(line: str) -> None:
    how, form, group = beside.of({"kind": "threads", "error": ""}), Form("onnx", "a", "b", []), Group("a:b", "", "", 1)
    assert how is not None
    assert how([line.format(1)], form, group)[1] == [line.format("THREADS")]
    with pytest.raises(NoScript, match="no line sets the number of threads"):
        how(["got = run(feeds)"], form, group)


def test_what_a_runtime_prints_of_the_program_after_its_error_may_differ() -> None:
    error = (
        "loc(callsite): expected sizes to be non-negative, but got -1\n\nsee current operation: "
        + "dispatch store tensor " * 9
    )
    row = {
        "status": "error",
        "kind": "",
        "error_type": "RuntimeError",
        "error": error + "operandSegmentSizes static_offsets",
    }
    said = "error: expected sizes to be non-negative, but got -1"
    assert shows(f"raise ValueError({said!r})", row)[0]
    assert not shows("raise ValueError('see current operation: dispatch, tensor')", row)[0]


def test_a_script_that_finds_no_memory_shows_that() -> None:
    row = {
        "status": "oom",
        "error": "RESOURCE_EXHAUSTED; failed to allocate a buffer",
        "kind": "",
        "error_type": "ValueError",
    }
    assert shows("raise ValueError('RESOURCE_EXHAUSTED; failed to allocate a buffer')", row) == (
        True,
        "shows the oom: it raises the same",
    )
    assert not shows("raise ValueError('something else')", row)[0]


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("ort-cpu", x) for x in ("bfloat16", "float8_e5m2", "int4", "uint4", "int2", "uint2")),
        *(("openvino-cpu", x) for x in ("bfloat16", "float8_e5m2", "int4", "uint4", "float4_e2m1fn")),
    ],
)
def test_a_short_script_gives_and_takes_dtypes_that_numpy_lacks(backend: str, dtype: str) -> None:
    """Five numbers: of those of less than a byte the last byte holds fewer."""
    pytest.importorskip("openvino" if backend.startswith("openvino") else "onnxruntime")
    x, own = np.array([1, 0, 0, 1, 1]).astype(np_dtype(dtype)), TABLE[dtype].onnx
    assert own is not None
    for kinds, given in (((own[1], 1), x), ((1, own[1]), x.astype(np.float32))):
        inputs, outputs = ([onnx.helper.make_tensor_value_info(k, t, [5])] for k, t in zip("xy", kinds))
        node = onnx.helper.make_node("Cast", ["x"], ["y"], to=kinds[1])
        graph_of_one = onnx.helper.make_graph([node], "one", inputs, outputs)
        opset = onnx.helper.make_opsetid("", 25 if TABLE[dtype].bits == 2 else 23)
        model = onnx.helper.make_model(graph_of_one, opset_imports=[opset], ir_version=12)
        result = np.dtype(np.float32) if kinds[1] == 1 else x.dtype
        right = x.astype(np.float64 if is_inexact(result.name) else result)
        for expected, says in ((right, 0), (1 - right, "wrong")):
            form = Form("onnx", "onnx:Cast", "float32", [given], model=model.SerializeToString())
            row = {"status": "wrong", "kind": "numbers", "op_class": "exact", "limit": 0.5, "error": ""}
            leaf = Leaf(result.name, (5,), expected.astype(right.dtype))
            made = BackendSpec.parse(backend).create()
            text = short(form, Group("onnx:Cast", "", "float32", 1), [leaf], row, made, "t", ["x"])
            assert said_here(text) == says


@pytest.mark.parametrize("build", ["rocm7.2", "cu130", "xpu"])
def test_a_torch_of_one_kind_of_device_is_installed_from_its_own_index(
    monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    """It named the one of PyPI, which on a ROCm node is CUDA's."""
    monkeypatch.setattr(metadata, "version", lambda name: f"2.13.0+{build}")
    index, torch = scripts.installed({"torch"})
    assert index == f"--extra-index-url=https://download.pytorch.org/whl/{build}" and torch == f"torch==2.13.0+{build}"
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    assert scripts.installed({"torch"}) == ("torch==2.13.0",)
