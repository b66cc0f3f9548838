"""The driver code of CUDA, unmodified, over a library that has the CPU's memory for a GPU's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.backends.base import FRACTION
from tasks.backends.shared import cuda_driver

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("stub") / "libcuda.so.1"
    source = Path(__file__).with_name("stub_cuda.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source)], check=True)
    return ctypes.CDLL(str(path))


def test_a_device_says_what_it_is(library: Any) -> None:
    gpu = cuda_driver.Device(library)
    assert (gpu.name, gpu.capability, gpu.driver_version) == ("Stub GPU", "9.0", "13.0")


def test_a_row_says_which_gpu_or_slice_of_one_and_whether_its_memory_is_checked(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = "uuid=GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert cuda_driver.identity(library) == [whole, "ecc=off"]
    monkeypatch.setenv("FARM_STUB_CUDA_ECC", "1")
    monkeypatch.setenv("FARM_STUB_CUDA_MIG", "1")
    assert cuda_driver.identity(library) == [whole, "ecc=on", "mig=MIG-80818283-8485-8687-8889-8a8b8c8d8e8f"]


def test_a_provider_of_onnx_runtimes_is_told_its_share_of_the_memory(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_driver, "load", lambda: library)
    for fraction, bound in (("0.25", str(20 << 30)), (None, None)):
        monkeypatch.delenv(FRACTION, raising=False)
        if fraction:
            monkeypatch.setenv(FRACTION, fraction)
        assert [
            BackendSpec.parse(name).create()._provider_options().get("gpu_mem_limit")  # type: ignore[attr-defined]
            for name in ("ort-cuda", "ort-migraphx")
        ] == [bound, None]


def test_memory_goes_there_and_back(library: Any) -> None:
    gpu, data = cuda_driver.Device(library), np.arange(24, dtype=np.float32)
    address, back = gpu.allocate(data.nbytes), np.empty_like(data)
    gpu.to_device(address, data)
    gpu.to_host(back, address)
    assert back.tolist() == data.tolist()
    gpu.fill(address, data.nbytes)
    gpu.to_host(back, address)
    assert set(back.tobytes()) == {0xFF}
    gpu.free(address)


def test_events_measure_what_lies_between(library: Any) -> None:
    gpu = cuda_driver.Device(library)
    first, last, stream = gpu.event(), gpu.event(), gpu.stream()
    gpu.record(first, stream)
    gpu.record(last, stream)
    gpu.wait(stream)
    assert gpu.milliseconds(first, last) >= 0


def test_errors_carry_the_name_that_cuda_gives_them(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = cuda_driver.Device(library)
    monkeypatch.setenv("FARM_STUB_CUDA_BYTES", "1000")
    with pytest.raises(cuda_driver.CudaError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\)") as full:
        gpu.allocate(4096)
    assert cuda_driver.OUT_OF_MEMORY.search(str(full.value)) and not cuda_driver.STICKY.search(str(full.value))
    monkeypatch.setenv("FARM_STUB_CUDA_FAIL", "cuStreamSynchronize")
    with pytest.raises(cuda_driver.CudaError, match="ILLEGAL_ADDRESS") as lost:
        gpu.wait(gpu.stream())
    assert cuda_driver.STICKY.search(str(lost.value))
    with pytest.raises(cuda_driver.CudaError, match="INVALID_DEVICE"):
        cuda_driver.Device(library, 1)
