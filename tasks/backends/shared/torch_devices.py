"""What torch's device types need beside torch: plugins, switches, waiting, and the words of their errors."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.backends.shared import cuda_driver
from tasks.backends.shared.packages import index, torch_build


@dataclass(frozen=True)
class TorchDevice:
    """One device type as a backend names it.

    target: what torch calls it ("" = the same); plugin: the module whose import registers it; distribution: the package that
    has that; toolkit: the vendor whose toolkit that needs (`drivers.TOOLKITS`); variables: of the
    environment, set before torch is imported where the user has not set them; platform: what PJRT calls it.
    option: the switch that lets it compute products of float32 coarser, and the precision it then declares; coarser: variables
    without which it does not; obeys: whether the switch is a command. Most allow it: cuDNN may still choose a kernel of float32.
    packages: of an environment of its own, pinned, with the index that has them beside PyPI.
    unsupported: what its errors say of a dtype, a device or sizes that there is no kernel for, beside `_NO_KERNEL`; sticky,
    out_of_memory: how they say that.
    """

    target: str = ""
    plugin: str = ""
    distribution: str = ""
    toolkit: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    platform: str = ""
    option: str = ""
    coarse: str = ""
    coarser: tuple[tuple[str, str], ...] = ()
    obeys: bool = False
    packages: tuple[str, ...] = ()
    unsupported: str = ""
    sticky: str = ""
    out_of_memory: str = ""


#: What torch itself says on any device, as a RuntimeError, of a dtype that a kernel was not written for (AT_DISPATCH: '"histc" not
#: implemented for 'BFloat16''; older kernels: "HalfTensor is not supported").
_NO_KERNEL = re.compile(r"not implemented for '|is not implemented|^\w+Tensor is not supported$")
#: What it says where the one kernel of attention that is allowed does not take a call. CUDA's "Invalid backend" is the end of its
#: list of kernels (ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend).
_NO_ATTENTION = re.compile(r"No viable backend for scaled_dot_product_attention|No available kernel|^Invalid backend$")
#: What libraries of CUDA and torch say of a case for which they have no kernel on this device.
_NO_CUDA_KERNEL = (
    r"not supported on CUDA$|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH)|CUFFT_(?:NOT_SUPPORTED|NOT_IMPLEMENTED|INVALID_TYPE)"
    r"|cuFFT only supports|no kernel image is available|invalid device function|[Uu]nable to find (?:an engine|a valid cuDNN)"
)
#: What torch's float8 and int8 products say of a GPU, a type or sizes that they are not for (ATen/native/cuda/Blas.cpp).
_NO_SMALL_PRODUCT = (
    r"_scaled_mm is only supported|is only supported (?:for|on) (?:gfx|ROCm|CUDA|SM)|Multiplication of two Float8_\w+ matrices is not supported"
    r"|(?:needs?|[Ee]xpected?) .{0,60}(?:greater than|multiple of|divisible by) \d+"
)
#: What is said without memory beside torch's own allocator: by the driver, and by libraries, which cannot make their handles then.
_NO_CUDA_MEMORY = (
    r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_\w+_ALLOCATION_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED,? when calling `?cublas(?:Lt)?Create|CUSOLVER_STATUS_\w+,? when calling `?cusolverDnCreate"
)
#: What the torch catalog needs beside torch.
CATALOG = ("expecttest", "scipy")
#: A plugin that torch imports by itself takes torch down with it where its driver is missing.
_ALONE = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
#: What plugins call the number of pieces of memory that their allocator has handed out: torch's own, Habana's.
_ALLOCATIONS = ("allocation.all.allocated", "NumAllocs")
#: How plugins say that a kernel of the CPU did the work: torch's own words for MPS, XPU's, Ascend's.
FELL_BACK = re.compile(
    r"fall(?:s|en|ing)?[ -]?back (?:to (?:run )?(?:on )?(?:the )?CPU|from \w+ to CPU)|run on the CPU", re.IGNORECASE
)

DEVICES: dict[str, TorchDevice] = {
    "cpu": TorchDevice(),
    "cuda": TorchDevice(
        option="tf32",
        coarse="tfloat32",
        packages=(*torch_build("cu130"), *CATALOG),
        unsupported=f"{_NO_CUDA_KERNEL}|{_NO_SMALL_PRODUCT}",
        sticky=cuda_driver.STICKY.pattern + r"|(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
        out_of_memory=f"{cuda_driver.OUT_OF_MEMORY.pattern}|{_NO_CUDA_MEMORY}",
    ),
    "rocm": TorchDevice(
        target="cuda",
        option="tf32",
        coarse="tfloat32",
        coarser=(("HIPBLASLT_ALLOW_TF32", "1"),),  # torch takes no TF32 on ROCm otherwise (ATen/Context.cpp)
        packages=(*torch_build("rocm7.2"), *CATALOG),
        unsupported=_NO_SMALL_PRODUCT
        + r"|(?:HIPBLAS|ROCBLAS|MIOPEN|HIPFFT)_?\w*NOT_(?:SUPPORTED|IMPLEMENTED)|miopenStatusUnsupportedOp|hipErrorNoBinaryForGpu|no kernel image is available|invalid device function",
        sticky=cuda_driver.STICKY.pattern
        + r"|(?:HIPBLAS|ROCBLAS)_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)|hipErrorLaunchFailure|HSA_STATUS_ERROR_\w+",
        out_of_memory=cuda_driver.OUT_OF_MEMORY.pattern
        + r"|(?:HIPBLAS|HIPSOLVER|HIPSPARSE)_STATUS_ALLOC_FAILED|HIPFFT_ALLOC_FAILED|miopenStatusAllocFailed"
        r"|HIPBLAS_STATUS_NOT_INITIALIZED,? when calling `?hipblas(?:Lt)?Create|HIPSOLVER_STATUS_\w+,? when calling `?hipsolver\w*Create",
    ),
    # The names of Unified Runtime's results: https://oneapi-src.github.io/unified-runtime/core/api.html#ur-result-t
    "xpu": TorchDevice(
        option="tf32",
        coarse="tfloat32",
        packages=(*torch_build("xpu"), *CATALOG),
        variables=(("PYTORCH_DEBUG_XPU_FALLBACK", "1"),),  # else an op that runs on the CPU does not say so
        sticky=r"UR_RESULT_ERROR_(?:DEVICE_LOST|OUT_OF_RESOURCES|UNKNOWN)|PI_ERROR_DEVICE_LOST",
        out_of_memory=r"UR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY|XPU out of memory",
    ),
    "mps": TorchDevice(
        variables=(("PYTORCH_ENABLE_MPS_FALLBACK", "0"),),
        unsupported=r"not currently (?:implemented|supported) (?:for|on) the MPS|MPS framework doesn't support|not supported on MPS",
        sticky=r"[Cc]ommand buffer (?:execution )?(?:failed|exited)|kIOGPUCommandBufferCallbackError|MTLCommandBufferError",
        out_of_memory=r"MPS backend out of memory|InsufficientMemory",
    ),
    # 507xxx are CANN's errors of the device itself (aicore exception, timeout, lost); 161002 a parameter it does not take.
    "npu": TorchDevice(
        plugin="torch_npu",
        distribution="torch_npu",
        toolkit="huawei",
        option="hf32",
        coarse="tfloat32",
        packages=("torch==2.13.0", "torch-npu==2.13.0", "pyyaml", *CATALOG),
        variables=(_ALONE, ("TORCH_NPU_FALLBACK_CPU_DISABLE", "1")),
        unsupported=r"not implemented for DT_|dtype support list|not (?:currently )?supported on the NPU",
        sticky=r"error code(?: is|:)? ?507\d{3}|aicore exception|vector core execution is abnormal|FORCE STOP",
        out_of_memory=r"NPU out of memory|error code(?: is|:)? ?207001",
    ),
    "hpu": TorchDevice(
        plugin="habana_frameworks.torch.core",
        distribution="habana_torch_plugin",
        toolkit="gaudi",
        packages=(
            index("https://vault.habana.ai/artifactory/api/pypi/gaudi-python/simple"),
            "habana-torch-plugin==1.23.*",
            *CATALOG,
        ),
        # Eager: an error is raised where it happens. Without the second, int64 is computed in int32.
        variables=(_ALONE, ("PT_HPU_LAZY_MODE", "0"), ("PT_ENABLE_INT64_SUPPORT", "1")),
        unsupported=r"not (?:yet )?supported on HPU|[Uu]nsupported (?:data ?type|dtype|op)",
        sticky=r"Device acquire failed|DEVICE_CRITICAL|DEVICE_RESET|[Dd]evice (?:was )?(?:lost|reset)|syn(?:Stream|Event|Device)Synchronize",
        out_of_memory=r"Allocation failed for size|OUT_OF_DEVICE_MEMORY|[Oo]ut of (?:device )?memory",
    ),
    "xla": TorchDevice(
        plugin="torch_xla",
        distribution="torch_xla",
        platform="TPU",
        option="bf16_matmul",
        coarse="bfloat16",
        packages=(*torch_build("cpu", "2.9.0"), "torch_xla[tpu]==2.9.0", *CATALOG),
        variables=(_ALONE,),
        unsupported=r"UNIMPLEMENTED|not implemented on|lowering .*not (?:supported|implemented)",
        sticky=r"UNAVAILABLE|DATA_LOSS|ABORTED|TPU (?:driver|chip|core).*(?:lost|failed)|INTERNAL: .*(?:[Cc]ore halted|hardware)",
        out_of_memory=r"RESOURCE_EXHAUSTED",
    ),
    # The compiler casts float32 to bfloat16 for its matrix unit by itself: --auto-cast=matmult is its default, and casts them all.
    "neuron": TorchDevice(
        target="xla",
        plugin="torch_neuronx",
        distribution="torch_neuronx",
        platform="NEURON",
        option="auto_cast",
        coarse="bfloat16",
        obeys=True,
        packages=(index("https://pip.repos.neuron.amazonaws.com"), "torch-neuronx==2.9.*", "neuronx-cc==2.*", *CATALOG),
        variables=(_ALONE,),
        unsupported=r"UNIMPLEMENTED|NCC_E\w+|not supported|[Uu]nsupported",
        sticky=r"NRT_EXEC_\w*|NRT_(?:UNINITIALIZED|CLOSED|HW_ERROR|TIMEOUT)|nrt_execute|UNAVAILABLE",
        out_of_memory=r"RESOURCE_EXHAUSTED|NRT_RESOURCE|NCC_EVRF\w*memory",
    ),
}


def says_unsupported(name: str, error_type: str, text: str, attention: bool = False) -> bool:
    """Whether an error that torch raised on a device type says that there is no kernel for a case.

    error_type: its class's name, "NotImplementedError" or "RuntimeError" for one derived from these. attention: whether torch was told to
    take one kernel of attention alone.
    """
    return (
        error_type == "NotImplementedError"
        or (error_type == "RuntimeError" and _NO_KERNEL.search(text) is not None)
        or (attention and _NO_ATTENTION.search(text) is not None)
        or (bool(known := device(name).unsupported) and re.search(known, text) is not None)
    )


#: What torch says of a call that it took on and could not finish.
FAILED = re.compile(
    r"INTERNAL ASSERT|CUDA error|HIP error|_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)|UR_RESULT_ERROR_"
)


def device(name: str) -> TorchDevice:
    """What is known of a device type; a PrivateUse1 device of another plugin needs nothing but torch."""
    return DEVICES.get(name, TorchDevice(variables=(_ALONE,) if name not in DEVICES else ()))


def memory(target: str) -> int:
    """Bytes of memory of the device that torch calls ``target``; 0 where torch does not tell."""
    import torch

    module: Any = getattr(torch, target, None)
    with contextlib.suppress(Exception):  # each plugin fails in its own way
        if target == "mps":
            return int(module.recommended_max_memory())
        return int(module.get_device_properties(0).total_memory)
    return 0


def here() -> str:
    """The device type, as a backend names it, that torch has in this process, with the plugins that are imported: the first of
    `DEVICES`, or what torch itself takes for its accelerator; "cpu" where there is none."""
    import torch

    for name, known in DEVICES.items():
        if known.platform:  # PJRT: torch_xla may run on the CPU
            runtime = sys.modules.get("torch_xla.runtime")
            found = runtime is not None and str(runtime.device_type()).upper() == known.platform
        else:
            module = getattr(torch, known.target or name, None)
            found = name != "cpu" and bool(getattr(module, "is_available", bool)())
            if (known.target or name) == "cuda":
                found = found and bool(torch.version.hip) == (name == "rocm")
        if found:
            return name
    other = torch.accelerator.current_accelerator(check_available=True)
    return other.type if other else "cpu"


def synchronize(target: str) -> None:
    """Return when the device that torch calls ``target`` has done all that was asked of it. Raises what went wrong there."""
    import torch

    if target == "xla":  # lazy: nothing is computed before this
        sync: Callable[..., None] = importlib.import_module("torch_xla").sync
        sync(wait=True)
    elif target != "cpu" and hasattr(module := getattr(torch, target, None), "synchronize"):
        module.synchronize()  # type: ignore[union-attr]


def allocations(target: str) -> int | None:
    """How often torch has handed out memory of the device that it calls ``target`` in this process; None where nobody counts."""
    import torch

    stats: dict[str, Any] = getattr(getattr(torch, target, None), "memory_stats", dict)()
    return next((int(stats[name]) for name in _ALLOCATIONS if name in stats), None)
