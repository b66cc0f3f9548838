"""Execution providers of ONNX Runtime beside its own: packages, emulation, plugins, what old and odd builds lack."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from ml_dtypes import bfloat16, int4
from packaging.requirements import Requirement

from farm.fleet.envs import Environment
from tasks.arrays.low_bits import pack_low_bits
from tasks.backends import onnxruntime as module
from tasks.backends.onnxruntime import PROVIDERS, OnnxRuntime
from tasks.backends.shared import artefacts, ort_providers, ort_timings
from tasks.devices import BY_LABEL, cuda_driver
from tasks.model import Fallback, Form, Program, Unavailable


def backend(device: str, **options: Any) -> OnnxRuntime:
    return OnnxRuntime(f"ort-{device}", device, options)


@pytest.mark.parametrize("device", PROVIDERS)
def test_every_provider_names_pinned_packages_and_a_vendor_that_is_known(device: str) -> None:
    made = backend(device)
    for text in Environment(made.packages).requirements:
        assert str(Requirement(text).specifier).startswith("==")
    assert made.vendor
    assert made.device_vendor == "" or made.device_vendor in BY_LABEL or device == "vsinpu"


def test_canns_build_is_given_the_numpy_that_it_was_made_with() -> None:
    """It has no requirement of NumPy, and with 2 says "import numpy failed"."""
    (numpy,) = (x for x in map(Requirement, Environment(backend("cann").packages).requirements) if x.name == "numpy")
    assert numpy.specifier.contains("1.26.4") and not numpy.specifier.contains("2.0.0")


def test_the_cpu_provider_is_that_of_the_farms_own_environment() -> None:
    assert backend("cpu").packages == ()


def on(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(ort_providers.platform, "machine", lambda: machine)


def test_qnn_is_emulated_where_there_is_no_snapdragon(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "x86_64")
    made = backend("qnn")
    assert (made.emulated, made.resource, made.device_vendor) == (True, "CPU", "")
    assert made._options["soc_model"] == "57"
    assert backend("qnn", soc_model=43)._options["soc_model"] == "43"
    elsewhere = backend("qnn", resource="NPU", device_vendor="qualcomm")
    assert (elsewhere.resource, elsewhere.device_vendor) == ("NPU", "qualcomm")


def test_qnn_on_arm_is_the_device_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "aarch64")
    made = backend("qnn")
    assert (made.emulated, made.resource, made.device_vendor) == (False, "NPU", "qualcomm")
    assert "soc_model" not in made._options  # it is the one that is there


def test_a_chip_is_chosen_for_qnn_alone() -> None:
    with pytest.raises(ValueError, match="soc_model is an option of ort-qnn only"):
        backend("cpu", soc_model=57)


@pytest.mark.skipif(not os.path.exists("/dev"), reason="looks for device files")
def test_webgpu_without_a_gpu_is_a_software_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(ort_providers, "_GPU_FILES", (str(tmp_path / "render*"),))
    assert (backend("webgpu").emulated, backend("webgpu").resource) == (True, "CPU")
    (tmp_path / "renderD128").touch()
    assert (backend("webgpu").emulated, backend("webgpu").resource) == (False, "GPU")


def test_directml_is_for_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "linux")
    with pytest.raises(Unavailable, match="DirectML is part of Windows"):
        backend("dml").probe()


# -- plugins ------------------------------------------------------------------------------------------------


class FakeOrt:
    """The parts of onnxruntime that loading a plugin provider takes."""

    __version__ = "1.99"

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def get_ep_devices(self) -> list[Any]:
        return [SimpleNamespace(ep_name=x) for x in ("CPUExecutionProvider", *self.loaded)]

    def get_available_providers(self) -> list[str]:
        return ["CPUExecutionProvider", *self.loaded]

    def register_execution_provider_library(self, name: str, library: str) -> None:
        if name in self.loaded:
            raise RuntimeError(f"library is already registered under {name}")
        self.loaded.append(name)


def test_a_second_backend_of_one_process_gets_the_plugins_devices_too() -> None:
    """A plugin that is loaded is listed among ORT's own providers, but a session is made with its devices alone."""
    ort = FakeOrt()
    for soc in (43, 57):
        made = backend("qnn", library="libonnxruntime_providers_qnn.so", soc_model=soc)
        made._find_provider(ort)
        assert [x.ep_name for x in made._devices] == ["QNNExecutionProvider"]


def test_tensorrts_libraries_come_with_its_environment_and_are_loaded_before_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(module, "load_package_libraries", lambda package, names: loaded.append(package))
    made, ort = backend("tensorrt"), FakeOrt()
    ort.loaded = ["TensorrtExecutionProvider"]
    made._find_provider(ort)
    assert loaded == ["tensorrt_libs"]
    # onnxruntime-gpu 1.31.1's libonnxruntime_providers_tensorrt.so needs libnvinfer.so.10 and libnvonnxparser.so.10.
    assert any(x.startswith("tensorrt-cu13-libs==10.") for x in made.packages)
    assert made._known.libraries and all(x.endswith(".so.10") for x in made._known.libraries[1])
    assert any(x.startswith("onnxruntime-ep-nv-tensorrt-rtx") for x in backend("tensorrt-rtx").packages)


def test_tensorrts_provider_finds_what_was_timed_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """It writes its file in place, so each process has a folder of its own; timings of another GPU or TensorRT are not
    found."""
    gpu, release, found, given = ["NVIDIA L4", "sm_89"], [101601], list[bytes](), list[dict[str, str]]()

    class Session:
        def __init__(self, model: bytes, options: Any, providers: Any, enable_fallback: int) -> None:
            given.append(providers[0][1])
            file = (
                Path(given[-1].get("trt_timing_cache_path", tmp_path))
                / f"TensorrtExecutionProvider_cache_{gpu[1].replace('_', '')}.timing"
            )
            found.append(file.read_bytes() if file.exists() else b"")
            file.write_bytes(found[-1] + b"timed ")

    def process() -> None:
        """A new one."""
        ort_timings._make_timings_folder.cache_clear()
        ort_timings._name_timings_place.cache_clear()

    def session(**options: str) -> OnnxRuntime:
        made = backend("tensorrt", provider_options=options)
        made._provider = "TensorrtExecutionProvider"
        made._session(ort, b"")
        return made

    ort = SimpleNamespace(SessionOptions=MagicMock, InferenceSession=Session)
    library = SimpleNamespace(getInferLibVersion=lambda: release[0])
    monkeypatch.setattr(ort_timings.ctypes, "CDLL", lambda name: {"libnvinfer.so.10": library}[name])
    monkeypatch.setattr(cuda_driver, "load_cuda_driver", lambda: None)
    monkeypatch.setattr(cuda_driver, "describe_gpu", lambda library, ordinal: tuple(gpu))
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path / "kept"))
    process()
    assert session()._flags() == "timings=kept" and session()._timed
    process()
    assert given[-1]["trt_timing_cache_enable"] == "1" and found == [b"", b"timed "]
    session()
    assert found[-1] == b"timed timed " and given[-1]["trt_timing_cache_path"] != given[0]["trt_timing_cache_path"]
    for at, other in ((gpu, ["NVIDIA H200", "sm_90"]), (release, [101701])):
        at[:] = other
        process()
        session()
        assert found[-1] == b""
    assert session(trt_timing_cache_enable="0")._flags() == "trt_timing_cache_enable=0"
    assert "trt_timing_cache_path" not in given[-1]


def test_a_convolution_of_cudas_provider_is_not_chosen_by_a_stopwatch() -> None:
    assert backend("cuda")._options["cudnn_conv_algo_search"] == "HEURISTIC"


@pytest.mark.parametrize(
    ("device", "where"), [("vsinpu", "with --use_vsinpu and add that wheel"), ("vitisai", "Ryzen AI software has it")]
)
def test_a_provider_that_no_index_has_says_where_it_is_had(device: str, where: str) -> None:
    with pytest.raises(Unavailable, match=where):
        backend(device)._find_provider(FakeOrt())


@pytest.mark.parametrize(("name", "meant"), module.CALLED.items())
def test_a_provider_that_is_called_by_its_vendor_is_named(name: str, meant: str) -> None:
    assert meant in PROVIDERS and name not in PROVIDERS
    pytest.importorskip("onnxruntime")
    with pytest.raises(Unavailable, match=rf"has no {name}ExecutionProvider; .*; did you mean ort-{meant}\?$"):
        backend(name).start()


def test_a_plugin_that_is_not_installed_is_named() -> None:
    with pytest.raises(Unavailable, match="has no QNNExecutionProvider.*onnxruntime_qnn cannot be imported"):
        backend("qnn")._find_provider(FakeOrt())


# -- what a probe takes for working --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "two", "works"),
    [("qnn", 2.0000002, True), ("qnn", 2.01, False), ("openvino", 2.0000002, True), ("openvino", 2.001, False)],
)
def test_a_probe_asks_for_the_declared_precision(
    device: str, two: float, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qualcomm's HTP adds 1 and 1 to 2.0000002 in its own number format."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(OnnxRuntime, "_find_provider", lambda self, ort: None)
    monkeypatch.setattr(OnnxRuntime, "build", lambda self, form: Program(lambda: [np.full(2, two, np.float32)]))
    if works:
        assert backend(device).probe().runtime_version
    else:
        with pytest.raises(Unavailable, match="expected 2"):
            backend(device).probe()


def test_why_a_vulkan_driver_was_refused_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    said = b"Warning: Vulkan shaderUniform*ArrayDynamicIndexing required.\n - While initializing adapter (backend=Vulkan)\n"

    def refused(self: OnnxRuntime, form: Form) -> Program:
        os.write(2, said)
        raise RuntimeError(
            "/onnxruntime_src/onnxruntime/webgpu.cc:65 x(y) ok was false. Failed to get a WebGPU adapter"
        )

    monkeypatch.setattr(OnnxRuntime, "_find_provider", lambda self, ort: None)
    monkeypatch.setattr(OnnxRuntime, "build", refused)
    with pytest.raises(Unavailable, match="no suitable Vulkan driver: Vulkan shader.*Indexing required"):
        backend("webgpu").probe()
    said = b""
    with pytest.raises(Unavailable, match="one-Add model\\): Failed to get a WebGPU adapter$"):
        backend("webgpu").probe()


def test_a_runtime_that_sees_all_devices_is_given_the_one_that_its_task_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(FakeOrt):
        def get_ep_devices(self) -> list[Any]:
            return [SimpleNamespace(ep_name="WebGpuExecutionProvider", number=n) for n in (0, 1)]

    for given, number in (("", 0), ("1", 1)):
        monkeypatch.setenv("FARM_DEVICE_NUMBER", given)
        made = backend("webgpu", library="libonnxruntime_providers_webgpu.so")
        made._find_provider(Two())
        assert [x.number for x in made._devices] == [number]
    monkeypatch.setenv("FARM_DEVICE_NUMBER", "2")
    with pytest.raises(Unavailable, match="offers 2 devices, not number 2"):
        backend("webgpu", library="libonnxruntime_providers_webgpu.so")._find_provider(Two())


def _reshaped(op: str) -> bytes:
    """A sum, reshaped to what arithmetic on its shape says, or ``op`` in place of a step of that."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[N] y) <int64[1] one = {{-1}}, float[1] half = {{0.5}}> {{
        s = Add(x, x)
        shape = Shape(s)
        all = {op}
        y = Reshape(s, all)
    }}"""
    import onnx.parser

    return bytes(onnx.parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize(
    ("op", "on_cpu", "by_design"),
    [
        ("ReduceProd(shape)", {"Shape": 1, "ReduceProd": 1}, True),
        ("Mul(one, one)", {"Shape": 1, "Mul": 1}, False),  # of constants: nothing of a shape
        ("ReduceProd(shape)", {"Shape": 1, "ReduceProd": 1, "Add": 1}, False),
    ],
)
def test_shapes_that_a_gpus_provider_leaves_to_the_cpu_by_design_are_no_fallback(
    op: str, on_cpu: dict[str, int], by_design: bool
) -> None:
    nodes = {"CUDAExecutionProvider": {"Reshape": 1}, "CPUExecutionProvider": on_cpu}

    def assigned() -> list[Any]:
        each = {
            name: [SimpleNamespace(domain="", op_type=o) for o, n in ops.items() for _ in range(n)]
            for name, ops in nodes.items()
        }
        return [SimpleNamespace(ep_name=name, get_nodes=lambda name=name: each[name]) for name in each]

    session = SimpleNamespace(get_providers=lambda: list(nodes), get_provider_graph_assignment_info=assigned)
    asked: list[bool] = []

    class Ort:
        def InferenceSession(self, model: bytes, options: Any, **how: Any) -> Any:
            asked.append("session.disable_cpu_ep_fallback" in options.said)
            if asked[-1]:
                raise RuntimeError(
                    "This session contains graph nodes ... fallback to CPU EP has been explicitly disabled"
                )
            return session

        class SessionOptions:
            def __init__(self) -> None:
                self.said: dict[str, str] = {}

            def add_session_config_entry(self, key: str, value: str) -> None:
                self.said[key] = value

    made, model = backend("cuda"), _reshaped(op)
    if not by_design:
        with pytest.raises(Fallback, match="leaves nodes to the CPU"):
            made._session(Ort(), model)
    else:
        placement, fallback = made._placement(made._session(Ort(), model), model)
        assert fallback is None and placement.endswith("(shapes, by design)")
        assert asked == [True, False]
    asked.clear()
    with pytest.raises(Fallback):
        backend("migraphx")._session(Ort(), model)
    assert asked == [True]


@pytest.mark.parametrize("inputs", [0, 1])
def test_a_provider_without_a_record_of_nodes_is_believed_unless_nothing_can_have_been_left(inputs: int) -> None:
    session: Any = SimpleNamespace(
        get_providers=lambda: ["WebGpuExecutionProvider", "CPUExecutionProvider"],
        get_provider_graph_assignment_info=list,
        get_inputs=lambda: [None] * inputs,
    )
    placement, fallback = backend("webgpu")._placement(session, b"")
    assert placement == "WebGpuExecutionProvider"
    assert (fallback is None) == bool(inputs)


# -- old versions --------------------------------------------------------------------------------------------


class OldOrtValue:
    """What an OrtValue of onnxruntime 1.16 has: no tensor_size_in_bytes, no numpy() of bfloat16."""

    def __init__(self, memory: np.ndarray, kind: str, shape: tuple[int, ...]) -> None:
        self._memory, self._kind, self._shape = memory, kind, shape

    def has_value(self) -> bool:
        return True

    def data_type(self) -> str:
        return f"tensor({self._kind})"

    def shape(self) -> list[int]:
        return list(self._shape)

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self._memory.ctypes.data)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 2)])
def test_values_of_old_versions_are_read_by_their_dtype_and_shape(shape: tuple[int, ...]) -> None:
    x = np.resize(np.array([1, -2, 3, 0.5, -1, 7], bfloat16), shape)
    found = module._copy_ort_value(OldOrtValue(np.ascontiguousarray(x), "bfloat16", shape))
    assert found.dtype == x.dtype and found.shape == shape and found.tobytes() == x.tobytes()
    low = np.resize(np.array([1, -2, 3, 0, -1], np.int8), shape).astype(int4)
    found = module._copy_ort_value(OldOrtValue(pack_low_bits(low), "int4", shape))
    assert found.dtype == low.dtype and found.tobytes() == low.tobytes()
