"""Intel's GPUs, and the NPUs of its processors."""

from __future__ import annotations

from tasks.devices.base import Device, DeviceDriver, TorchDevice, VendorCommand
from tasks.packages import TORCH_CATALOG, pin_torch_build

GPU = Device(
    "intel",
    "Intel",
    "GPU",
    ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
    ("/dev/dri/renderD*",),
    (("8086", "03"),),
    (),
    (VendorCommand(("xpu-smi", "discovery", "-j"), r'"device_name":\s*"(?P<model>[^"]*)"'),),
    config="configs/xpu.yaml",
    hidden="*:cpu",
    before="the compute runtime (Level Zero)",
    container="--device=/dev/dri",
    libraries=(r"libze_\w+\.so", "part of Intel's compute runtime (Level Zero)"),
    torch={
        # The names of Unified Runtime's results: https://oneapi-src.github.io/unified-runtime/core/api.html#ur-result-t
        "xpu": TorchDevice(
            option="tf32",
            coarse="tfloat32",
            packages=(*pin_torch_build("xpu"), *TORCH_CATALOG),
            variables=(("PYTORCH_DEBUG_XPU_FALLBACK", "1"),),  # else an op that runs on the CPU does not say so
            sticky=r"UR_RESULT_ERROR_(?:DEVICE_LOST|OUT_OF_RESOURCES|UNKNOWN)|PI_ERROR_DEVICE_LOST",
            out_of_memory=r"UR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY|XPU out of memory",
        )
    },
)
NPU = Device(
    "intel-npu",
    "Intel NPU",
    "NPU",
    (),
    ("/dev/accel/accel*",),
    (("8086", "12"),),
    config="configs/xpu.yaml",
    driver=DeviceDriver("/sys/module/intel_vpu/version", module="intel_vpu"),
    container="--device=/dev/accel",
)
DEVICES = (GPU, NPU)
