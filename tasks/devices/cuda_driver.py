"""CUDA's driver API by ctypes: memory, streams and events for runtimes that bring none, without a package of CUDA's."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import uuid
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

#: Errors after which no call of this process succeeds (cuda.h, CUresult): the context is corrupted.
STICKY = re.compile(
    r"(CUDA_ERROR_|cudaError)_?(ILLEGAL_?ADDRESS|LAUNCH_?FAILED|LAUNCH_?FAILURE|LAUNCH_?TIMEOUT|ASSERT|HARDWARE_?STACK_?ERROR"
    r"|ILLEGAL_?INSTRUCTION|MISALIGNED_?ADDRESS|INVALID_?ADDRESS_?SPACE|INVALID_?PC|ECC_?UNCORRECTABLE|CONTEXT_?IS_?DESTROYED)"
    r"|illegal memory access|unspecified launch failure|misaligned address|device-side assert|an illegal instruction|uncorrectable ECC",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(
    r"(CUDA_ERROR_|cudaErrorMemory)_?(OUT_OF_MEMORY|Allocation)|out of memory|OutOfMemory", re.IGNORECASE
)

_MAJOR, _MINOR, _ECC = 75, 76, 32  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…, _ECC_ENABLED


class CudaError(RuntimeError):
    """A call of the driver that failed; the text has the call and CUDA's name of the error."""


def load_cuda_driver() -> Any:
    """The driver's library. Raises OSError where there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def call_cuda_driver(library: Any, name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises CudaError."""
    code = int(getattr(library, name)(*arguments))
    if code:
        text = c_char_p()
        with contextlib.suppress(AttributeError):
            library.cuGetErrorName(c_int(code), byref(text))
        raise CudaError(f"{name}: {(text.value or b'CUDA error').decode()} ({code})")


def describe_gpu(library: Any, ordinal: int = 0) -> tuple[str, str]:
    """(name, "sm_90") of a GPU that this process sees. No context is made. Raises CudaError."""
    device = c_int()
    call_cuda_driver(library, "cuInit", c_uint(0))
    call_cuda_driver(library, "cuDeviceGet", byref(device), c_int(ordinal))
    return _name_gpu(library, device), f"sm_{''.join(_read_gpu_capability(library, device))}"


def _name_gpu(library: Any, device: c_int) -> str:
    text = ctypes.create_string_buffer(256)
    call_cuda_driver(library, "cuDeviceGetName", text, c_int(len(text)), device)
    return text.value.decode()


def _read_gpu_capability(library: Any, device: c_int) -> tuple[str, str]:
    major, minor = c_int(), c_int()
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        call_cuda_driver(library, "cuDeviceGetAttribute", byref(value), c_int(attribute), device)
    return str(major.value), str(minor.value)


def describe_gpu_identity(library: Any, ordinal: int = 0) -> list[str]:
    """Which GPU this process sees, in words of a row's flags: uuid (as nvidia-smi writes it), ecc (on, off), and mig,
    of a slice of it.

    No context is made. Raises CudaError.
    """
    call_cuda_driver(library, "cuInit", c_uint(0))
    device, on, whole, part = c_int(), c_int(), (c_ubyte * 16)(), (c_ubyte * 16)()
    call_cuda_driver(library, "cuDeviceGet", byref(device), c_int(ordinal))
    call_cuda_driver(library, "cuDeviceGetUuid", whole, device)
    found = [f"uuid=GPU-{uuid.UUID(bytes=bytes(whole))}"]
    with contextlib.suppress(CudaError):
        call_cuda_driver(library, "cuDeviceGetAttribute", byref(on), c_int(_ECC), device)
        found.append(f"ecc={'on' if on.value else 'off'}")
    # Of a slice the newer call gives its own (CUDA driver API, "If the device is in MIG mode, returns its MIG UUID").
    with contextlib.suppress(CudaError, AttributeError):
        call_cuda_driver(library, "cuDeviceGetUuid_v2", part, device)
        found += [f"mig=MIG-{uuid.UUID(bytes=bytes(part))}"] if bytes(part) != bytes(whole) else []
    return found


def measure_gpu_memory(library: Any, ordinal: int = 0) -> int:
    """Bytes of the GPU that this process sees. No context is made. Raises CudaError."""
    device, size = c_int(), c_size_t()
    call_cuda_driver(library, "cuInit", c_uint(0))
    call_cuda_driver(library, "cuDeviceGet", byref(device), c_int(ordinal))
    call_cuda_driver(library, "cuDeviceTotalMem_v2", byref(size), device)
    return int(size.value)


class CudaDevice:
    """One GPU with its primary context (the one that CUDA's runtime API uses) current in this thread.

    Addresses of device memory are plain integers. Raises CudaError in every method.
    """

    def __init__(self, library: Any, ordinal: int = 0) -> None:
        self._library = library
        self._call("cuInit", c_uint(0))
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._device = device

    def _call(self, name: str, *arguments: Any) -> None:
        call_cuda_driver(self._library, name, *arguments)

    @property
    def name(self) -> str:
        return _name_gpu(self._library, self._device)

    @property
    def capability(self) -> str:
        """Compute capability, "9.0"."""
        return ".".join(_read_gpu_capability(self._library, self._device))

    @property
    def driver_version(self) -> str:
        """The CUDA version that the driver offers, "13.0"."""
        value = c_int()
        self._call("cuDriverGetVersion", byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes of device memory (at least one: an empty tensor needs an address too)."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(max(size, 1)))
        return int(address.value)

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", c_uint64(address))

    def fill(self, address: int, size: int, byte: int = 0xFF) -> None:
        if size:
            self._call("cuMemsetD8_v2", c_uint64(address), c_ubyte(byte), c_size_t(size))

    def to_device(self, address: int, array: np.ndarray) -> None:
        """Copy a C-contiguous array."""
        if array.nbytes:
            self._call("cuMemcpyHtoD_v2", c_uint64(address), c_void_p(array.ctypes.data), c_size_t(array.nbytes))

    def to_host(self, array: np.ndarray, address: int) -> None:
        """Fill a C-contiguous array."""
        if array.nbytes:
            self._call("cuMemcpyDtoH_v2", c_void_p(array.ctypes.data), c_uint64(address), c_size_t(array.nbytes))

    def create_stream(self) -> int:
        handle = c_void_p()
        self._call("cuStreamCreate", byref(handle), c_uint(0))
        return int(handle.value or 0)

    def wait(self, stream: int) -> None:
        self._call("cuStreamSynchronize", c_void_p(stream))

    def create_event(self) -> int:
        handle = c_void_p()
        self._call("cuEventCreate", byref(handle), c_uint(0))
        return int(handle.value or 0)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def milliseconds(self, first: int, last: int) -> float:
        """Time on the GPU between two events that have been waited for."""
        value = c_float()
        self._call("cuEventElapsedTime", byref(value), c_void_p(first), c_void_p(last))
        return float(value.value)
