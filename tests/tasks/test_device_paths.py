"""What runtimes are asked of devices that are not here: architectures, properties, packages and libraries."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.fleet import envs, pip_settings, visible_devices
from farm.plan.config_schema import BackendConfig
from tasks import devices, packages
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.backends import BackendSpec, base, iree, openvino
from tasks.backends.base import FRACTION
from tasks.backends.jax import Jax
from tasks.backends.needs import Missing
from tasks.backends.onnxruntime import OnnxRuntime
from tasks.backends.tinygrad import Tinygrad
from tasks.backends.torch import TorchEager
from tasks.devices import TORCH, amd, gaudi, nvidia
from tasks.model import Fallback, Form, RuntimeInfo, Unavailable


def test_amds_architecture_is_that_of_the_first_visible_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert amd.find_amd_architecture(tmp_path) == ""
    for number, version in enumerate((0, 90402, 90010, 110501)):  # the first is a processor
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count {4 * bool(version)}\ngfx_target_version {version}\n")
    assert amd.find_amd_architecture(tmp_path) == "gfx942"
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1,2")
    assert amd.find_amd_architecture(tmp_path) == "gfx90a"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2")
    assert amd.find_amd_architecture(tmp_path) == "gfx1151"


@pytest.mark.parametrize(
    ("label", "file", "text", "version"),
    [
        ("nvidia", "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue", "580.95.05"),
        ("amd", "sys/module/amdgpu/version", "6.14.14\n", "6.14.14"),
        ("gaudi", "sys/module/habanalabs/version", "1.23.0-695\n", "1.23.0-695"),
        ("huawei", "usr/local/Ascend/driver/version.info", "Version=25.0.rc1.1\nascendhal_version=7.35.23\n", "25.0.rc1.1"),
        ("amd", "sys/module/amdgpu/parameters/vm_size", "", f"Linux {platform.release()}"),  # it comes with the kernel
        ("amd", "sys/module/xe/version", "", ""),
        ("", "sys/module/amdgpu/version", "6.14.14\n", ""),
    ],
)  # fmt: skip
def test_a_drivers_version_is_read_where_it_says_it(
    label: str, file: str, text: str, version: str, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert devices.find_driver_version(label, tmp_path) == version


def test_a_toolkits_version_is_read_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "latest" / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    told.parent.mkdir(parents=True)
    told.write_text("package_name=Ascend-cann-toolkit\nversion=8.0.RC1\ninnerversion=V100R001C17\n")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path / "latest"))
    assert devices.find_toolkit_version("huawei") == "CANN 8.0.RC1"
    told.unlink()
    assert (
        devices.find_toolkit_version("huawei")
        == devices.find_toolkit_version("")
        == devices.find_toolkit_version("nvidia")
        == ""
    )
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path / "cann-8.5.0"))  # its own folder, which says it as well
    assert devices.find_toolkit_version("huawei") == "CANN 8.5.0"
    packages = (
        "Package: habanalabs-dkms\nVersion: 1.22.0-1\n\nPackage: habanalabs-graph\nStatus: install ok installed\n"
    )
    (tmp_path / "status").write_text(f"{packages}Architecture: amd64\nVersion: 1.23.0-695\n\nPackage: z\nVersion: 9\n")
    assert gaudi.HPU.toolkit is not None
    assert replace(gaudi.HPU.toolkit, folders=(str(tmp_path),)).version() == "SynapseAI 1.23.0-695"
    assert [OnnxRuntime(f"ort-{x}", x, {}).toolkit for x in ("cann", "rocm", "cuda")] == ["huawei", "amd", ""]


def test_what_a_backend_does_not_say_of_its_driver_and_toolkit_is_said_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_driver_version", lambda label: {"huawei": "25.0.rc1"}[label])
    monkeypatch.setattr(base, "find_toolkit_version", lambda label: {"huawei": "CANN 8.0.RC1"}[label])
    made = OnnxRuntime("ort-cann", "cann", {})
    for said, version in (("", "25.0.rc1"), ("24.1", "24.1")):
        monkeypatch.setattr(made, "probe", lambda said=said: RuntimeInfo("1.24.4", "cann", said))
        info = made.start()
        assert (info.runtime_version, info.driver_version) == ("1.24.4, CANN 8.0.RC1", version)


def test_nvidias_architecture_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia.cuda_driver, "load_cuda_driver", lambda: None)
    monkeypatch.setattr(nvidia.cuda_driver, "describe_gpu", lambda library: ("NVIDIA H200", "sm_90"))
    assert nvidia.find_nvidia_architecture() == "sm_90"

    def none() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(nvidia.cuda_driver, "load_cuda_driver", none)
    assert nvidia.find_nvidia_architecture() == ""


def test_iree_compiles_for_the_device_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iree.Iree("iree-hip", "hip", {})
    assert made._target.architecture and made._target.architecture[0] == "--iree-rocm-target"
    monkeypatch.setitem(
        iree.TARGETS, "hip", replace(iree.TARGETS["hip"], architecture=("--iree-rocm-target", lambda: "gfx942"))
    )
    monkeypatch.setattr(iree, "_list_known_flags", lambda: frozenset(["--iree-rocm-target"]))
    assert iree.Iree("iree-hip", "hip", {})._architecture() == ("--iree-rocm-target=gfx942",)
    assert iree.Iree("iree-hip", "hip", {"flags": ["--iree-rocm-target=gfx90a"]})._architecture() == ()
    assert iree.Iree("iree-cpu", "cpu", {})._architecture() == ()
    assert [iree.choose_iree_architecture(x) for x in ("sm_80", "sm_89", "sm_90", "sm_120", "")] == [
        "sm_80",
        "sm_89",
        "sm_89",
        "sm_89",
        "",
    ]


def test_iree_compiles_for_the_device_that_is_here_and_keeps_its_code_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    version, runtime = types.ModuleType("iree.compiler.version"), types.ModuleType("iree.runtime")
    compiler, whole = types.ModuleType("iree.compiler"), types.ModuleType("iree")
    compiler.version, whole.compiler, whole.runtime = version, compiler, runtime  # type: ignore[attr-defined]
    runtime.query_available_drivers = lambda: ["hip"]  # type: ignore[attr-defined]
    for module in (whole, compiler, version, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(iree, "smoke_test", lambda *a: (_ for _ in ()).throw(Unavailable("asked")))
    monkeypatch.setattr(
        iree, "_list_known_flags", lambda: frozenset(["--iree-rocm-target", *map(iree._name_iree_flag, iree.FLAGS)])
    )
    monkeypatch.setattr(iree, "_read_iree_version", lambda: "1")
    monkeypatch.setattr(iree.artefacts, "load_or_make", lambda kind, key, make: key)
    keys: list[Any] = []
    for target in ("gfx942", "gfx90a"):
        named = replace(iree.TARGETS["hip"], architecture=("--iree-rocm-target", lambda target=target: target))
        monkeypatch.setitem(iree.TARGETS, "hip", named)
        made = iree.Iree("iree-hip", "hip", {})
        with pytest.raises(Unavailable, match="asked"):
            made.probe()
        keys.append(made._code(Form("onnx", "onnx:Add", "float32", [], model=b"model")))
        assert f"--iree-rocm-target={target}" in keys[-1]
    assert keys[0] != keys[1]


class FakeCore:
    """OpenVINO's Core over one device."""

    def __init__(self, able: list[str], known: list[str]) -> None:
        self.said = {"OPTIMIZATION_CAPABILITIES": able, "SUPPORTED_PROPERTIES": known}

    def get_property(self, target: str, name: str) -> list[str]:
        return self.said[name]


HINTS = ["INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"]


@pytest.mark.parametrize(
    ("options", "core", "asked"),
    [
        ({}, FakeCore(["FP32", "FP16"], HINTS), {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}),
        ({}, FakeCore(["FP16", "INT8"], HINTS), {"EXECUTION_MODE_HINT": "ACCURACY"}),  # as an NPU
        ({}, FakeCore(["FP16"], []), {}),
        ({"inference_precision": "f32"}, FakeCore(["FP16"], []), {"INFERENCE_PRECISION_HINT": "f32"}),
    ],
)
def test_openvino_asks_a_device_only_what_it_can_be_asked(
    options: dict[str, object], core: Any, asked: dict[str, str]
) -> None:
    assert openvino.OpenVino("openvino-npu", "npu", options)._possible(core) == asked


@pytest.mark.parametrize(
    ("able", "told", "precision", "unasked"),
    [
        (["FP16", "INT8"], [], "float16", True),  # a compiled model of an NPU that does not list the hint
        (["FP32", "FP16"], [], "float32", False),
        (["FP16", "INT8"], ["INFERENCE_PRECISION_HINT"], "bfloat16", True),
    ],
)
def test_a_device_that_does_not_tell_its_precision_computes_in_what_it_can(
    able: list[str], told: list[str], precision: str, unasked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = FakeCore(able, [])
    core.available_devices = ["CPU", "NPU"]
    core.said |= {"FULL_DEVICE_NAME": "Intel(R) AI Boost"}
    said = {"SUPPORTED_PROPERTIES": told, "INFERENCE_PRECISION_HINT": "Type.bf16"}
    compiled = types.SimpleNamespace(get_property=said.__getitem__)
    monkeypatch.setattr(openvino, "_open_openvino_core", lambda: core)
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(__version__="2026.4.1-0"))
    monkeypatch.setattr(openvino.OpenVino, "_compile", lambda self, model: compiled)
    two = types.SimpleNamespace(run=lambda: [[2.0, 2.0]])
    monkeypatch.setattr(openvino.OpenVino, "_program", lambda self, compiled, values: two)
    info = openvino.OpenVino("openvino-npu", "npu", {}).probe()
    assert (info.compute_precision, info.unasked) == (precision, unasked)


@pytest.mark.parametrize(
    ("device", "installs", "says"),
    [
        ("gpu", ["intel-opencl-icd"], "finds no device GPU; it finds CPU; Intel's OpenCL driver is missing, or "),
        (
            "npu",
            [],
            "finds no device NPU; it finds CPU; Intel's NPU driver (https://github.com/intel/linux-npu-driver) ",
        ),
    ],
)
def test_openvino_says_what_brings_a_device_that_it_does_not_find(
    device: str, installs: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "_open_openvino_core", lambda: types.SimpleNamespace(available_devices=["CPU"]))
    monkeypatch.setitem(sys.modules, "openvino", types.ModuleType("openvino"))
    monkeypatch.setattr("tasks.backends.needs.shutil.which", lambda name: name if name == "apt-get" else None)
    monkeypatch.setattr(openvino.glob, "glob", lambda pattern: [])
    with pytest.raises(Unavailable, match=r"it finds CPU; there is no /dev/\w+/\w+\* here$"):
        openvino.OpenVino(f"openvino-{device}", device, {}).start()
    monkeypatch.setattr(openvino.glob, "glob", lambda pattern: [pattern])
    with pytest.raises(Missing) as caught:
        openvino.OpenVino(f"openvino-{device}", device, {}).start()
    assert says in str(caught.value) and [package for _, package in caught.value.installs] == installs


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("libhipblas.so.3: cannot open shared object file", "part of ROCm: install it, and add its folder"),
        ("Failed to load libamdhip64.so", "part of ROCm"),
        ("libascendcl.so: cannot open shared object file", "part of CANN: source its set_env.sh first"),
        ("libgomp.so.1: cannot open shared object file", ""),
    ],
)
def test_what_brings_a_library_that_is_missing_is_said(said: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = OnnxRuntime("ort-rocm", "rocm", {})

    def probe() -> RuntimeInfo:
        raise Unavailable(said)

    monkeypatch.setattr(made, "probe", probe)
    with pytest.raises(Unavailable) as caught:
        made.start()
    assert str(caught.value).startswith(f"{said}; {how}" if how else said) and (how or str(caught.value) == said)


@pytest.mark.parametrize(("number", "target"), [("", "GPU"), ("0", "GPU"), ("1", "GPU.1")])
def test_openvino_computes_on_the_device_that_its_task_was_given(
    number: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = FakeCore(["FP16"], HINTS)
    core.available_devices = ["CPU", "GPU.0", "GPU.1"]
    monkeypatch.setattr(openvino, "_open_openvino_core", lambda: core)
    monkeypatch.setattr(openvino, "smoke_test", lambda *a: (_ for _ in ()).throw(Unavailable("asked")))
    monkeypatch.setitem(sys.modules, "openvino", types.ModuleType("openvino"))
    monkeypatch.setenv("FARM_DEVICE_NUMBER", number)
    made = openvino.OpenVino("openvino-gpu", "gpu", {})
    with pytest.raises(Unavailable, match="asked"):
        made.probe()
    assert made._target == target and made._asked == {"EXECUTION_MODE_HINT": "ACCURACY"}
    monkeypatch.setenv("FARM_DEVICE_NUMBER", "2")
    with pytest.raises(Unavailable, match="finds no device GPU.2; it finds CPU, GPU.0, GPU.1"):
        openvino.OpenVino("openvino-gpu", "gpu", {}).probe()


def test_vulkan_and_opencl_are_told_the_number_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_DEVICE_NUMBER", "1")
    assert [iree._number_iree_device(driver) for driver in ("vulkan", "cuda", "local-sync")] == [1, 0, 0]
    assert Tinygrad("tinygrad-cl", "cl", {"device_vendor": "amd"})._target == "CL:1"
    assert Tinygrad("tinygrad-cuda", "cuda", {})._target == "CUDA"
    assert any(x.startswith("nvidia-cuda-nvrtc") for x in Tinygrad("tinygrad-cuda", "cuda", {}).packages)
    assert visible_devices.build_visible_variables("nvidia", ["1"])[
        "FARM_DEVICE_NUMBER"
    ] == "1" and not visible_devices.build_visible_variables("intel", [])


def test_jaxs_bfloat16_on_a_gpu_is_not_offered() -> None:
    with pytest.raises(ValueError, match="precision is one of float32, tensorfloat32, not 'bfloat16'"):
        Jax("jax-cuda", "cuda", {"precision": "bfloat16"})
    assert Jax("jax-tpu", "tpu", {"precision": "bfloat16"}).precision == "bfloat16"


def test_a_runtime_is_told_how_much_of_a_shared_device_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    told: list[float] = []
    monkeypatch.setenv(FRACTION, "0.25")
    for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(Unavailable, match="jax cannot be imported"):
        Jax("jax-cuda", "cuda", {}).probe()
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25"
    answers: dict[str, Any] = {"is_available": lambda: True, "get_device_name": lambda index: "GPU"}
    for name, answer in (answers | {"set_per_process_memory_fraction": told.append}).items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert TorchEager("torch-cuda", "cuda", {})._accelerator() == "GPU" and told == [0.25]


def test_an_index_belongs_to_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_EXTRA_INDEX_URL", "https://own.example/simple")
    gpu, cpu = envs.Environment(TORCH["cuda"].packages), envs.Environment(("numpy",))
    assert gpu.requirements[0] == "torch==2.13.0+cu130" and not any("index" in p for p in gpu.requirements)
    assert pip_settings.make_uv_environment(gpu.indexes)["UV_EXTRA_INDEX_URL"] == (
        "https://own.example/simple https://download.pytorch.org/whl/cu130"
    )
    assert pip_settings.make_uv_environment(cpu.indexes)["UV_EXTRA_INDEX_URL"] == "https://own.example/simple"
    other = envs.Environment((packages.make_index_option("https://other.example"), *gpu.requirements))
    assert other.key != gpu.key


def test_a_config_may_name_an_index() -> None:
    made = BackendConfig(like="ort-cpu", packages=["--extra-index-url=https://a.example/simple", "onnxruntime==1.20.1"])  # type: ignore[call-arg]
    assert made.name == "ort-cpu@1.20.1"
    with pytest.raises(ValueError, match="names no index"):
        BackendConfig(name="ort-cpu", packages=["--extra-index-url=nonsense"])


@pytest.mark.skipif(sys.platform != "linux", reason="ELF libraries")
def test_libraries_of_a_package_are_loaded_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import _ctypes_test  # a small library that every Python brings

    folder = tmp_path / "planted_libs"
    folder.mkdir()
    for name in ("libb.so.1", "liba.so.2"):
        shutil.copy(_ctypes_test.__file__, folder / name)
    (folder / "libbad.so.1").write_text("no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = packages.load_package_libraries("planted_libs", ("libb.so.*", "libbad.so.*", "liba.so.*"))
    assert [Path(x).name for x in loaded] == ["libb.so.1", "liba.so.2"]
    assert packages.load_package_libraries("no_such_package", ("*",)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="ELF libraries")
def test_tinygrads_nvrtc_is_that_of_its_own_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tinygrad loads what NVRTC_PATH names, and its kernels include the headers below CUDA_PATH; a user's own stay."""
    import _ctypes_test
    import ctypes

    folder = tmp_path / "nvidia" / "cuda_nvrtc" / "lib"
    folder.mkdir(parents=True)
    (folder.parent.parent / "__init__.py").touch()
    shutil.copy(_ctypes_test.__file__, folder / "libnvrtc.so.13")
    (folder / "libnvrtc-builtins.so.13.0").write_text("no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    own = {"NVRTC_PATH": str(folder / "libnvrtc.so.13"), "CUDA_PATH": str(folder.parent)}
    for given in ({}, {"NVRTC_PATH": "/opt/mine/libnvrtc.so"}, {"CUDA_PATH": "/opt/mine"}):
        monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k not in own} | given)
        monkeypatch.setitem(sys.modules, "tinygrad", None)  # which would load what the variable names
        with pytest.raises(Unavailable):
            Tinygrad("tinygrad-cuda", "cuda", {}).probe()
        assert {name: os.environ[name] for name in own} == own | given
    ctypes.CDLL(str(folder / "libnvrtc.so.13"))


class FakeTensorFlow(types.ModuleType):
    """TensorFlow on a GPU whose eager op in the middle has a kernel of the CPU's alone; what it said of that in
    2.21."""

    def __init__(self) -> None:
        super().__init__("tensorflow")
        self.soft = True
        self.config = types.SimpleNamespace(
            get_soft_device_placement=lambda: self.soft,
            set_soft_device_placement=lambda soft: setattr(self, "soft", soft),
        )

    def device(self, name: str) -> Any:
        return contextlib.nullcontext()

    def constant(self, array: Any) -> Any:
        return types.SimpleNamespace(device="/job:localhost/replica:0/task:0/device:GPU:0", numpy=lambda: array)

    convert_to_tensor = staticmethod(lambda x: x)
    as_dtype = staticmethod(lambda name: name)

    def eigh(self, x: Any) -> Any:
        if not self.soft:
            raise ValueError(
                "Could not satisfy device specification '/job:localhost/replica:0/task:0/device:GPU:0'. enable_soft_placement=0. "
                "Supported device types [CPU]. All available devices [CPU:0, GPU:0]. [Op:SelfAdjointEigV2]"
            )
        return x


def test_tensorflow_computes_nothing_on_the_cpu_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    tf = FakeTensorFlow()
    monkeypatch.setitem(sys.modules, "tensorflow", tf)
    monkeypatch.setattr("tasks.backends.tensorflow.describe_framework_call", lambda form: "")
    args = encode_argument_tree((TensorSpec(0),))
    for call, said in ((lambda x: tf.constant(tf.eigh(x).numpy()), "Could not satisfy device"), (lambda x: x, "")):
        form = Form(
            "tensorflow",
            "torch:x",
            "float32",
            [np.ones(2, np.float32)],
            call=call,
            args=args,
            kwargs=encode_argument_tree({}),
        )
        program = BackendSpec.parse("tensorflow-cuda").create().build(form)
        with pytest.raises(Fallback, match=said) if said else contextlib.nullcontext():
            assert [x.tolist() for x in program.run()] == [[1.0, 1.0]]
        assert tf.soft  # what loads a SavedModel puts ops on the CPU that must be there


def test_what_tensorflow_puts_elsewhere_inside_a_saved_model_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is on the device all the same. What run metadata says was seen with TensorFlow 2.21 on two logical
    CPUs."""
    tf, cpu, gpu = FakeTensorFlow(), "/job:localhost/replica:0/task:0/device:CPU:0", "/device:GPU:0"
    nodes = [("MatMul", gpu, 1), ("_Recv", cpu, 1), ("Shape", cpu, 1), ("Mul", cpu, 3)]  # a shape's arithmetic
    made: list[Any] = []

    def node(op: str, device: str, kind: int) -> Any:
        attr = {"T": types.SimpleNamespace(type=kind, list=types.SimpleNamespace(type=[]))}
        return types.SimpleNamespace(op=op, device=device, attr=attr)

    def told() -> Any:
        graph = types.SimpleNamespace(node=[node(*n) for n in nodes])
        return types.SimpleNamespace(function_graphs=[types.SimpleNamespace(partition_graphs=[graph])])

    context = types.ModuleType("tensorflow.python.eager.context")
    asked = types.SimpleNamespace(
        enable_run_metadata=lambda: made.append("on"),
        export_run_metadata=told,
        disable_run_metadata=lambda: made.append("off"),
    )
    monkeypatch.setattr(context, "context", lambda: asked, raising=False)
    eager = types.ModuleType("tensorflow.python.eager")
    monkeypatch.setattr(eager, "context", context, raising=False)
    for name, module in (("tensorflow", tf), ("tensorflow.python", tf), (eager.__name__, eager)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("tasks.backends.tensorflow._load_saved_model_signature", lambda *given: lambda x: [x])
    form = Form("saved_model", "models:x", "float32", [np.ones(2, np.float32)], model=b"")
    said = []
    for more in ([], [("MatrixInverse", cpu, 1)]):
        nodes += more
        program = BackendSpec.parse("tensorflow-cuda").create().build(form)
        for _ in range(2):  # which is told at the first run
            program.run()
            said.append(program.fallback)
    assert said == [None, None, *["computed elsewhere than on GPU:0: MatrixInverse on CPU:0"] * 2]
    assert made == ["on", "off"] * 2


@pytest.mark.parametrize(
    "name", ["ort-cuda", "jax-cuda", "tensorflow-cuda", "paddle-cuda", "tinygrad-cuda", "torch-cuda"]
)
def test_a_launch_that_wants_too_much_loses_no_device(name: str) -> None:
    backend = BackendSpec.parse(name).create()
    for text, lost in (
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch", False),
        ("CUDA failure 701: too many resources requested for launch", False),
        ("cudaErrorLaunchOutOfResources", False),
        ("CUDA failure 700: an illegal memory access was encountered", True),
        ("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", True),
        ("CUDA_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction was encountered", True),
        ("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address", True),
    ):
        assert backend.is_sticky(RuntimeError(text)) is lost, text


def test_a_library_of_the_systems_in_place_of_the_environments_is_named(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 1   /opt/env/lib/python3.11/site-packages/nvidia/cu13/lib/libcublas.so.13\n"
        "7f01-7f02 r-xp 00000000 08:01 2   /apps/cudnn/lib/libcudnn.so.9\n7f02-7f03 rw-p 00000000 00:00 0\n"
        "7f03-7f04 r-xp 00000000 08:01 3   /usr/lib/x86_64-linux-gnu/libm.so.6\n"
        "7f04-7f05 r-xp 00000000 08:01 2   /apps/cuda/lib/libcudart.so.13\n7f05-7f06 r-xp 00000000 08:01 2   /apps/cuda/lib/libcublas.so.13\n"
    )
    said = ("libcublas.so.13 and libcudart.so.13 of /apps/cuda/lib", "libcudnn.so.9 of /apps/cudnn/lib")
    assert nvidia.list_system_cuda_libraries(maps) == said
    assert nvidia.list_system_cuda_libraries(tmp_path / "none") == ()


def test_inductor_says_what_it_needs_of_the_machine() -> None:
    needed = {
        name: [need.what for need in BackendSpec.parse(name).create().needs]
        for name in ("inductor-cuda", "inductor-rocm", "inductor-xpu", "inductor-cpu")
    }
    header = "Python header (Python.h)"
    assert needed["inductor-cuda"] == needed["inductor-rocm"] == ["C compiler (gcc)", header]
    assert needed["inductor-cpu"] == needed["inductor-xpu"] == ["C++ compiler (g++)", header]
