"""Findings and the issues with them: they show what they say, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np
import onnx
import pytest
from planted_small import graph

from farm.hunt import issue_text as issue
from farm.reproduction import finding_checks, finding_requirements, finding_trial, in_framework
from farm.reproduction.finding_folder import PROGRAM, RUN, FindingCase, _format_script_literal, write_finding_folder
from tasks import counterparts
from tasks.arrays.tree import TensorSpec, encode_argument_tree, encode_tensor_spec
from tasks.backends import BackendSpec
from tasks.backends.shared.network import complete_torch_form
from tasks.backends.shared.recipe import NoProgram, ProgramRecipe
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, get_numpy_dtype, is_inexact_dtype
from tasks.model.dtypes import TABLE
from tests import stand_in
from tests.farm.in_process import exit_code


def shows(run: str, row: dict[str, Any], times: int = 1, timeout_s: float = 300) -> tuple[bool, str]:
    """Of a run.py of this text."""
    with finding_trial.write_trial_script({RUN: run.encode()}) as folder:
        return finding_trial.try_finding(folder, row, timeout_s, sys.executable, times)


def written(form: Form, leaves: list[Leaf], backend: str, actual: Any = None, **row: Any) -> dict[str, bytes]:
    """The files of a case whose expected outputs are told."""
    row = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 32.0, "error": "", **row}
    group, made = Group(form.op, "", form.dtype, 1), BackendSpec.parse(backend).create()
    case = FindingCase(
        'a "title" \\ of text', form, group, made, policy_files.load_policy("error_units"), row, leaves, actual
    )
    return write_finding_folder(case, ["onnxruntime"])


def of_model(
    model: Any, feeds: dict[str, np.ndarray], expected: list[np.ndarray], backend: str = "ort-cpu", **row: Any
) -> dict[str, bytes]:
    form = Form("onnx", "onnx:test", "float32", list(feeds.values()), model=model.SerializeToString())
    leaves = [Leaf(str(y.dtype), y.shape, y.astype(np.float64) if y.dtype.kind == "f" else y) for y in expected]
    return written(form, leaves, backend, **row)


def of_size(model: Any, *dims: int) -> Any:
    """A model whose output has these sizes."""
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, dims))
    return model


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino-cpu"])
def test_a_finding_shows_what_is_wrong_and_nothing_else(backend: str) -> None:
    pytest.importorskip("openvino" if backend.startswith("openvino") else "onnxruntime")
    model = of_size(
        graph("a = Add(x, w)", "y = Softmax(a; axis=0)", w=np.float32([[0.1, 2, -3, np.pi, 1e-8, 7]])), 4, 6
    )
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (4, 6)).astype(np.float32)}
    (right,) = stand_in.run(model, feeds).outputs
    for expected, expectedly in ((right, False), (right + np.float32(1e-3), True), (right.reshape(6, 4), True)):
        files = of_model(model, feeds, [expected], backend)
        with finding_trial.write_trial_script(files) as folder:
            good, said = finding_trial.try_finding(folder, {"status": "wrong", "kind": "numbers"}, 300)
        assert good is expectedly, said
        assert "farm" not in files[RUN].decode()


@pytest.mark.parametrize(("op", "name", "wrong"), [("Neg", "exp", True), ("Neg", "neg", False), ("Exp", "sin", True)])
def test_a_finding_shows_a_broken_promise(op: str, name: str, wrong: bool) -> None:
    pytest.importorskip("onnxruntime")
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    form = Form("onnx", f"onnx:{name}", "float32", [x], model=of_size(graph(f"y = {op}(x)"), 4, 6).SerializeToString())
    y = {"Neg": np.negative, "Exp": np.exp}[op](x)
    row, leaf = {"kind": "property", "status": "imprecise"}, Leaf("float32", (4, 6), x.astype(np.float64))
    if wrong:
        assert exit_code(written(form, [leaf], "ort-cpu", [y], **row)) == 1
    else:
        with pytest.raises(NoProgram, match="is kept now"):
            written(form, [leaf], "ort-cpu", [y], **row)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "int4", "bool", "complex64"]
)
def test_an_array_of_a_finding_keeps_its_bits_and_its_dtype(dtype: str) -> None:
    x = np.array([1, 0, 1]).astype(get_numpy_dtype(dtype))
    if is_inexact_dtype(dtype) and dtype != "complex64":
        x[0] = np.nan
        x.view(f"u{x.itemsize}")[0] |= 1 << (8 * x.itemsize - 1)  # no NaN of numpy's own
    form = Form("onnx", "onnx:test", "float32", [x], model=graph("y = Relu(x)").SerializeToString())
    files = written(form, [Leaf("float32", (3,), np.zeros(3))], "ort-cpu")
    with finding_trial.write_trial_script(files) as folder:
        inputs, case = finding_checks.load_case(folder / "case.npz")
    assert inputs["x"].dtype == x.dtype and inputs["x"].tobytes() == x.tobytes() and case["dtype.0"] == "float32"
    assert (b"import ml_dtypes" in files[RUN]) is (x.dtype.isbuiltin != 1)


def test_a_finding_that_raises_another_error_does_not_show_it() -> None:
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


def test_what_a_device_says_after_which_it_computes_nothing_is_the_crash_of_a_finding() -> None:
    row = {"status": "crash", "error": "synStream failed, device was lost", "kind": "", "error_type": "RuntimeError"}
    good, said = shows("raise RuntimeError('synStream failed, device was lost')", row)
    assert good and said == "shows the crash: it raises the same, after which the device computes no more"
    assert not shows("raise RuntimeError('a disk is full')", row)[0]
    assert not shows("raise RuntimeError('')", {**row, "error": "", "error_type": ""})[0]


def test_a_slow_import_is_no_hang(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "timeout", "error": "", "kind": ""}
    monkeypatch.setattr(finding_trial, "_measure_import_s", lambda folder, python: 2.0)
    assert not shows("import time; time.sleep(2)", row, timeout_s=1)[0]
    assert shows("import time; time.sleep(60)", row, timeout_s=1)[0]


def test_the_time_of_imports_is_that_of_all_in_the_files_of_a_finding(tmp_path: Any) -> None:
    with finding_trial.write_trial_script(
        {RUN: b"def run():\n    import decimal\n    import not_to_be_found\n"}
    ) as folder:
        assert 0 < finding_trial._measure_import_s(folder, sys.executable) < 60


ONNX = ["ort-cpu", "openvino-cpu", "tvm-cpu", "tinygrad-cpu", "mnn-cpu", "iree-cpu", "ncnn-cpu", "rknn-rk3588"]
PROGRAMS = ["torch-cpu", "inductor-cpu", "jax-cpu", "tensorflow-cpu", "paddle-cpu", "mlx-cpu", "litert-cpu"]


@pytest.mark.parametrize("backend", ONNX)
def test_a_runtime_that_takes_onnx_models_is_called_by_a_function_of_its_file(backend: str) -> None:
    model = of_size(graph("y = Relu(x)"), 4, 6)
    model.opset_import[0].version = 20
    x = np.zeros((4, 6), np.float32)
    files = of_model(model, {"x": x}, [x], backend)
    text = files[RUN].decode()
    compile(text, backend, "exec")
    assert files["model.onnx"] == model.SerializeToString() and "def run_model(" in text and "model.onnx" in text


@pytest.mark.parametrize("backend", [*ONNX, *PROGRAMS])
def test_what_a_finding_contains_is_formatted_and_names_nothing_that_it_lacks(backend: str, tmp_path: Any) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    if backend in ONNX:
        files = of_model(of_size(graph("y = Relu(x)"), 4, 6), {"x": x}, [x], backend)
    else:
        files = convolved(
            {"torch-cpu": "torch", "inductor-cpu": "torch", "litert-cpu": "tensorflow"}.get(backend, backend[:-4]),
            backend,
        )
    finding_trial.write_finding_files(
        {name: data for name, data in files.items() if name in (RUN, "compare.py", PROGRAM)}, tmp_path
    )
    ruff = ["ruff", "check", "--isolated", "--select", "F", str(tmp_path)]
    formatted = [
        "ruff",
        "format",
        "--isolated",
        "--line-length",
        "120",
        "--config",
        "format.skip-magic-trailing-comma=true",
    ]
    for command in (ruff, [*formatted, "--diff", str(tmp_path)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, files[RUN].decode().splitlines())) <= 120


def test_nothing_of_a_setting_becomes_code() -> None:
    hostile = '\');import os;os.abort()#\n"""@data@\\'
    for value in (hostile, {hostile: [hostile]}, (hostile,), "it's", 'say "no"', "a\\"):
        assert eval(_format_script_literal(value)) == value
    with pytest.raises(NoProgram):
        _format_script_literal(object())


def test_ncnn_asks_pnnx_which_axis_is_the_batchs() -> None:
    from tasks.backends.ncnn import find_ncnn_batch_axis

    code = (
        'ex.input("in0", ncnn.Mat(in0.numpy(), batch_index=0).clone())\nex.input("in10", ncnn.Mat(in10.numpy(), '
        'batch_index=2).clone())\n_, out0 = ex.extract("out0")\nout.append(torch.from_numpy(out0.numpy(batch_index=1)))'
    )
    assert [find_ncnn_batch_axis(code, name) for name in ("in0", "in1", "in10", "out0", "out1")] == [0, 233, 2, 1, 233]


def called(backend: str, op: str, call: Any, x: np.ndarray, expected: np.ndarray, **kwargs: Any) -> dict[str, bytes]:
    """The finding of a call of one tensor whose expected output is told; the gradient of it with ``cotangent``."""
    tree = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]}
    kind = call.framework if isinstance(call, counterparts.Counterpart) else "torch"
    cotangent = kwargs.pop("cotangent", None)
    form = Form(kind, op, x.dtype.name, [x], call=call, args=tree, kwargs=encode_argument_tree(kwargs))
    if cotangent is not None:
        form = replace(form, arrays=[x, cotangent], check="backward", wrt=(0,), cotangents=(1,))
    reference = expected.astype(np.float64) if x.dtype.kind not in "bu" else expected
    return written(form, [Leaf(x.dtype.name, expected.shape, reference)], backend)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_finding_calls_torch_by_a_public_name(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3).astype(get_numpy_dtype(dtype))
    right = torch.nn.functional.softmax(torch.tensor(x.astype(np.float64)), dim=0).numpy()
    for expected, code in ((right, 0), (right + 0.25, 1)):
        files = called("torch-cpu", "torch:softmax", torch.nn.functional.softmax, x, expected, dim=0)
        assert exit_code(files) == code and b"softmax" in files[PROGRAM]


@pytest.mark.parametrize(
    ("x", "right", "wrong"),
    [
        (np.array([True, False]), [1.0, 0.0], [0.0, 0.0]),
        (np.float32([-np.inf, np.nan, 2.0]), [-np.inf, np.nan, 2.0], [0.0, np.nan, 2.0]),
        (np.uint8([250, 3]), [250, 3], [250, 4]),
    ],
)
def test_a_finding_compares_truth_values_infinities_and_small_integers(x: Any, right: Any, wrong: Any) -> None:
    torch = pytest.importorskip("torch")
    for expected, code in ((right, 0), (wrong, 1)):
        reference = np.array(expected, np.float64 if x.dtype == np.float32 else x.dtype)
        assert exit_code(called("torch-cpu", "torch:clone", torch.clone, x, reference)) == code


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
    assert issue.write_issue_title(record) == f"[b] Celu of float16 with alpha=0.01: {told}"


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
    assert issue.write_issue_title(record) == f"[b] Add (dynamic shapes): {told}"
    flaky = issue.write_issue_title(record | {"flaky": True})
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
    rounded, whole = (issue.write_issue({**record, "results": [dtype]}, "") for dtype in ("bfloat16", "bool"))
    assert rounded.startswith("# [b] Cast of float32 to bfloat16: wrong result\n")
    assert "1 ulps off; the limit is 0.5." in rounded and "ulps" not in whole
    assert (
        whole.startswith("# [b] Cast: wrong result\n")
        and "This would give the same result: cut off, not rounded." in whole
    )
    told = issue.write_issue({**record, "results": ["bool"], "known": "cut off", "link": "https://x/1"}, "")
    assert "\n\nKnown cause: cut off. Published: https://x/1\n\n" in told and "Known cause" not in whole
    assert "| dynamic shapes | correct |" in whole and "without Cast.to" not in whole


def test_a_finding_of_a_gradient_computes_it() -> None:
    torch = pytest.importorskip("torch")
    x, cotangent = np.float32([-1, 0.5, 3]), np.float32([1, -2, 0.25])
    right = cotangent / (1 + np.exp(-x.astype(np.float64)))
    for expected, code in ((right, 0), (right * 1.01, 1)):
        softplus = torch.nn.functional.softplus
        files = called("torch-cpu", "torch:nn.functional.softplus", softplus, x, expected, cotangent=cotangent)
        assert exit_code(files) == code and b"autograd.grad" in files[RUN]


def convolved(framework: str, backend: str, off: float = 0.0) -> dict[str, bytes]:
    """The finding of a convolution whose right values are moved by so much, its cut and what is taken of it."""
    torch = pytest.importorskip("torch")
    model = graph(
        "a = Conv(x, w; strides=[2, 2])", "b = Relu(a)", "y = Softmax(b; axis=1)", w=np.ones((2, 3, 2, 2), np.float32)
    )
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 4, 4)).astype(np.float32)
    form = complete_torch_form(Form(framework, "fuzz:graph", "float32", [x], model=model.SerializeToString()))
    form = replace(form, args={"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]})
    weight = torch.ones(2, 3, 2, 2, dtype=torch.float64)
    right = torch.conv2d(torch.from_numpy(x).double(), weight, stride=2).relu().softmax(1).numpy() + off
    return written(form, [Leaf("float32", right.shape, right)], backend)


@pytest.mark.parametrize("backend", ["torch-cpu", "inductor-cpu"])
def test_a_graph_in_functions_of_torch_is_written_down(backend: str) -> None:
    for off, code in ((0.0, 0), (0.01, 1)):
        files = convolved("torch", backend, off)
        assert exit_code(files) == code
        assert b"torch.ops.aten.conv2d.default" in files[PROGRAM]
        assert (b'compiled={"backend": "inductor"' in files[RUN]) is (backend == "inductor-cpu")


@pytest.mark.parametrize(
    ("framework", "backend", "says"),
    [
        ("jax", "jax-cpu", "lax.conv_general_dilated("),
        ("tensorflow", "tensorflow-cpu", "tf.nn.convolution("),
        ("paddle", "paddle-cpu", "F.conv2d("),
        ("mlx", "mlx-cpu", "mx.conv_general("),
    ],
)
def test_a_graph_is_written_down_in_the_calls_of_a_framework(framework: str, backend: str, says: str) -> None:
    text = convolved(framework, backend)[PROGRAM].decode()
    compile(text, framework, "exec")
    assert says in text and "v1 = op_conv2d(x[0], v0" in text, text
    assert "import torch" not in text and "tasks" not in text


@pytest.mark.parametrize(
    ("line", "status", "shown"),
    [
        ("raise SystemExit(int(wrong))", "wrong", True),
        ("import no_such_module", "wrong", False),
        ("raise SystemExit(1)", "crash", False),
        ("if wrong: __import__('os').abort()", "crash", True),
        ("if wrong: __import__('os')._exit(3)", "crash", True),
        ("raise ValueError('there is no kernel for it')", "error", True),
        ("import no_such_module", "error", False),
        ("if wrong: __import__('time').sleep(60)", "timeout", True),
        ("raise SystemExit(1)", "timeout", False),
    ],
)
def test_what_fails_only_sometimes_is_run_several_times(line: str, status: str, shown: bool, tmp_path: Any) -> None:
    error = {"error": "there is no kernel for it", "error_type": "ValueError"} if status == "error" else {"error": ""}
    row = {"status": status, "kind": "exit code 3" * ("(3)" in line), **error}
    count = f"import pathlib\npath = pathlib.Path({str(tmp_path / 'runs')!r})\n"
    count += (
        "runs = len(path.read_text()) if path.exists() else 0\npath.write_text('x' * (runs + 1))\nwrong = runs % 2\n"
    )
    good, said = shows(count + line, row, times=3, timeout_s=3.0)
    assert good is shown
    if "wrong" in line:
        assert said.endswith(f"it {'hung' if status == 'timeout' else 'failed'} 1 of 3 times")


@pytest.mark.parametrize(
    ("backend", "framework", "says"),
    [
        ("jax", "jax", "jnp.divide"),
        ("paddle", "paddle", "paddle.divide"),
        ("tensorflow", "tensorflow", "tf.divide"),
        ("litert", "tensorflow", "tf.divide"),
    ],
)
def test_a_finding_calls_a_framework_that_is_not_here(backend: str, framework: str, says: str) -> None:
    call = counterparts.find_counterpart(framework, "torch:div", "no_rounding_mode", "float32")
    x = np.ones((2, 2), np.float32)
    files = called(f"{backend}-cpu", "torch:div", call, x, x, other=2.0)
    compile(files[PROGRAM], framework, "exec")
    assert says in files[PROGRAM].decode()
    assert ("TFLiteConverter" in files[RUN].decode()) is (backend == "litert")


def test_a_call_that_a_framework_does_not_take_is_not_written_down() -> None:
    sub, x = counterparts.find_counterpart("jax", "torch:sub", "", "float32"), np.ones(2, np.float32)
    with pytest.raises(NoProgram, match="has no alpha"):
        called("jax-cpu", "torch:sub", sub, x, x, other=2.0, alpha=2)


def test_every_expression_of_the_table_can_be_written_down() -> None:
    """But for those that name another op's counterpart."""
    lacking = []
    for label, row in counterparts.index_counterpart_rows().items():
        for framework in counterparts.table.FRAMEWORKS:
            if text := getattr(row, framework):
                made = counterparts.Counterpart(framework, label, row.signature, text)
                try:
                    compile("\n".join(in_framework.write_framework_words({"op": made})), label, "exec")
                except NoProgram as error:
                    lacking.append(str(error))
    assert len(lacking) < 10, lacking


def test_a_finding_on_ort_takes_and_gives_strings() -> None:
    pytest.importorskip("onnxruntime")
    words = np.array(["1.5", "-2.25"], object)
    for kinds, given, right in (((8, 1), words, np.array([1.5, -2.25])), ((1, 8), np.float32([1.5, -2.25]), words)):
        inputs, outputs = ([onnx.helper.make_tensor_value_info(k, t, [2])] for k, t in zip("xy", kinds))
        node = onnx.helper.make_node("Cast", ["x"], ["y"], to=kinds[1])
        graph_of_one = onnx.helper.make_graph([node], "one", inputs, outputs)
        model = onnx.helper.make_model(graph_of_one, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
        for kind, expected, code in (
            ("numbers", right, 0),
            ("numbers", right[::-1].copy(), 1),
            ("nondeterministic", right, 0),
        ):
            form = Form("onnx", "onnx:Cast", "float32", [given], model=model.SerializeToString())
            leaf = Leaf("str" if kinds[1] == 8 else "float32", (2,), expected)
            assert exit_code(written(form, [leaf], "ort-cpu", kind=kind, op_class="exact", limit=0.5)) == code


def test_an_error_without_words_is_told_by_its_type() -> None:
    row = {"status": "error", "error": "", "kind": "", "error_type": "AssertionError"}
    assert shows("assert 1 == 2", row)[0] and not shows("raise TypeError('of another kind')", row)[0]


def own_run(tmp_path: Any, body: str, check: str) -> str:
    """A run.py whose ``run`` has this body."""
    (tmp_path / "checks.py").write_text(open(finding_checks.__file__).read())
    head = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport numpy as np\nimport checks\n\n"
    lines = body.replace("\n", "\n    ")
    patch = "checks.__file__ = __file__\n"
    return f"{head}def run(inputs, threads=1):\n    {lines}\n\n{patch}sys.exit(checks.{check})\n"


@pytest.mark.parametrize(
    ("threads", "body", "wrong"),
    [
        ([1, 2, 4], "return [np.ones(2)]", False),
        ([1, 2, 4], "return [np.array(threads)]", True),
        ([1, 2, 4], "return [np.ones(2) if threads < 4 else sys.exit(3)]", True),
        ([1, 2, 4], "print(threads)\nreturn [np.ones(2)]", False),
        ([1, 1], "import random\nprint(random.random())\nreturn [np.ones(2)]", False),
        ([1, 1], "return [np.array(['a', 'b'], object)]", False),
        ([1, 1], "return [np.array([str(hash('a'))], object)]", True),
        ([1, 1], "return [np.array(hash('a'))]", True),
    ],
)
def test_a_finding_compares_processes_and_numbers_of_threads(
    threads: list[int], body: str, wrong: bool, tmp_path: Any
) -> None:
    text = own_run(tmp_path, body, f"compare_processes(run, [], {threads})").replace(
        "checks.__file__", "checks.__dict__['__file__']"
    )
    good, said = shows(text, {"status": "wrong", "kind": "threads"})
    assert good is wrong, said


def test_a_finding_of_other_numbers_of_threads_asks_the_runtime_for_them() -> None:
    model, x = of_size(graph("y = Relu(x)"), 4, 6), np.zeros((4, 6), np.float32)
    text = of_model(model, {"x": x}, [x], "ort-cpu", kind="threads")[RUN].decode()
    assert (
        "def run(inputs, threads=1):" in text
        and "threads=threads" in text
        and "compare_processes(run, inputs, [1, " in text
    )
    with pytest.raises(NoProgram, match="no number of threads"):
        of_model(model, {"x": x}, [x], "iree-cpu", kind="threads")


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
    said = "error: loc(callsite): expected sizes to be non-negative, but got -1"
    assert shows(f"raise ValueError({said!r})", row)[0]
    assert not shows("raise ValueError('see current operation: dispatch, tensor')", row)[0]


def test_a_finding_without_memory_shows_that() -> None:
    row = {
        "status": "oom",
        "error": "RESOURCE_EXHAUSTED; failed to allocate a buffer",
        "kind": "",
        "error_type": "ValueError",
    }
    said = shows("raise ValueError('RESOURCE_EXHAUSTED; failed to allocate a buffer')", row)
    assert said == (True, "shows the oom: it raises the same")
    assert not shows("raise ValueError('something else')", row)[0]


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("ort-cpu", x) for x in ("bfloat16", "float8_e5m2", "int4", "uint4", "int2", "uint2")),
        *(("openvino-cpu", x) for x in ("bfloat16", "float8_e5m2", "int4", "uint4", "float4_e2m1fn")),
    ],
)
def test_a_finding_gives_and_takes_dtypes_that_numpy_lacks(backend: str, dtype: str) -> None:
    """Five numbers: of those of less than a byte the last byte holds fewer."""
    pytest.importorskip("openvino" if backend.startswith("openvino") else "onnxruntime")
    x, own = np.array([1, 0, 0, 1, 1]).astype(get_numpy_dtype(dtype)), TABLE[dtype].onnx
    assert own is not None
    for kinds, given in (((own[1], 1), x), ((1, own[1]), x.astype(np.float32))):
        inputs, outputs = ([onnx.helper.make_tensor_value_info(k, t, [5])] for k, t in zip("xy", kinds))
        node = onnx.helper.make_node("Cast", ["x"], ["y"], to=kinds[1])
        graph_of_one = onnx.helper.make_graph([node], "one", inputs, outputs)
        opset = onnx.helper.make_opsetid("", 25 if TABLE[dtype].bits == 2 else 23)
        model = onnx.helper.make_model(graph_of_one, opset_imports=[opset], ir_version=12)
        result = np.dtype(np.float32) if kinds[1] == 1 else x.dtype
        right = x.astype(np.float64 if is_inexact_dtype(result.name) else result)
        for expected, code in ((right, 0), (1 - right, 1)):
            form = Form("onnx", "onnx:Cast", "float32", [given], model=model.SerializeToString())
            leaf = Leaf(result.name, (5,), expected.astype(right.dtype))
            assert exit_code(written(form, [leaf], backend, op_class="exact", limit=0.5)) == code


def test_a_backend_runs_a_model_as_its_finding_does() -> None:
    """Bit for bit: the function that is copied, and the backend's own program."""
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    model = of_size(graph("a = Softmax(x; axis=0)", "y = Tanh(a)"), 4, 6)
    form = Form("onnx", "onnx:test", "float32", [x], model=model.SerializeToString())
    for name in ("ort-cpu", "openvino-cpu"):
        pytest.importorskip({"ort-cpu": "onnxruntime", "openvino-cpu": "openvino"}[name])
        backend = BackendSpec.parse(name).create()
        backend.start()
        recipe: ProgramRecipe = backend.recipe(form)
        with finding_trial.write_trial_script({"model.onnx": form.model or b""}) as folder:
            (mine,) = recipe.run(str(folder / "model.onnx"), {"x": x}, **recipe.settings)
        assert np.asarray(mine).tobytes() == np.asarray(backend.build(form).run()[0]).tobytes()


@pytest.mark.parametrize("build", ["rocm7.2", "cu130", "xpu"])
def test_a_torch_of_one_kind_of_device_is_installed_from_its_own_index(
    monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    """It named the one of PyPI, which on a ROCm node is CUDA's."""
    monkeypatch.setattr(metadata, "version", lambda name: f"2.13.0+{build}")
    index, torch = finding_requirements.pin_module_requirements({"torch"})
    assert index == f"--extra-index-url=https://download.pytorch.org/whl/{build}" and torch == f"torch==2.13.0+{build}"
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    assert finding_requirements.pin_module_requirements({"torch"}) == ("torch==2.13.0",)
