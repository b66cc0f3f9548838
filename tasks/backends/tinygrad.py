"""tinygrad: the ONNX form through its own ONNX runner, on any of its devices, compiled kernel by kernel."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays.pack import name_numpy_dtype
from tasks.arrays.tree import flatten_nested_lists
from tasks.backends.base import TIMES_KERNELS, Backend, importing, smoke_test
from tasks.backends.needs import C_COMPILER, OPENCL, Need, read_compiler_version
from tasks.backends.shared import artefacts
from tasks.backends.shared.native_output import capture_native_output
from tasks.backends.shared.onnx_form import make_probe_form, name_onnx_inputs
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_model
from tasks.devices import BY_LABEL, cuda_driver, find_device_number, processor
from tasks.model import Form, Program, RuntimeInfo, Unsupported, get_numpy_dtype
from tasks.packages import ONNX, list_package_files

#: Of OpenCL's runtimes for CPUs.
_ONE_THREAD = {"POCL_MAX_PTHREAD_COUNT": "1", "CL_CONFIG_CPU_TBB_NUM_WORKERS": "1"}
#: Label of the nodes that have a device of this name; OpenCL's may be anybody's.
_DEVICE_VENDORS = {
    "cpu": "",
    "cl": "",
    "cuda": "nvidia",
    "nv": "nvidia",
    "amd": "amd",
    "hip": "amd",
    "metal": "apple",
    "qcom": "qualcomm",
    "webgpu": "",
}
#: What the CPU's kernels and OpenCL need, and wheels that bring it: a clang, Intel's OpenCL for CPUs and its libraries.
_NEEDS: dict[str, tuple[tuple[Need, ...], tuple[str, ...]]] = {
    "cpu": ((C_COMPILER,), ("ziglang==0.17.1",)),
    "cl": (
        OPENCL,
        tuple(
            f'{x}; sys_platform == "linux" and platform_machine == "x86_64"'
            for x in ("intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0")
        ),
    ),
}
#: CUDA's run-time compiler and the headers that kernels include.
_NVRTC = tuple(f"nvidia-cuda-{x}==13.0.*" for x in ("nvrtc", "runtime", "crt", "cccl"))
_OPTIONS = ("renderer", "device_vendor", "noopt", "beam")

#: tinygrad's names (tinygrad.dtype.dtypes) by dtype of the farm; it has no others that ONNX has.
_TINY = {
    "bool": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float64": "float64",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
}

#: An op or attribute that the runner has not; a dtype that its OnnxDataType has not; what it says of a branch; a clang
#: whose __bf16 is for storage alone (before 17).
_UNSUPPORTED = re.compile(
    r"not supported|[Uu]nsupported|not implemented|unexpected keyword argument|is not a valid (OnnxDataType|Domain|AttributeType)"
    r"|only float32 is supported|supports at most|TODO|must be homogeneous|must be installed"
    r"|invalid (coordinate_transformation_mode|nearest_mode|mode|pixel_format)|cannot type-cast (to|from) __bf16"
)
_STICKY = re.compile(cuda_driver.STICKY.pattern + r"|MMU fault|device (was )?lost|CL_OUT_OF_RESOURCES", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OUT_OF_MEMORY|CL_MEM_OBJECT_ALLOCATION_FAILURE|Cannot allocate memory", re.IGNORECASE
)


class Tinygrad(Backend):
    """tinygrad on one of its devices ("cpu", "cl", "cuda", "amd", "metal", …), one thread on the CPU.

    options: ``renderer`` (how kernels are made, in tinygrad's words: on the CPU "clang", by default, "llvm" or "x86"),
    ``device_vendor`` (node label of an OpenCL or WebGPU device that is no CPU), ``noopt`` (bool: kernels as written,
    without its hand-coded optimizations), ``beam`` (int: search this wide for the fastest kernel). OpenCL on a CPU is
    emulated.
    """

    vendor = "tiny corp"
    forms = ("onnx",)
    inputs_once = True
    takes = _OPTIONS
    devices = tuple(_DEVICE_VENDORS)
    numbered = True
    packages: tuple[str, ...] = ("tinygrad==0.14.0", ONNX)
    sticky, unsupported, out_of_memory = _STICKY, _UNSUPPORTED, _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        kind = device.partition(".")[0]
        self.device_vendor = str(options.get("device_vendor", _DEVICE_VENDORS.get(kind, kind)))
        if self.device_vendor and self.device_vendor not in BY_LABEL:
            raise ValueError(f"backend {name}: no vendor {self.device_vendor!r}; known: {', '.join(BY_LABEL)}")
        if kind == "cl" or (kind == "cpu" and str(options.get("renderer", "clang")).lower() == "clang"):
            self.needs, more = _NEEDS[kind]
            self.packages = (*self.packages, *more)
        if kind in ("cuda", "nv"):
            self.packages = (*self.packages, *_NVRTC)
        self.alone = TIMES_KERNELS if self.device_vendor and self.number("beam", 0) else ""
        self._target = device.upper().replace(".", ":")
        if kind in ("cl", "webgpu") and "." not in device and (number := find_device_number()):
            self._target += f":{number}"  # it sees all of a node's
        self._variables = {
            "DEV": kind.upper() + (f":{str(options['renderer']).upper()}" if "renderer" in options else ""),
            "NUM_CPU_THREADS": "1",
            "PARALLEL": "0",  # else it compiles in a pool of processes
            "NOOPT": str(int(self.switch("noopt"))),
            "BEAM": str(self.number("beam", 0)),
        }

    def probe(self) -> RuntimeInfo:
        """Open the device and run a model of one Add on it.

        Raises Unavailable: the package is missing, the device cannot be opened (in tinygrad's words), or it fails.
        """
        os.environ.update(self._variables | _place_tinygrad_caches(self.found) | _ONE_THREAD)
        for library in list_package_files("nvidia", "*/lib/libnvrtc.so.*[0-9]"):
            os.environ.setdefault("NVRTC_PATH", str(library))
            os.environ.setdefault("CUDA_PATH", str(library.parents[1]))
        with importing("tinygrad"):
            import tinygrad  # noqa: F401
            from tinygrad import Device
            from tinygrad.engine.realize import compile_linear, run_linear  # noqa: F401
            from tinygrad.helpers import Context
        said: list[str] = []

        def compute() -> Any:
            with capture_native_output(said):
                Device[self._target]
            with Context(CACHELEVEL=0):  # a kernel that was kept says nothing of today's compiler
                return self.build(make_probe_form()).run()[0]

        def words(error: Exception) -> str:
            return " ".join(" ".join([str(error), *said]).split())[-600:]

        smoke_test(f"tinygrad's {self._target}", compute, words=words)
        opened: Any = Device[self._target]
        name, driver = str(getattr(opened, "device_name", "")), str(getattr(opened, "driver_version", ""))
        self.emulated = self._target.startswith("CL") and _is_opencl_cpu(opened)
        if C_COMPILER in self.needs:  # what compiles decides what is unsupported
            driver = read_compiler_version(os.environ["CC"])
        return RuntimeInfo(metadata.version("tinygrad"), name or self.device, driver)

    def build(self, form: Form) -> Program:
        """Trace the model, schedule its kernels and compile them, and make its inputs.

        Raises Unsupported (an op, attribute or dtype that tinygrad's runner has not, a dtype that the device has not);
        what tinygrad raises otherwise, with a compiler's words.
        """
        from tinygrad import Tensor
        from tinygrad.engine.realize import compile_linear

        values = name_onnx_inputs(form)
        said: list[str] = []
        try:
            with capture_native_output(said):
                found = _make_onnx_runner(form.model or b"")({k: self._feed(k, v) for k, v in values.items()})
                outputs = [self._output(k, x) for k, value in found.items() for x in flatten_nested_lists(value)]
                pending = [x for x in outputs if 0 not in x.shape]
                linear = compile_linear(Tensor.linear_with_vars(*pending)[0]) if pending else None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"the kernel does not compile: {_cut_tinygrad_words(said)}") from error
        kernels = sum(call.src[0].op.name == "PROGRAM" for call in linear.src) if linear is not None else 0
        flags = " ".join(f"{k}={v}" for k, v in self._variables.items() if v != "0")
        return Program(_make_kernel_runner(linear, outputs), f"{self._target}: {kernels} kernels", flags=flags)

    def recipe(self, form: Form) -> ProgramRecipe:
        """With a clang: the one that the environment's package brings, else the machine's."""
        check_form_has_model(form)
        variables = {k: v for k, v in self._variables.items() if v != "0"}
        brought = any(x.startswith("ziglang") for x in self.packages)
        return ProgramRecipe(run_model, {"packaged_clang": brought}, (name_zig_as_clang,), variables)

    def _feed(self, name: str, value: Any) -> Any:
        """A Tensor on the device with the value's own bytes; lists for sequences, None for an empty optional."""
        from tinygrad import Tensor, dtypes

        if value is None:
            return None
        if isinstance(value, list):
            return [self._feed(name, x) for x in value]
        dtype = name_numpy_dtype(value.dtype)
        if dtype not in _TINY:
            raise Unsupported(f"tinygrad has no dtype {dtype} (input {name})")
        wanted = getattr(dtypes, _TINY[dtype])
        self._check(wanted, f"input {name}")
        if value.size == 0:
            return Tensor([], dtype=wanted, device=self._target).reshape(value.shape)
        return _make_tinygrad_tensor(value, wanted, self._target)

    def _check(self, dtype: Any, what: str) -> None:
        from tinygrad import Device

        if dtype not in Device[self._target].renderer.supported_dtypes():
            raise Unsupported(f"tinygrad's {self._target} has no {dtype} ({what})")

    def _output(self, name: str, value: Any) -> Any:
        """The Tensor to be computed for an output. Raises TypeError for what is none."""
        from tinygrad import Tensor, dtypes
        from tinygrad.dtype import strong_dtype

        if not isinstance(value, Tensor):
            raise TypeError(f"the output {name} is a Python {type(value).__name__}, not a Tensor")
        if value.dtype in dtypes.weaks:
            value = value.cast(strong_dtype(value.dtype))
        self._check(value.dtype, f"output {name}")
        return value.to(self._target).contiguous() if 0 not in value.shape else value


def _make_tinygrad_tensor(value: np.ndarray, dtype: Any, device: str) -> Any:
    """A Tensor over a copy of the value's bytes: numpy has no bfloat16, and a 0-d array would be a constant."""
    from tinygrad import Tensor

    bits = np.array(value, order="C").reshape(-1)
    if name_numpy_dtype(value.dtype) in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        bits = bits.view(np.uint16 if bits.dtype.itemsize == 2 else np.uint8)
        return Tensor(bits, device=device).bitcast(dtype).reshape(value.shape).contiguous().realize()
    return Tensor(bits, device=device).reshape(value.shape)


def _make_onnx_runner(model: bytes) -> Any:
    """tinygrad's OnnxRunner of a model; from a file, of which it maps the weights."""
    from tinygrad.nn.onnx import OnnxRunner

    with tempfile.NamedTemporaryFile(prefix="tinygrad-", suffix=".onnx") as file:
        file.write(model)
        file.flush()
        return OnnxRunner(file.name)


def _make_kernel_runner(linear: Any, outputs: list[Any]) -> Callable[[], list[np.ndarray]]:
    """``run()`` of compiled kernels; outputs in their true dtype and their own memory."""
    from tinygrad.engine.realize import run_linear

    def run() -> list[np.ndarray]:
        if linear is not None:
            run_linear(linear)
        return [_copy_tinygrad_tensor(x) for x in outputs]

    return run


def _copy_tinygrad_tensor(tensor: Any) -> np.ndarray:
    from tinygrad import dtypes

    dtype = get_numpy_dtype(next(name for name, tiny in _TINY.items() if getattr(dtypes, tiny) is tensor.dtype))
    if 0 in tensor.shape:
        return np.empty(tensor.shape, dtype)
    raw = np.frombuffer(bytearray(tensor._buffer().as_memoryview()), np.uint8)
    return raw.view(dtype).reshape(tensor.shape)


def _place_tinygrad_caches(found: Mapping[str, str]) -> dict[str, str]:
    """Where compiled kernels are kept between runs: by what decides them, the processor and what compiles."""
    folder = os.environ.get(artefacts.FOLDER)
    if not folder:
        return {}
    parts = [processor.describe_processor(), *(f"{where} {_stamp_clang(where)}" for where in found.values())]
    path = Path(folder) / "tinygrad" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return {"CACHEDB": str(path / "cache.db"), "POCL_CACHE_DIR": str(path / "pocl")}


def _stamp_clang(where: str) -> str:
    """What changes when a compiler is mended in its place."""
    with contextlib.suppress(OSError):
        stat = os.stat(where)
        return f"{stat.st_size} {stat.st_mtime_ns}"
    return ""


def _is_opencl_cpu(device: Any) -> bool:
    """True if an OpenCL device of tinygrad's is a CPU (CL_DEVICE_TYPE_CPU)."""
    import ctypes

    from tinygrad.runtime.autogen import opencl

    kind = ctypes.c_uint64()
    opencl.clGetDeviceInfo(device.cl_dev, opencl.CL_DEVICE_TYPE, 8, ctypes.byref(kind), None)
    return bool(kind.value & opencl.CL_DEVICE_TYPE_CPU)


def _cut_tinygrad_words(said: list[str]) -> str:
    lines = "".join(said).splitlines()
    return " ".join(next((x for x in lines if "error:" in x), " ".join(lines[-3:])).split())


def name_zig_as_clang() -> None:
    """Let the package ziglang, which is clang when it is told so, compile."""
    import os
    import tempfile

    import ziglang

    path = os.path.join(tempfile.mkdtemp(), "clang")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\nexec "{os.path.dirname(ziglang.__file__)}/zig" clang "$@"\n')
    os.chmod(path, 0o755)
    os.environ["CC"] = path


def run_model(model: str, inputs: dict, packaged_clang: bool) -> list:
    """Outputs of an ONNX model on tinygrad."""
    if packaged_clang:
        name_zig_as_clang()
    from tinygrad import Tensor, dtypes
    from tinygrad.nn.onnx import OnnxRunner

    given, got = {}, []
    for name, x in inputs.items():
        bits = x.dtype.name == "bfloat16"  # which tinygrad does not know as an array
        given[name] = Tensor(x.view(np.uint16)).bitcast(dtypes.bfloat16) if bits else Tensor(x)
    for x in OnnxRunner(model)(given).values():
        bits = x.dtype == dtypes.bfloat16
        got.append(x.bitcast(dtypes.uint16).numpy().view("bfloat16") if bits else x.numpy())
    return got
