"""MNN, ncnn and tinygrad: what of them can be tested without their environments, and what a model says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tasks.backends import BackendSpec, ncnn
from tasks.backends.mnn import _make_mnn_input, _raise_mnn_failure
from tasks.backends.shared import onnx_graph
from tasks.backends.shared.native_output import capture_native_output
from tasks.backends.shared.onnx_form import PROBE_MODEL
from tasks.model import Form, Unsupported

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def made() -> bytes:
    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["g"]),
        helper.make_node("FastGelu", ["g"], ["y"], domain="com.microsoft"),
        helper.make_node("SequenceConstruct", ["y", "w"], ["s"]),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [
            tensor("x", TensorProto.BFLOAT16, ["n", 3]),
            tensor("w", TensorProto.FLOAT, [2]),
            tensor("i", TensorProto.INT64, []),
        ],
        [tensor("y", TensorProto.FLOAT, None), helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.zeros(2, np.float32), "w")],
    )
    return bytes(helper.make_model(graph).SerializeToString())


def test_a_graph_is_read_without_onnx() -> None:
    graph = onnx_graph.read_onnx_graph(made())
    value = onnx_graph.OnnxValue
    assert graph.inputs == (
        value("x", "tensor", "bfloat16", (None, 3)),
        value("i", "tensor", "int64", ()),
    )  # w has a default
    assert graph.outputs == (value("y", "tensor", "float32", None), value("s", "sequence", "float32", None))
    assert [x.op for x in graph.nodes] == ["Gather", "com.microsoft.FastGelu", "SequenceConstruct"]
    assert graph.nodes[2].inputs == ("y", "w")


@pytest.mark.parametrize("cut", [5, 40, 100])
def test_damaged_bytes_are_named(cut: int) -> None:
    with pytest.raises(ValueError, match="truncated|no protobuf"):
        onnx_graph.read_onnx_graph(made()[:-cut])


def test_what_python_and_c_print_is_captured_and_then_no_more() -> None:
    code = """
import ctypes, os, sys
from tasks.backends.shared.native_output import capture_native_output
said = []
try:
    with capture_native_output(said):
        print("from python")
        ctypes.CDLL(None).printf(b"from C\\n")
        os.write(2, b"to stderr\\n")
        raise KeyError
except KeyError:
    pass
print("after", sorted("".join(said).split("\\n")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "after ['', 'from C', 'from python', 'to stderr']\n"
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["mnn-cpu", "ncnn-cpu", "tinygrad-cpu"])
def test_an_unknown_option_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown option 'fast'; it takes \w+"):
        BackendSpec.parse(name, options={"fast": True}).create()


@pytest.mark.parametrize(
    ("name", "label", "resource"),
    [
        ("tinygrad-cpu", "", "CPU"),
        ("tinygrad-cl", "", "CPU"),
        ("tinygrad-cuda", "nvidia", "GPU"),
        ("tinygrad-amd", "amd", "GPU"),
        ("tinygrad-metal", "apple", "GPU"),
        ("mnn-cpu", "", "CPU"),
        ("ncnn-cpu", "", "CPU"),
    ],
)
def test_a_backend_says_whose_device_it_needs(name: str, label: str, resource: str) -> None:
    backend = BackendSpec.parse(name).create()
    assert (backend.device_vendor, backend.resource) == (label, resource)
    assert all("==" in x for x in backend.packages)


def test_mnn_takes_integers_that_its_int32_holds() -> None:
    array, dtype = _make_mnn_input("i", np.array([-1, 2**31 - 1]))
    assert (array.dtype, array.tolist(), dtype) == (np.int32, [-1, 2**31 - 1], "int")
    array, dtype = _make_mnn_input("b", np.array([True, False]))
    assert (array.dtype, array.tolist(), dtype) == (np.int32, [1, 0], "int")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([2**31]), "does not fit into int32"),
        (np.zeros(2), "no tensors of float64"),
        (np.zeros(2, bfloat16), "no tensors of bfloat16"),
    ],
    ids=["int64", "float64", "bfloat16"],
)
def test_mnn_is_not_given_what_it_would_change(value: Any, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        _make_mnn_input("x", value)


def test_mnn_is_taken_by_its_word() -> None:
    with pytest.raises(Unsupported, match="converter: These Op Not Support: ONNX::Det$"):
        _raise_mnn_failure(
            "MNN's converter",
            ["Start to Convert\n[12:00:01] :220: These Op Not Support: ONNX::Det \nConverted Failed!\n"],
        )
    with pytest.raises(Unsupported, match="code=2"):
        _raise_mnn_failure("MNN", ["Create execution error : 7\ncode=2 in onForward, 666\n"])
    with pytest.raises(RuntimeError, match="code=3"):  # a shape that it cannot compute is an error of its own
        _raise_mnn_failure("MNN", ["Compute Shape Error for y\ncode=3 in onForward, 666\n"])


SCRIPT = """
        with net.create_extractor() as ex:
            ex.input("in1", ncnn.Mat(in1.numpy(), batch_index=233).clone())
            ex.input("in0", ncnn.Mat(in0.numpy(), batch_index=0).clone())

            _, out0 = ex.extract("out0")
            out.append(torch.from_numpy(out0.numpy(batch_index=0)))
            _, out1 = ex.extract("out1")
            out.append(torch.from_numpy(out1.numpy(batch_index=1)))
"""


def test_ncnn_is_given_the_batch_where_its_converter_put_it() -> None:
    assert ncnn._read_batch_axes(SCRIPT) == ([("in0", 0), ("in1", 233)], [("out0", 0), ("out1", 1)])


def test_the_layers_of_a_param_file() -> None:
    assert ncnn._list_ncnn_layers("7767517\n2 2\nInput   in0  0 1 in0\nReLU relu_0 1 1 in0 out0\n") == ["Input", "ReLU"]


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        ("float16", (2,), "only computes float32 tensors, not float16"),
        ("float32", (), "no 0-d"),
        ("float32", (2, 0), "no empty"),
        ("float32", (1,) * 6, "up to 4 axes"),
    ],
)
def test_ncnn_is_not_given_what_its_mat_cannot_hold(dtype: str, shape: tuple[int, ...], words: str) -> None:
    model = onnx.load_from_string(PROBE_MODEL)
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
    )
    backend = BackendSpec.parse("ncnn-cpu").create()
    with pytest.raises(Unsupported, match=words):
        backend.build(Form("onnx", "Add", dtype, [np.zeros(shape, dtype)], model=model.SerializeToString()))


ADD_AND_REFUSE = """
import numpy as np
from tasks.backends import BackendSpec
from tasks.backends.shared.onnx_form import PROBE_MODEL
from tasks.model import Form, Unsupported
backend = BackendSpec.parse("mnn-cpu").create()
print(backend.probe().runtime_version)
x = np.array([1.5, -2], np.float32)
program = backend.build(Form("onnx", "Add", "float32", [x], model=PROBE_MODEL))
first, second = program.run()[0], program.run()[0]
assert first.tolist() == [3, -4] and first.dtype == np.float32 and not np.shares_memory(first, second)
try:
    backend.build(Form("onnx", "Add", "float32", [x], model=PROBE_MODEL.replace(b"Add", b"Foo")))
except Unsupported as error:
    print(error)
"""


def test_mnn_converts_and_runs_in_its_own_environment() -> None:
    from farm.fleet import envs
    from tasks.cache import default_cache

    spec = BackendSpec.parse("mnn-cpu")
    try:
        python = envs.build_interpreter_of_backend(spec, default_cache()).python
    except envs.EnvError as error:
        pytest.skip(str(error))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [python, "-c", ADD_AND_REFUSE],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    version, reason = done.stdout.splitlines()
    assert version == "3.6.1"
    assert reason == "MNN's converter: These Op Not Support: ONNX::Foo"
    assert done.stderr == ""


def test_the_capture_keeps_what_it_was_given() -> None:
    said = ["before"]
    with capture_native_output(said):
        pass
    assert said == ["before", ""]
