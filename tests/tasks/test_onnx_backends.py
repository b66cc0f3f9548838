"""ONNX Runtime and OpenVINO on the CPU: true dtypes both ways, honest reasons, no silent change of device."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16, float4_e2m1fn, float8_e4m3fn, float8_e5m2, float8_e5m2fnuz, int2, int4, uint4

from tasks.arrays.low_bits import pack_low_bits, unpack_low_bits
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.backends import openvino as openvino_backend
from tasks.backends.onnxruntime import OnnxRuntime
from tasks.backends.openvino import OpenVino
from tasks.backends.shared.onnx_form import PROBE_MODEL, list_onnx_input_values, name_onnx_inputs
from tasks.model import Fallback, Form, Program, Unavailable, Unsupported

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def f32(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


BACKENDS = {"ort": OnnxRuntime, "openvino": OpenVino}


def tensor(name: str, element: int, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 21, **more: Any) -> bytes:
    graph = helper.make_graph(nodes, "test", inputs, outputs, **more)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(made.SerializeToString())


def unary(op: str, element: int, result: int | None = None, opset: int = 21, **attributes: Any) -> bytes:
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    return model([node], [tensor("x", element, ["n"])], [tensor("y", result or element, ["n"])], opset)


def build(runtime: str, onnx_model: bytes, *arrays: Any, args: Any = None) -> Program:
    backend = BACKENDS[runtime](f"{runtime}-cpu", "cpu", {})
    return backend.build(Form("onnx", "onnx:test", "float32", list(arrays), args=args, model=onnx_model))


def same(actual: Any, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("runtime", BACKENDS)
def test_a_probe_says_what_runs_and_in_which_precision(runtime: str) -> None:
    info = BACKENDS[runtime](f"{runtime}-cpu", "cpu", {}).probe()
    assert info.runtime_version[0].isdigit()
    assert info.compute_precision == ("float32" if runtime == "openvino" else "")


@pytest.mark.parametrize("runtime", BACKENDS)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8", "bool"])
def test_tensors_of_any_shape_keep_their_dtype(runtime: str, dtype: str, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    x.flags.writeable = False  # as a prepared case has it
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    concat = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    node = concat if shape else helper.make_node("Squeeze", ["x"], ["y"])
    program = build(runtime, model([node], [tensor("x", element, list(shape))], [tensor("y", element, None)]), x)
    same(program.run()[0], np.concatenate([x, x]) if shape else x)
    assert program.fallback is None


def test_bfloat16_is_added_in_its_own_dtype() -> None:
    x, y = np.array([1, 2.5, 256], bfloat16), np.array([2, 0.25, 1], bfloat16)
    add = model(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        [tensor("x", TensorProto.BFLOAT16, [3]), tensor("y", TensorProto.BFLOAT16, [3])],
        [tensor("z", TensorProto.BFLOAT16, [3])],
    )
    same(build("openvino", add, x, y).run()[0], x + y)
    with pytest.raises(Unsupported, match="Could not find an implementation for Add"):
        build("ort", add, x, y)


def test_passes_of_the_optimiser_can_be_left_out_one_by_one() -> None:
    weights = [
        numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (4, 5)), ("b", (5,)))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    given, made = tensor("x", TensorProto.FLOAT, [3, 4]), tensor("y", TensorProto.FLOAT, [3, 5])
    x = np.ones((3, 4), np.float32)
    form = Form("onnx", "onnx:test", "float32", [x], model=model(nodes, [given], [made], initializer=weights))
    backend = OnnxRuntime("ort-cpu", "cpu", {})
    settings = ("", "without MatMulAddFusion,NchwcTransformer", "without NchwcTransformer", "level disable")
    placed = [backend.at(setting).build(form).placement for setting in settings]
    assert ["Gemm" in x for x in placed] == [True, False, True, False]
    assert {"NchwcTransformer", "MatMulAddFusion"} <= set(backend.passes())
    assert not backend.at("level disable").passes()


LOW = [bfloat16, float8_e4m3fn, float8_e5m2, int4, uint4, float4_e2m1fn]
ORT_LOW = [bfloat16, float8_e4m3fn, float8_e5m2, float8_e5m2fnuz, int4, uint4, int2]


@pytest.mark.parametrize(
    ("runtime", "dtype"),
    [("ort", x) for x in ORT_LOW] + [("openvino", x) for x in LOW],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_low_bit_dtypes_go_in_and_come_out_in_their_own_bytes(runtime: str, dtype: Any) -> None:
    values = np.array([1, 0, -2, 1, -1]) if dtype is not uint4 else np.array([1, 0, 15, 1, 9])
    x = values.astype(np.float32)
    low = x.astype(dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    opset = 25 if dtype is int2 else 23 if dtype is float4_e2m1fn else 21
    there = build(runtime, unary("Cast", TensorProto.FLOAT, element, opset, to=element), x)
    same(there.run()[0], low)
    back = build(runtime, unary("Cast", element, TensorProto.FLOAT, opset, to=TensorProto.FLOAT), low)
    same(back.run()[0], low.astype(np.float32))


@pytest.mark.parametrize("dtype", [int4, uint4, int2, float4_e2m1fn])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_packing_is_undone_by_unpacking(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.resize(np.array([1, 0, -1, -2, 1, 0]), shape).astype(np.float32).astype(dtype)
    same(unpack_low_bits(pack_low_bits(x), np.dtype(dtype).name, shape), x)


def test_packing_puts_the_first_element_into_the_lowest_bits() -> None:
    assert pack_low_bits(np.array([1, 2, 3], uint4)).tolist() == [0x21, 0x03]


@pytest.mark.parametrize("runtime", BACKENDS)
def test_strings_pass_through(runtime: str) -> None:
    x = np.array(["a", "", "größe"], dtype=object)
    gather = model(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        [tensor("x", TensorProto.STRING, [3]), tensor("i", TensorProto.INT64, [2])],
        [tensor("y", TensorProto.STRING, [2])],
    )
    assert build(runtime, gather, x, np.array([2, 0])).run()[0].tolist() == ["größe", "a"]


def sequence(name: str) -> Any:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def test_sequences_are_lists_in_and_flat_out() -> None:
    a, b = f32([1, 2]), f32([3])
    insert = model(
        [helper.make_node("SequenceInsert", ["s", "x"], ["y"])],
        [sequence("s"), tensor("x", TensorProto.FLOAT, [1])],
        [sequence("y")],
    )
    tree = ([TensorSpec(0)], TensorSpec(1))
    for args in (tree, encode_argument_tree(tree, lambda x: None)):
        out = build("ort", insert, a, b, args=args).run()
        assert [x.tolist() for x in out] == [[1, 2], [3]]
    assert [x.tolist() for x in build("ort", insert, b, args=([], TensorSpec(0))).run()] == [[3]]
    with pytest.raises(Unsupported, match="sequence"):
        build("openvino", insert, a, b, args=tree)


def test_an_empty_optional_is_none() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    has = model(
        [helper.make_node("OptionalHasElement", ["x"], ["y"])],
        [helper.make_value_info("x", kind)],
        [tensor("y", TensorProto.BOOL, [])],
    )
    assert build("ort", has, args=(None,)).run()[0].item() is False
    assert build("ort", has, f32([1, 2]), args=(TensorSpec(0),)).run()[0].item() is True
    with pytest.raises(Unsupported, match="empty optional"):
        build("openvino", has, args=(None,))


@pytest.mark.parametrize("runtime", BACKENDS)
def test_strided_tensors_are_read_through_their_view(runtime: str) -> None:
    storage = np.arange(6, dtype=np.float32)
    spec = TensorSpec(0, shape=(2,), strides=(3,), offset=1)
    program = build(runtime, unary("Neg", TensorProto.FLOAT), storage, args=(spec,))
    assert program.run()[0].tolist() == [-1, -4]


@pytest.mark.parametrize("runtime", BACKENDS)
def test_unused_inputs_do_not_shift_the_others(runtime: str) -> None:
    div = model(
        [helper.make_node("Div", ["z", "x"], ["y"])],
        [tensor(x, TensorProto.FLOAT, [1]) for x in ("x", "unused", "z")],
        [tensor("y", TensorProto.FLOAT, [1])],
    )
    assert build(runtime, div, *(f32([x]) for x in (2, 5, 8))).run()[0].tolist() == [4]


def test_an_input_behind_a_removed_node_is_still_found() -> None:
    dropout = model(
        [helper.make_node("Dropout", ["x", "r"], ["y"])],
        [tensor("x", TensorProto.FLOAT, [2]), tensor("r", TensorProto.FLOAT, [])],
        [tensor("y", TensorProto.FLOAT, [2])],
    )
    assert build("openvino", dropout, f32([1, 2]), np.array(0.5, np.float32)).run()[0].tolist() == [1, 2]


def test_a_graph_input_with_a_default_is_no_input_of_the_form() -> None:
    default = helper.make_tensor("b", TensorProto.FLOAT, [1], [3.0])
    add = model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [tensor("a", TensorProto.FLOAT, [1]), tensor("b", TensorProto.FLOAT, [1])],
        [tensor("y", TensorProto.FLOAT, [1])],
        initializer=[default],
    )
    assert list(name_onnx_inputs(Form("onnx", "Add", "float32", [f32([1])], model=add))) == ["a"]
    for runtime in BACKENDS:
        assert build(runtime, add, f32([1])).run()[0].tolist() == [4]


@pytest.mark.parametrize("runtime", BACKENDS)
def test_a_wrong_number_of_inputs_is_an_error_of_the_form(runtime: str) -> None:
    with pytest.raises(ValueError, match="1 inputs .x., the form 2"):
        build(runtime, unary("Neg", TensorProto.FLOAT), f32([1]), f32([1]))


def test_an_input_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        list_onnx_input_values(Form("onnx", "onnx:test", "float32", [], args=[3], model=PROBE_MODEL))


@pytest.mark.parametrize("runtime", BACKENDS)
def test_results_outlive_the_program_and_its_next_run(runtime: str) -> None:
    x = f32([1, 2])
    program = build(runtime, unary("Identity", TensorProto.FLOAT), x)
    first = program.run()[0]
    again = program.run()[0]
    again[:] = 0
    del program
    assert first.tolist() == [1, 2]
    assert x.tolist() == [1, 2]


# -- what is not implemented --------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", BACKENDS)
def test_an_unknown_op_is_unsupported_in_the_runtimes_words(runtime: str) -> None:
    with pytest.raises(Unsupported, match="NoSuchOp"):
        build(runtime, unary("NoSuchOp", TensorProto.FLOAT), f32([1]))


def test_an_opset_or_ir_version_of_the_future_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="under development"):
        build("ort", unary("Neg", TensorProto.FLOAT, opset=99), f32([1]))
    future = onnx.load_from_string(unary("Neg", TensorProto.FLOAT))
    future.ir_version = 99
    with pytest.raises(Unsupported, match="IR version"):
        build("ort", future.SerializeToString(), f32([1]))


def test_what_a_kernel_does_not_implement_it_may_say_as_it_runs() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", dilations=[2])
    x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 2), np.float32)
    inputs = [tensor(name, TensorProto.FLOAT, list(a.shape)) for name, a in (("x", x), ("w", w))]
    program = build("ort", model([node], inputs, [tensor("y", TensorProto.FLOAT, [1, 1, None])]), x, w)
    with pytest.raises(Exception, match="Dilation not supported for AutoPadType") as caught:
        program.run()
    assert OnnxRuntime("ort-cpu", "cpu", {}).is_unsupported(caught.value)


def test_types_that_the_specification_forbids_are_told_from_missing_kernels() -> None:
    with pytest.raises(Unsupported, match="^invalid graph: .*bfloat16"):
        build("ort", unary("Acos", TensorProto.BFLOAT16, opset=7), np.array([1], bfloat16))


@pytest.mark.parametrize("runtime", BACKENDS)
def test_damaged_bytes_are_an_error_not_unsupported(runtime: str) -> None:
    with pytest.raises(Exception) as caught:
        build(runtime, PROBE_MODEL[:20], f32([1, 2]))
    assert not isinstance(caught.value, (Unsupported, Fallback, Unavailable))


# -- where it runs ------------------------------------------------------------------------------------------


def test_a_missing_provider_is_unavailable_and_names_those_there_are() -> None:
    with pytest.raises(Unavailable, match="no CUDAExecutionProvider; it has .*CPUExecutionProvider"):
        OnnxRuntime("ort-cuda", "cuda", {}).probe()
    with pytest.raises(Unavailable, match="nosuchExecutionProvider"):
        OnnxRuntime("ort-nosuch", "nosuch", {}).probe()


def test_a_missing_device_is_unavailable_and_names_those_there_are() -> None:
    with pytest.raises(Unavailable, match="no device NPU; it finds .*CPU"):
        OpenVino("openvino-npu", "npu", {}).probe()


@pytest.mark.parametrize(("runtime", "module"), [("ort", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_package_is_unavailable(runtime: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unavailable, match=f"{module} cannot be imported"):
        BACKENDS[runtime](f"{runtime}-cpu", "cpu", {}).probe()


def test_a_provider_that_leaves_its_nodes_to_the_cpu_is_never_taken_for_the_device() -> None:
    # Azure's provider is listed everywhere and runs no node of the ONNX domain.
    import onnxruntime

    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no provider that takes nothing")
    backend = OnnxRuntime("ort-azure", "azure", {})
    with pytest.raises(Unavailable, match="fallback to CPU EP has been explicitly disabled"):
        backend.probe()
    with pytest.raises(Fallback, match="AzureExecutionProvider"):
        backend.build(Form("onnx", "onnx:Add", "float32", [np.ones(2, np.float32)], model=PROBE_MODEL))


def test_the_reason_of_a_library_that_cannot_be_loaded_is_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # ORT writes it to stderr from C++ and then raises an error about something else.
    said = b"[E:onnxruntime] FAIL : Failed to load library /x/libprovider_cuda.so with error: libcublasLt.so.13: no such file\n"

    def broken(self: OnnxRuntime, form: Form) -> Program:
        os.write(2, said)
        raise Fallback("nodes that are assigned to the default CPU EP")

    monkeypatch.setattr(OnnxRuntime, "build", broken)
    with pytest.raises(Unavailable, match="libprovider_cuda.so cannot be loaded: libcublasLt.so.13: no such file$"):
        OnnxRuntime("ort-cpu", "cpu", {}).probe()


def test_a_session_on_another_provider_is_said_to_have_fallen_back() -> None:
    backend = OnnxRuntime("ort-cpu", "cpu", {})
    backend.probe()
    backend._provider = "OtherExecutionProvider"
    session = type("Session", (), {"get_providers": lambda self: ["CPUExecutionProvider"]})()
    assert (
        backend._placement(session, PROBE_MODEL)[1]
        == "asked for OtherExecutionProvider, the session has CPUExecutionProvider"
    )


def test_the_placement_names_the_nodes_that_ran() -> None:
    assert build("ort", PROBE_MODEL, np.ones(2, np.float32)).placement == "CPUExecutionProvider: 1 Add"
    assert build("openvino", PROBE_MODEL, np.ones(2, np.float32)).placement == "CPU"


def test_openvino_computes_in_float32_unless_told_otherwise() -> None:
    assert "inference_precision_hint=f32" in build("openvino", PROBE_MODEL, np.ones(2, np.float32)).flags
    asked = OpenVino("openvino-bf16", "cpu", {"inference_precision": "bf16"})
    info = asked.probe()
    program = asked.build(Form("onnx", "onnx:Add", "float32", [np.ones(2, np.float32)], model=PROBE_MODEL))
    # A CPU without bfloat16 units answers float32: then the flags say that it is not what was asked.
    if info.compute_precision == "bfloat16":
        assert "inference_precision_hint=bf16" in program.flags
    else:
        assert "asked:inference_precision_hint=bf16" in program.flags


class PlantedNpu:
    """An NPU beside OpenVINO's CPU, whose memory and kernels it has: as Intel's, it computes in float16 and refuses
    float32."""

    def __init__(self, core: Any) -> None:
        self.core, self.available_devices = core, ["CPU", "NPU"]
        self.said = {"FULL_DEVICE_NAME": "Intel(R) AI Boost", "OPTIMIZATION_CAPABILITIES": ["FP16", "INT8"]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def get_property(self, target: str, name: str) -> Any:
        return self.said.get(name) or self.core.get_property("CPU", name)

    def compile_model(self, model: Any, target: str, asked: dict[str, Any]) -> Any:
        if asked.get("INFERENCE_PRECISION_HINT") == "f32":
            raise RuntimeError("NPU does not take the inference precision f32")
        return PlantedModel(self.core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}))


class PlantedModel:
    """What it has compiled: all is the CPU's but what it says of itself."""

    def __init__(self, compiled: Any) -> None:
        import openvino

        self.compiled = compiled
        self.said = {"INFERENCE_PRECISION_HINT": openvino.Type.f16, "EXECUTION_DEVICES": ["NPU"]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def get_property(self, name: str) -> Any:
        return self.said.get(name) or self.compiled.get_property(name)


def test_an_npu_is_asked_for_no_float32_and_its_rows_declare_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = PlantedNpu(openvino_backend._open_openvino_core())
    monkeypatch.setattr(openvino_backend, "_open_openvino_core", lambda: npu)
    info = OpenVino("openvino-npu", "npu", {}).probe()
    assert (info.device, info.compute_precision, info.unasked) == ("Intel(R) AI Boost", "float16", True)
    with pytest.raises(Unavailable, match="does not take the inference precision f32"):
        OpenVino("openvino-npu", "npu", {"inference_precision": "f32"}).probe()


@pytest.mark.parametrize("runtime", BACKENDS)
def test_an_unknown_option_is_named(runtime: str) -> None:
    with pytest.raises(ValueError, match="unknown option 'fast'"):
        BACKENDS[runtime](f"{runtime}-cpu", "cpu", {"fast": True})


def test_options_of_a_provider_are_over_its_defaults() -> None:
    assert OnnxRuntime("ort-cuda", "cuda", {})._flags() == "cudnn_conv_algo_search=HEURISTIC use_tf32=0"
    fast = OnnxRuntime("ort-cuda", "cuda", {"tf32": True})
    assert (fast._flags(), fast._compute_precision()) == ("cudnn_conv_algo_search=HEURISTIC use_tf32=1", "tfloat32")
    gpu = OnnxRuntime("ort-openvino", "openvino", {"provider_options": {"device_type": "GPU"}})
    assert (gpu.vendor, gpu.device_vendor, gpu.resource) == ("Intel", "intel", "GPU")
    assert OnnxRuntime("ort-openvino", "openvino", {}).resource == "CPU"


def test_errors_that_end_a_device_are_known() -> None:
    backend = OnnxRuntime("ort-cuda", "cuda", {})
    assert backend.is_sticky(RuntimeError("CUDA failure 700: an illegal memory access was encountered"))
    assert not backend.is_sticky(RuntimeError("Non-zero status code returned while running Add node"))
    assert backend.is_out_of_memory(RuntimeError("Failed to allocate memory for requested buffer of size 8"))


def test_neither_backend_imports_its_runtime_or_onnx_by_itself() -> None:
    code = (
        "import sys, tasks.backends.onnxruntime, tasks.backends.openvino\n"
        "sys.exit(any(x in sys.modules for x in ('onnx', 'onnxruntime', 'openvino', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
