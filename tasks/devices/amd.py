"""AMD's GPUs, and the NPUs of its processors."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tasks.devices import cuda_driver
from tasks.devices.base import Device, DeviceDriver, DeviceToolkit, TorchDevice, VendorCommand
from tasks.devices.nvidia import NO_SMALL_PRODUCT
from tasks.packages import TORCH_CATALOG, pin_torch_build


def find_amd_architecture(root: Path = Path("/")) -> str:
    """Of the first GPU that this process sees, as LLVM calls it: "gfx942"; "" where the driver says nothing.

    The kernel driver gives decimal digits, 90402: major 9, minor 4, stepping 2, the last two of which LLVM writes in
    hexadecimal (ROCR-Runtime, `isa.cpp`; amdkfd's `gfx_target_version`).
    """
    found = []
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    for path in sorted(topology.glob("*/properties"), key=lambda p: int(p.parent.name)):
        match = re.search(r"^gfx_target_version (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
        if match and int(match[1]):  # 0: a processor
            version = int(match[1])
            found.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    visible = next(filter(None, map(os.environ.get, GPU.find_heeded_variables(os.environ))), "0")
    first = visible.partition(",")[0]
    return found[int(first)] if first.isdigit() and int(first) < len(found) else (found or [""])[0]


GPU = Device(
    "amd",
    "AMD",
    "GPU",
    ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    ("/dev/kfd",),
    (("1002", "03"), ("1002", "12")),
    # One device node serves all GPUs; the driver's topology also lists the processors, which have no SIMDs.
    (
        (
            "/sys/class/kfd/kfd/topology/nodes/*/properties",
            r"^simd_count [1-9](?:[\s\S]*?^drm_render_minor (?P<render>\d+))?",
        ),
    ),
    # It reads sysfs.
    (VendorCommand(("rocm-smi", "--showproductname", "--csv"), r"^card\d+,(?P<model>[^,\n]*)", opens=False),),
    config="configs/rocm.yaml",
    before="the amdgpu driver, `/dev/kfd` and `/dev/dri/renderD*` readable (groups `render` and `video`); for "
    "`ort-migraphx` and `jax-rocm` ROCm itself",
    container="--device=/dev/kfd --device=/dev/dri --group-add=video --group-add=render",
    numbered=True,
    hidden="-1",
    instead="CUDA_VISIBLE_DEVICES",
    nested=True,
    driver=DeviceDriver("/sys/module/amdgpu/version", module="amdgpu"),
    toolkit=DeviceToolkit("ROCm", ("$ROCM_PATH", "/opt/rocm"), ".info/version"),
    libraries=(
        r"lib(?:amdhip64|hip\w+|roc\w+|hsa-runtime64|MIOpen|migraphx\w*)\.so",
        "part of ROCm: install it, and add its folder (/opt/rocm/lib) to $LD_LIBRARY_PATH",
    ),
    architecture=find_amd_architecture,
    torch={
        "rocm": TorchDevice(
            target="cuda",
            option="tf32",
            coarse="tfloat32",
            coarser=(("HIPBLASLT_ALLOW_TF32", "1"),),  # torch takes no TF32 on ROCm otherwise (ATen/Context.cpp)
            packages=(*pin_torch_build("rocm7.2"), *TORCH_CATALOG),
            unsupported=NO_SMALL_PRODUCT
            + r"|(?:HIPBLAS|ROCBLAS|MIOPEN|HIPFFT)_?\w*NOT_(?:SUPPORTED|IMPLEMENTED)|miopenStatusUnsupportedOp|hipErrorNoBinaryForGpu|no kernel image is available|invalid device function",
            sticky=cuda_driver.STICKY.pattern
            + r"|(?:HIPBLAS|ROCBLAS)_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)|hipErrorLaunchFailure|HSA_STATUS_ERROR_\w+",
            out_of_memory=cuda_driver.OUT_OF_MEMORY.pattern
            + r"|(?:HIPBLAS|HIPSOLVER|HIPSPARSE)_STATUS_ALLOC_FAILED|HIPFFT_ALLOC_FAILED|miopenStatusAllocFailed"
            r"|HIPBLAS_STATUS_NOT_INITIALIZED,? when calling `?hipblas(?:Lt)?Create|HIPSOLVER_STATUS_\w+,? when calling `?hipsolver\w*Create",
        )
    },
    called=("hip",),
)
#: A signal processing controller on the bus.
NPU = Device("amd-npu", "AMD Ryzen AI", "NPU", (), ("/dev/accel/accel*",), (("1022", "11"),))
DEVICES = (GPU, NPU)
