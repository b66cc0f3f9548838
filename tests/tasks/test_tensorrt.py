"""TensorRT's backend against a stand-in for its module and a GPU: precisions, words, order and types of outputs."""

from __future__ import annotations

import ctypes
import re
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from farm.reproduction.finding_folder import RUN, FindingCase, write_finding_folder
from tasks.backends import tensorrt
from tasks.backends.shared import artefacts, onnx_graph, tensorrt_network
from tasks.backends.shared.onnx_form import PROBE_MODEL, put_onnx_constants
from tasks.backends.tensorrt import TensorRt, TensorRtError
from tasks.backends.tensorrt_rtx import TensorRtRtx
from tasks.canary import Canary
from tasks.devices import cuda_driver
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, Unavailable, Unsupported
from tests.farm.in_process import exit_code
from tests.tasks import fake_tensorrt

Install = Callable[..., tuple[TensorRt, Any, fake_tensorrt.Gpu]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts the stand-in in place: (backend of some options after its probe, the module's state, the GPU)."""
    monkeypatch.delenv(artefacts.FOLDER, raising=False)  # a run in this process may have set it

    def make(version: str = "10.16.1", **options: Any) -> tuple[TensorRt, Any, fake_tensorrt.Gpu]:
        gpu = fake_tensorrt.Gpu()
        module = fake_tensorrt.module(version, gpu)
        monkeypatch.setitem(sys.modules, "tensorrt", module)
        monkeypatch.setattr(cuda_driver, "load_cuda_driver", lambda: None)
        monkeypatch.setattr(cuda_driver, "CudaDevice", lambda library, ordinal=0: gpu)
        backend = TensorRt("tensorrt-cuda", "cuda", options)
        backend.probe()
        return backend, module.state, gpu

    return make


def model(
    op: str, inputs: dict[str, tuple[int, tuple[int, ...]]], outputs: dict[str, tuple[int, Any]], *nodes: Any
) -> bytes:
    graph = helper.make_graph(
        list(nodes) or [helper.make_node(op, list(inputs), list(outputs))],
        "g",
        [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, *v) for k, v in outputs.items()],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    )


def form(data: bytes, *arrays: np.ndarray, dtype: str = "float32") -> Form:
    return Form("onnx", "onnx:Op", dtype, list(arrays), model=data)


ADD = model("Add", {"a": (1, (3,)), "b": (1, (3,))}, {"y": (1, (3,))})
A, B = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)


@pytest.mark.parametrize(
    ("precision", "flags", "strong", "declared"),
    [
        ("fp32", set(), True, ""),
        ("tf32", {"TF32"}, True, "tfloat32"),
        ("fp16", {"FP16"}, False, "float16"),
        ("bf16", {"BF16"}, False, "bfloat16"),
        ("int8", {"INT8"}, False, "float8_e4m3fn"),
    ],
)
def test_each_precision_sets_its_flags_and_declares_itself(
    install: Install, precision: str, flags: set[str], strong: bool, declared: str
) -> None:
    backend, state, _ = install(precision=precision)
    info = backend.probe()
    assert info.compute_precision == declared and info.of_products is (precision == "tf32")
    assert not declared or backend.permits(declared)  # a flag of the builder allows: it may choose a kernel of float32
    assert (info.runtime_version, info.device) == ("TensorRT 10.16.1", "Fake GPU")
    program = backend.build(form(ADD, A, B))
    assert state.flags == flags  # TF32 is cleared wherever it was not asked for
    assert bool(state.network_flags) is strong
    assert f"precision={precision}" in program.flags


def test_a_model_of_half_precision_is_strongly_typed_and_no_matter_of_a_mode(install: Install) -> None:
    half = model("Neg", {"x": (TensorProto.FLOAT16, (2,))}, {"y": (TensorProto.FLOAT16, (2,))})
    backend, _, _ = install(precision="int8")  # which it would not be computed in, whatever the rows declare
    whole = model("Neg", {"x": (TensorProto.INT32, (2,))}, {"y": (TensorProto.INT32, (2,))})
    for other, kind in ((half, np.float16), (whole, np.int32)):
        with pytest.raises(Unsupported, match="int8 is a mode of float32 models"):
            backend.build(form(other, np.array([1, 2], kind), dtype=np.dtype(kind).name))
    backend, state, _ = install()
    (result,) = backend.build(form(half, np.array([1, 2], np.float16), dtype="float16")).run()
    assert state.flags == set() and state.network_flags and result.dtype == np.float16 and result.tolist() == [-1, -2]


@pytest.mark.parametrize(("precision", "written"), [("fp16", "cast"), ("bf16", "cast"), ("int8", "quantize")])
def test_without_flags_the_precision_is_written_into_the_network(
    install: Install, monkeypatch: pytest.MonkeyPatch, precision: str, written: str
) -> None:
    calls: list[str] = []
    for name in ("cast", "quantize"):
        patched = f"{name}_tensorrt_network"
        monkeypatch.setattr(tensorrt_network, patched, lambda *arguments, name=name: calls.append(name))
    backend, state, _ = install("11.4.0", precision=precision)
    calls.clear()
    backend.build(form(ADD, A, B))
    assert calls == [written] and state.flags == set() and state.config.int8_calibrator is None
    assert not backend.permits(backend.probe().compute_precision)  # what is written into a network is to be kept
    state.silent = "a Half and a Float do not go together"
    with pytest.raises(Unsupported, match=f"not with {precision} casts in its network: a Half"):
        backend.build(form(ADD, A, B))  # our casts, not TensorRT, may be at fault


def test_int8_is_calibrated_on_the_bytes_of_the_case(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path))
    backend, state, _ = install(precision="int8")
    backend.build(form(ADD, A, B))
    assert state.calibrated == {"a": A.tobytes(), "b": B.tobytes()}
    backend.build(form(ADD, B, A))  # other values, another engine
    assert state.calibrated == {"a": B.tobytes(), "b": A.tobytes()}


def test_a_device_that_is_lost_while_building_is_no_lack_of_support(install: Install) -> None:
    backend, state, _ = install()
    for words, wanted in (
        ("an illegal memory access was encountered; Could not find any implementation for node Add", TensorRtError),
        ("Could not find any implementation for node Add due to insufficient workspace", TensorRtError),
        ("Could not find any implementation for node Add", Unsupported),
    ):
        state.silent = words
        with pytest.raises(wanted):
            backend.build(form(ADD, A, B))


def test_outputs_come_in_the_models_order_with_dtype_and_shape(install: Install) -> None:
    backend, _, _ = install()
    x = np.array([[1, 2, 3], [4, 5, 7]], ml_dtypes.bfloat16)
    two = model(
        "",
        {"x": (TensorProto.BFLOAT16, (2, 3))},
        {"b": (TensorProto.BFLOAT16, (2, 3)), "a": (TensorProto.BFLOAT16, (3, 2))},
        helper.make_node("Transpose", ["x"], ["a"]),
        helper.make_node("Identity", ["x"], ["b"]),
    )
    program = backend.build(form(two, x, dtype="bfloat16"))
    b, a = program.run()
    assert (b.shape, a.shape, b.dtype) == ((2, 3), (3, 2), x.dtype)
    assert np.array_equal(b, x) and np.array_equal(a, x.T)
    assert program.flags.endswith("gpu_ms=0.25") and program.placement == "TensorRT on Fake GPU"
    b[:] = 0
    assert np.array_equal(program.run()[0], x)  # its own memory


def test_an_output_whose_shape_depends_on_data(install: Install) -> None:
    backend, _, _ = install()
    nonzero = model("NonZero", {"x": (1, (4,))}, {"y": (TensorProto.INT64, (1, None))})
    (found,) = backend.build(form(nonzero, np.array([0, 3, 0, 1], np.float32))).run()
    assert found.dtype == np.int64 and found.tolist() == [[1, 3]]


def test_the_parsers_words(install: Install) -> None:
    backend, state, _ = install()
    state.refuses = "Setting softcap is not implemented"
    with pytest.raises(Unsupported, match=r"Add \(UNSUPPORTED_NODE\): Setting softcap"):
        backend.build(form(ADD, A, B))
    state.code, state.refuses = "INVALID_NODE", "reshape changes volume"
    with pytest.raises(TensorRtError, match="reshape changes volume"):
        backend.build(form(ADD, A, B))
    state.refuses = "ElementWiseOperation SUM requires inputs with type kFLOAT\nIn catchCudaError (cudaError 35)"
    with pytest.raises(Unsupported) as caught:
        backend.build(form(ADD, A, B))
    assert "catchCudaError" not in str(caught.value)


def test_a_builder_that_returns_nothing_is_an_error_in_its_words(install: Install) -> None:
    backend, state, _ = install()
    state.silent = "Assertion !isInFlight failed"
    with pytest.raises(TensorRtError) as caught:
        backend.build(form(ADD, A, B))
    assert "isInFlight" in str(caught.value) and "warning" not in str(caught.value)
    state.silent = "NMS has no runners that implement it"
    with pytest.raises(Unsupported, match="no runners"):
        backend.build(form(ADD, A, B))


def test_types_it_does_not_have_are_unsupported(install: Install) -> None:
    backend, state, _ = install()
    double = model("Neg", {"x": (TensorProto.DOUBLE, (2,))}, {"y": (TensorProto.DOUBLE, (2,))})
    with pytest.raises(Unsupported, match="no float64 tensor as an input"):
        backend.build(form(double, np.ones(2), dtype="float64"))
    to_double = model("Identity", {"x": (1, (2,))}, {"y": (TensorProto.DOUBLE, (2,))})
    with pytest.raises(Unsupported, match="gives no float64 tensor, which the output y is"):
        backend.build(form(to_double, np.ones(2, np.float32)))
    assert state.builds == 1  # the probe's


def test_what_it_wants_as_a_constant_becomes_one(install: Install) -> None:
    backend, state, _ = install()
    state.wants_constants = True
    reduce = model("ReduceSum", {"x": (1, (2, 3)), "axes": (TensorProto.INT64, (1,))}, {"y": (1, (2, 1))})
    program = backend.build(form(reduce, np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1])))
    assert program.run()[0].tolist() == [[3], [12]]
    with pytest.raises(Unsupported, match="build-time constant"):  # nothing small to be made one
        backend.build(form(model("Add", {"a": (1, (1, 3)), "b": (1, (1, 3))}, {"y": (1, (1, 3))}), A[None], B[None]))


def test_engines_and_timings_are_kept(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path))
    backend, state, gpu = install()
    before = state.builds
    for _ in range(2):
        assert backend.build(form(ADD, A, B)).run()[0].tolist() == [11, 22, 33]
    assert state.builds == before + 1 and state.timings == b"timed "  # the probe's build left its timings
    other = fake_tensorrt.Gpu()
    for what, name, value in ((gpu, "name", "Another GPU"), (gpu, "capability", "12.0")):
        assert getattr(what, name) == getattr(other, name) != value
        setattr(what, name, value)
        before = state.builds
        backend.build(form(ADD, A, B))
        assert state.builds == before + 1 and state.timings == b""
    _, state, _ = install("10.17.0")
    assert state.builds == 1 and state.timings == b""  # another version's engines and timings are not found


def test_the_engines_of_a_known_answer_are_built_once_for_all_processes(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path))
    built = []
    for _ in range(2):
        backend, state, _ = install()
        before = state.builds
        assert "float32" in Canary(backend).dtypes
        built.append(state.builds - before)
    assert built[0] >= 2 and built[1] == 0


def test_dynamic_shapes_get_one_profile_of_the_case(install: Install) -> None:
    backend, state, _ = install()
    state.dynamic = True
    backend.build(form(ADD, A, B))
    assert state.profiles[-1].shapes == {"a": ((3,),) * 3, "b": ((3,),) * 3}


def test_errors_of_the_device(install: Install) -> None:
    backend, _, gpu = install()
    program = backend.build(form(ADD, A, B))
    gpu.breaks = "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    with pytest.raises(cuda_driver.CudaError) as caught:
        program.run()
    assert backend.is_sticky(caught.value) and not backend.is_out_of_memory(caught.value)
    full = cuda_driver.CudaError("cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
    assert backend.is_out_of_memory(full) and not backend.is_sticky(full)
    assert not backend.is_sticky(TensorRtError("Assertion failed")) and not backend.is_sticky(
        cuda_driver.CudaError("CUDA_ERROR_INVALID_VALUE (1)")
    )
    assert backend.is_sticky(TensorRtError("Cuda Runtime (an illegal memory access was encountered)"))


def test_without_a_driver_or_package_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(Unavailable, match="tensorrt cannot be imported"):
        TensorRt("t", "cuda", {}).probe()
    monkeypatch.setitem(sys.modules, "tensorrt", types.ModuleType("tensorrt"))

    def missing() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda_driver, "load_cuda_driver", missing)
    with pytest.raises(Unavailable, match=r"no NVIDIA driver: libcuda.so.1"):
        TensorRt("t", "cuda", {}).probe()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precison": "fp16"}, "unknown option 'precison'; it takes precision"),
        ({"precision": "fp8"}, "precision is one of fp32"),
        ({"optimization_level": 9}, "optimization_level is one of 0, 1, 2, 3, 4, 5, not '9'"),
        ({"builder_flags": "TF32"}, "builder_flags is a list, not str"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TensorRt("t", "cuda", options)


def test_devices() -> None:
    assert TensorRt("t", "cuda.1", {}).ordinals == (1,)
    with pytest.raises(ValueError, match="no device is called gpu; did you mean t-cuda"):
        TensorRt("t", "gpu", {})
    on_gpu, ahead = TensorRtRtx("t", "cuda", {}), TensorRtRtx("t", "aot", {})
    assert (on_gpu.resource, on_gpu.device_vendor, on_gpu.checks) == ("GPU", "nvidia", ("forward",))
    assert (ahead.resource, ahead.device_vendor, ahead.checks) == ("CPU", "", ("build",))


def test_an_engine_of_portable_code_for_turing_is_asked_for() -> None:
    trt = SimpleNamespace(ComputeCapability=SimpleNamespace(SM75="SM75"))
    for capability, asked in (("7.5", [("SM75", 0)]), ("8.6", []), ("9.0", [])):
        told: list[tuple[str, int]] = []
        config = SimpleNamespace(
            num_compute_capabilities=0, set_compute_capability=lambda x, at, told=told: told.append((x, at)) is None
        )
        made: Any = TensorRtRtx("t", "cuda", {})
        made._gpu = SimpleNamespace(capability=capability)
        made._configure(trt, config)
        assert (told, config.num_compute_capabilities) == (asked, len(asked))


# --- what is written into a network --------------------------------------------------------------------------------


class Tensor:
    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype = name, dtype


class Layer:
    """A layer whose output has its first input's type, if it does not say another."""

    def __init__(self, kind: str, inputs: list[Tensor], name: str, to_type: str = "") -> None:
        self.type, self.inputs, self.name, self.to_type = kind, inputs, name, to_type
        self.output = Tensor(name, "")

    num_inputs = property(lambda self: len(self.inputs))

    def get_input(self, k: int) -> Tensor:
        return self.inputs[k]

    def set_input(self, k: int, tensor: Tensor) -> None:
        self.inputs[k] = tensor

    def get_output(self, k: int) -> Tensor:
        self.output.dtype = self.to_type or self.inputs[0].dtype
        return self.output


class Net:
    def __init__(self) -> None:
        self.x, self.n = Tensor("x", "FLOAT"), Tensor("n", "INT64")
        constant = Layer("CONSTANT", [], "c", "FLOAT")
        cast = Layer("CAST", [self.n], "n_float", "FLOAT")
        add = Layer("OTHER", [self.x, constant.get_output(0)], "add")
        last = Layer("OTHER", [add.output, cast.get_output(0)], "y")
        self.layers, self.outputs = [constant, cast, add, last], [last]
        self.marked = ["y"]
        self.scales: list[float] = []

    num_layers = property(lambda self: len(self.layers))
    num_inputs, num_outputs = 2, 1

    def get_layer(self, i: int) -> Layer:
        return self.layers[i]

    def get_input(self, i: int) -> Tensor:
        return [self.x, self.n][i]

    def get_output(self, i: int) -> Tensor:
        for layer in self.layers:
            layer.get_output(0)
        return self.outputs[i].get_output(0)

    def unmark_output(self, tensor: Tensor) -> None:
        self.marked.remove(tensor.name)

    def mark_output(self, tensor: Tensor) -> None:
        self.marked.append(f"{tensor.name}: {tensor.dtype}")

    def _add(self, kind: str, inputs: list[Tensor], to_type: str) -> Layer:
        layer = Layer(kind, inputs, f"{kind} {inputs[0].name}" if inputs else kind, to_type)
        self.layers.append(layer)
        return layer

    def add_cast(self, tensor: Tensor, dtype: str) -> Layer:
        return self._add("CAST", [tensor], dtype)

    def add_constant(self, shape: Any, weights: np.ndarray) -> Layer:
        self.scales.append(float(weights))
        return self._add("CONSTANT", [], "FLOAT")

    def add_quantize(self, tensor: Tensor, scale: Tensor, dtype: str) -> Layer:
        return self._add("QUANTIZE", [tensor], dtype)

    def add_dequantize(self, tensor: Tensor, scale: Tensor, dtype: str) -> Layer:
        return self._add("DEQUANTIZE", [tensor], dtype)


TRT = types.SimpleNamespace(
    DataType=types.SimpleNamespace(FLOAT="FLOAT", HALF="HALF", INT8="INT8"),
    LayerType=types.SimpleNamespace(CONSTANT="CONSTANT", CAST="CAST"),
    Weights=lambda array: array,
)


def test_casts_reach_inputs_constants_and_outputs() -> None:
    net = Net()
    tensorrt_network.cast_tensorrt_network(TRT, net, "HALF")
    _, cast, add, last = net.layers[:4]
    assert [t.dtype for t in add.inputs] == ["HALF", "HALF"] and [t.dtype for t in last.inputs] == ["HALF", "HALF"]
    assert cast.to_type == "FLOAT" and cast.inputs == [net.n] and last.inputs[1].name == "CAST n_float"  # integers stay
    assert net.marked == ["y: FLOAT"] and last.output.name == "y_narrow"


def test_quantisation_takes_its_step_from_the_values() -> None:
    net = Net()
    tensorrt_network.quantize_tensorrt_network(
        TRT, net, {"x": np.array([1, -254, np.inf], np.float32), "n": np.array([900])}
    )
    add = net.layers[2]
    assert net.scales == [2.0] and add.inputs[0].name.startswith("DEQUANTIZE QUANTIZE x") and add.inputs[1].name == "c"
    empty = Net()
    tensorrt_network.quantize_tensorrt_network(TRT, empty, {"x": np.empty(0, np.float32), "n": np.array([1])})
    assert empty.scales == [1.0]


# --- what they need -------------------------------------------------------------------------------------------------


def test_constants_are_added_to_a_models_bytes() -> None:
    import onnx

    reduce = model("ReduceSum", {"x": (1, (2, 3)), "axes": (TensorProto.INT64, (1,))}, {"y": (1, (2, 1))})
    fixed = onnx.load_from_string(put_onnx_constants(reduce, {"axes": np.array([-1])}))
    onnx.checker.check_model(fixed)
    assert onnx.numpy_helper.to_array(fixed.graph.initializer[0]).tolist() == [-1]
    assert [x.name for x in fixed.graph.input] == ["x", "axes"] and len(fixed.graph.node) == 1


def test_outputs_of_a_model() -> None:
    assert [(x.name, x.dtype) for x in onnx_graph.read_onnx_graph(PROBE_MODEL).outputs] == [("y", "float32")]
    pair = model(
        "",
        {"x": (TensorProto.INT64, (2,))},
        {"b": (TensorProto.DOUBLE, (2,)), "a": (TensorProto.BFLOAT16, ())},
        helper.make_node("Cast", ["x"], ["b"], to=11),
        helper.make_node("Cast", ["x"], ["a"], to=16),
    )
    assert [(x.name, x.dtype) for x in onnx_graph.read_onnx_graph(pair).outputs] == [
        ("b", "float64"),
        ("a", "bfloat16"),
    ]
    with pytest.raises(ValueError, match="truncated"):
        onnx_graph.read_onnx_graph(PROBE_MODEL[:30])


class Library:
    """A stand-in for libcuda: memory of the host; ``fails``: function → code."""

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.held: dict[int, Any] = {}
        self.copied: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name in self.fails:
                return self.fails[name]
            getattr(self, "_" + name, lambda *a: None)(*arguments)
            return 0

        return call

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        buffer = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(buffer)
        self.held[address._obj.value] = buffer

    def __getitem__(self, address: int) -> np.ndarray:
        """Memory as `fake_tensorrt.Gpu` has it."""
        return np.frombuffer(self.held[address], np.uint8)

    def __setitem__(self, address: int, freed: np.ndarray) -> None:
        self.held.pop(address, None)

    def _cuMemAllocManaged(self, address: Any, size: Any, flags: int) -> None:
        self._cuMemAlloc_v2(address, size)

    def _cuStreamCreate(self, handle: Any, flags: Any) -> None:
        handle._obj.value = 7

    def _cuMemcpyHtoD_v2(self, to: Any, array: Any, size: Any) -> None:
        ctypes.memmove(to.value, array.value, size.value)
        self.copied.append(size.value)

    def _cuMemcpyDtoH_v2(self, array: Any, address: Any, size: Any) -> None:
        ctypes.memmove(array.value, address.value, size.value)

    def _cuDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> None:
        value._obj.value = {75: 9, 76: 0}[attribute.value]

    def _cuDriverGetVersion(self, value: Any) -> None:
        value._obj.value = 13020

    def _cuGetErrorName(self, code: Any, text: Any) -> None:
        text._obj.value = {
            2: b"CUDA_ERROR_OUT_OF_MEMORY",
            100: b"CUDA_ERROR_NO_DEVICE",
            719: b"CUDA_ERROR_LAUNCH_FAILED",
        }[code.value]


def test_the_driver() -> None:
    library = Library()
    gpu = cuda_driver.CudaDevice(library)
    assert (gpu.capability, gpu.driver_version) == ("9.0", "13.2")
    array, back = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    address = gpu.allocate(array.nbytes)
    gpu.to_device(address, array)
    gpu.to_host(back, address)
    assert back.tolist() == array.tolist()
    assert gpu.allocate(0)  # an empty tensor has an address
    gpu.to_device(address, np.empty(0, np.float32))
    assert library.copied == [24]  # nothing to copy, nothing called
    library.fails["cuMemAlloc_v2"] = 2
    with pytest.raises(cuda_driver.CudaError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        gpu.allocate(1 << 40)
    library.fails = {"cuStreamSynchronize": 719}
    with pytest.raises(cuda_driver.CudaError) as caught:
        gpu.wait(1)
    assert tensorrt.TensorRt("t", "cuda", {}).is_sticky(caught.value)
    library.fails = {"cuInit": 100}
    with pytest.raises(cuda_driver.CudaError, match="CUDA_ERROR_NO_DEVICE"):
        cuda_driver.CudaDevice(library)


# --- a finding --------------------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    return found


ROW = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 32.0, "error": ""}


def written(backend: TensorRt, made: Form, *leaves: Leaf) -> dict[str, bytes]:
    group, policy = Group("onnx:Op", "", "float32", 1), policy_files.load_policy("error_units")
    return write_finding_folder(FindingCase("A title.", made, group, backend, policy, ROW, leaves), ["tensorrt-cu13"])


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("off", [0, 1])
def test_a_finding_runs_an_engine(install: Install, library: Library, off: int, open_sizes: bool) -> None:
    """On the stand-in, whose memory is the host's: two outputs, one of them of bfloat16, in the model's order."""
    backend, state, gpu = install(optimization_level=2)
    gpu.memory = library  # type: ignore[assignment]
    state.dynamic = open_sizes
    nodes = helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16)
    given: dict[str, Any] = {"x": (1, ("n" if open_sizes else 3,))}
    data = model("", given, {"a": (1, (3,)), "b": (TensorProto.BFLOAT16, (3,))}, *nodes)
    leaves = [Leaf("float32", (3,), -A.astype(np.float64) + off), Leaf("bfloat16", (3,), A.astype(np.float64))]
    files = written(backend, form(data, A), *leaves)
    assert exit_code(files) == off
    assert state.flags == set() and state.config.builder_optimization_level == 2 and state.network_flags
    assert state.profiles[-1:] == [] if not open_sizes else state.profiles[-1].shapes == {"x": ((3,),) * 3}
    assert {"cuInit", "cuStreamSynchronize"} <= set(re.findall(r"cu[A-Z]\w+", files[RUN].decode()))


@pytest.mark.parametrize("off", [0, 1])
def test_a_finding_reads_an_output_whose_shape_depends_on_data(install: Install, library: Library, off: int) -> None:
    backend, _, gpu = install()
    gpu.memory = library  # type: ignore[assignment]
    nodes = helper.make_node("NonZero", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])
    data = model("", {"x": (1, (4,))}, {"y": (TensorProto.INT64, (1, None)), "z": (1, (4,))}, *nodes)
    x = np.array([0, 3, 0, 1], np.float32)
    leaves = [Leaf("int64", (1, 2), np.array([[1, 3 + off]])), Leaf("float32", (4,), -x.astype(np.float64))]
    files = written(backend, form(data, x), *leaves)
    assert exit_code(files) == off


@pytest.mark.parametrize(
    ("version", "precision", "asked", "casts"),
    [
        ("10.16.1", "tf32", {"TF32"}, []),
        ("10.16.1", "bf16", {"BF16"}, []),
        ("10.16.1", "int8", set(), ["a INT8", "b INT8"]),
        ("11.4.0", "fp16", set(), ["a HALF", "b HALF"]),
        ("11.4.0", "bf16", set(), ["a BF16", "b BF16"]),
        ("11.4.0", "int8", set(), ["a INT8", "b INT8"]),
    ],
)
def test_a_finding_has_the_precision(
    install: Install, library: Library, version: str, precision: str, asked: set[str], casts: list[str]
) -> None:
    """As a flag, or, where there is none, written into the network as the backend writes it."""
    backend, state, gpu = install(version, precision=precision)
    gpu.memory, state.casts = library, []  # type: ignore[assignment]
    files = written(backend, form(ADD, A, B), Leaf("float32", A.shape, A.astype(np.float64) + B))
    assert exit_code(files) == 0
    assert state.flags == asked and bool(state.network_flags) is (precision in ("tf32", "int8") or version > "11")
    assert state.casts == casts
