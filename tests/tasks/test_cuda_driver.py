"""The driver code of CUDA, unmodified, over a library that has the CPU's memory for a GPU's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from packaging.requirements import Requirement

from tasks.backends import BackendSpec
from tasks.backends.base import FRACTION, Backend
from tasks.devices import cuda_driver
from tasks.devices.base import DeviceDriver
from tasks.judge import policy_files
from tasks.model import Form, Group, Program, RuntimeInfo
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("stub") / "libcuda.so.1"
    source = Path(__file__).with_name("stub_cuda.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source)], check=True)
    return ctypes.CDLL(str(path))


def test_a_device_says_what_it_is(library: Any) -> None:
    gpu = cuda_driver.CudaDevice(library)
    assert (gpu.name, gpu.capability, gpu.driver_version) == ("Stub GPU", "9.0", "13.0")


def test_a_row_says_which_gpu_or_slice_of_one_and_whether_its_memory_is_checked(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = "uuid=GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert cuda_driver.describe_gpu_identity(library) == [uuid, "ecc=off"]
    monkeypatch.setenv("FARM_STUB_CUDA_ECC", "1")
    monkeypatch.setenv("FARM_STUB_CUDA_MIG", "1")
    assert cuda_driver.describe_gpu_identity(library) == [
        uuid,
        "ecc=on",
        "mig=MIG-80818283-8485-8687-8889-8a8b8c8d8e8f",
    ]


class OnGpu(Backend):
    """Any runtime on a GPU of NVIDIA's that says of it what ``told`` is."""

    forms = ("torch",)
    device_vendor, resource = "nvidia", "GPU"

    def __init__(self, device: str, told: str) -> None:
        super().__init__(f"runtime-{device}", device, {})
        self.told = told

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("runtime 1", self.told, "13.0")

    def build(self, form: Form) -> Program:
        return Program(lambda: [np.maximum(form.arrays[0], 0)], flags="mode=x")


@pytest.mark.parametrize(
    ("device", "told", "said"),
    [
        ("cuda", "cuda", "Stub GPU, sm_90"),
        ("tensorrt", "tensorrt", "Stub GPU, sm_90"),
        ("cuda", "gpu:0", "Stub GPU, sm_90"),
        ("cuda", "Stub GPU", "Stub GPU, sm_90"),
        ("cuda", "Stub GPU, sm_90", "Stub GPU, sm_90"),
        ("cuda", "Stub GPU, Stub GPU", "Stub GPU, sm_90"),
        ("tensorrt-rtx", "tensorrt-rtx (NVIDIA GPU)", "Stub GPU, tensorrt-rtx (NVIDIA GPU), sm_90"),
    ],
)
def test_rows_of_every_runtime_say_which_gpu_they_are_of(
    device: str, told: str, said: str, library: Any, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(cuda_driver, "load_cuda_driver", lambda: library)
    brought = {"nvidia-cudnn-cu13": "9.1.0", "nvidia-cublas": "13.1.1"}

    def version_of(package: str) -> str:
        if package not in brought:
            raise metadata.PackageNotFoundError
        return brought[package]

    installed = SimpleNamespace(version=version_of, PackageNotFoundError=metadata.PackageNotFoundError)
    monkeypatch.setattr("tasks.devices.nvidia.metadata", installed)
    monkeypatch.setattr("tasks.devices.nvidia.list_system_cuda_libraries", lambda: ("libcudnn.so.9 of /apps",))
    for driver, version in (("580.95.05", "580.95.05"), ("", "13.0")):
        monkeypatch.setattr(DeviceDriver, "version", lambda self, root=None, driver=driver: driver)
        backend = OnGpu(device, told)
        info = backend.start()
        assert (info.device, info.driver_version) == (said, version)
        assert info.runtime_version == "runtime 1, cuDNN 9.1.0, cuBLAS 13.1.1, libcudnn.so.9 of /apps"
    _, made = prepare_group(Group("critical:relu", "", "float32", 1), cache)
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path))]))
    assert row.status == "pass", row.error
    assert row.flags == "mode=x uuid=GPU-00010203-0405-0607-0809-0a0b0c0d0e0f ecc=off"
    monkeypatch.setattr(cuda_driver, "describe_gpu", lambda library, at: ("Stub GPU", "sm_90"))
    monkeypatch.setattr(cuda_driver, "measure_gpu_memory", lambda library, at: 1 << 30)
    monkeypatch.setattr(cuda_driver, "describe_gpu_identity", lambda library, at: [f"uuid={at}"])
    backend.ordinals = (0, 1)  # of a backend on several: each of them
    backend.start()
    assert backend.identity == ("uuid=0", "uuid=1")


@pytest.mark.parametrize("name", ["ort-cuda", "ort-tensorrt", "jax-cuda"])
def test_what_computes_on_a_gpu_is_pinned_to_the_cuda_that_the_oldest_driver_offers(name: str) -> None:
    asked = [Requirement(x) for x in BackendSpec.parse(name).create().packages if not x.startswith("--")]
    of = {x.name: str(x.specifier) for x in asked}
    assert of["cuda-toolkit"].startswith("==13.0.") and of["nvidia-nvjitlink"] == "==13.0.*"
    assert of["nvidia-cudnn-cu13"].startswith("==9.")
    assert {"cublas", "cudart", "nvrtc"} <= next(x.extras for x in asked if x.name == "cuda-toolkit")


def test_without_a_driver_a_row_says_what_the_runtime_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda_driver, "load_cuda_driver", none)
    assert OnGpu("cuda", "gpu:0").start().device == "gpu:0"


def test_a_provider_of_onnx_runtimes_is_told_its_share_of_the_memory(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_driver, "load_cuda_driver", lambda: library)
    for fraction, bound in (("0.25", str(20 << 30)), (None, None)):
        monkeypatch.delenv(FRACTION, raising=False)
        if fraction:
            monkeypatch.setenv(FRACTION, fraction)
        assert [
            BackendSpec.parse(name).create()._provider_options().get("gpu_mem_limit")  # type: ignore[attr-defined]
            for name in ("ort-cuda", "ort-migraphx")
        ] == [bound, None]
        made: Any = BackendSpec.parse("ort-cuda").create()
        made._provider = "CUDAExecutionProvider"
        session = SimpleNamespace(SessionOptions=MagicMock, InferenceSession=lambda *given, providers, **how: providers)
        assert made._session(session, b"")[0][1].get("gpu_mem_limit") == bound


def test_memory_goes_there_and_back(library: Any) -> None:
    gpu, data = cuda_driver.CudaDevice(library), np.arange(24, dtype=np.float32)
    address, back = gpu.allocate(data.nbytes), np.empty_like(data)
    gpu.to_device(address, data)
    gpu.to_host(back, address)
    assert back.tolist() == data.tolist()
    gpu.fill(address, data.nbytes)
    gpu.to_host(back, address)
    assert set(back.tobytes()) == {0xFF}
    gpu.free(address)


def test_events_measure_what_lies_between(library: Any) -> None:
    gpu = cuda_driver.CudaDevice(library)
    first, last, stream = gpu.create_event(), gpu.create_event(), gpu.create_stream()
    gpu.record(first, stream)
    gpu.record(last, stream)
    gpu.wait(stream)
    assert gpu.milliseconds(first, last) >= 0


def test_errors_carry_the_name_that_cuda_gives_them(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = cuda_driver.CudaDevice(library)
    monkeypatch.setenv("FARM_STUB_CUDA_BYTES", "1000")
    with pytest.raises(cuda_driver.CudaError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\)") as full:
        gpu.allocate(4096)
    assert cuda_driver.OUT_OF_MEMORY.search(str(full.value)) and not cuda_driver.STICKY.search(str(full.value))
    monkeypatch.setenv("FARM_STUB_CUDA_FAIL", "cuStreamSynchronize")
    with pytest.raises(cuda_driver.CudaError, match="ILLEGAL_ADDRESS") as lost:
        gpu.wait(gpu.create_stream())
    assert cuda_driver.STICKY.search(str(lost.value))
    with pytest.raises(cuda_driver.CudaError, match="INVALID_DEVICE"):
        cuda_driver.CudaDevice(library, 1)
