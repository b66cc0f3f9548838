"""ONNX Runtime's execution providers: who ships each, whose device it runs on, in which build it is, where it is emulated."""

from __future__ import annotations

import glob
import platform
import sys
from dataclasses import dataclass, field

from tasks.packages import NVIDIA, list_cuda_13_packages


@dataclass(frozen=True)
class OrtProvider:
    """An execution provider: its name, who ships it, whose device it runs on and what it is given by default.

    compute_precision: what it computes float32 in with these options ("" = float32). packages: the pip requirements of
    the build of ONNX Runtime that has it (none: the farm's own, or a build from source, may have it). python_package:
    where the provider is a plugin library of its own, the package that holds it. libraries: (package, globs) of what it
    is linked to. source: how it is to be had where no package index has it. toolkit: the vendor whose toolkit its
    libraries are of (`tasks.devices.Device.toolkit`).
    """

    provider: str
    vendor: str
    device_vendor: str
    resource: str
    options: dict[str, str] = field(default_factory=dict)
    compute_precision: str = ""
    packages: tuple[str, ...] = ()
    python_package: str = ""
    libraries: tuple[str, tuple[str, ...]] | None = None
    source: str = ""
    toolkit: str = ""


def _describe_ort_build(flag: str) -> str:
    return f"no wheel on PyPI has it: build onnxruntime with {flag} and add that wheel to the backend's packages"


#: The extras name CUDA 13's runtime, cuFFT, cuRAND, NVRTC and cuDNN 9, which brings cuBLAS.
_CUDA_PACKAGES = (
    "onnxruntime-gpu[cuda,cudnn]==1.31.1",
    *list_cuda_13_packages("cublas", "cudart", "cufft", "curand", "nvrtc"),
)

#: By the short name of a device. Defaults ask for the dtype's own precision wherever there is a switch for it.
PROVIDERS: dict[str, OrtProvider] = {
    "cpu": OrtProvider("CPUExecutionProvider", "Microsoft", "", "CPU"),
    # Its own choice of convolutions is by stopwatch, while other cells share the GPU: not the same kernel twice.
    "cuda": OrtProvider(
        "CUDAExecutionProvider",
        "NVIDIA",
        "nvidia",
        "GPU",
        {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"},
        packages=_CUDA_PACKAGES,
    ),
    # TensorRT builds with TF32 allowed and its provider has no option for it; NVIDIA_TF32_OVERRIDE=0 forbids it. The
    # provider of this wheel is linked to TensorRT 10 (`readelf -d libonnxruntime_providers_tensorrt.so`:
    # libnvinfer.so.10).
    "tensorrt": OrtProvider(
        "TensorrtExecutionProvider",
        "NVIDIA",
        "nvidia",
        "GPU",
        compute_precision="tfloat32",
        packages=(*_CUDA_PACKAGES, NVIDIA, "tensorrt-cu13-libs==10.16.1.11"),
        libraries=("tensorrt_libs", ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")),
    ),
    "tensorrt-rtx": OrtProvider(
        "NvTensorRTRTXExecutionProvider",
        "NVIDIA",
        "nvidia",
        "GPU",
        compute_precision="tfloat32",
        packages=("onnxruntime==1.31.1", "onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0"),
        python_package="onnxruntime_ep_nv_tensorrt_rtx",
    ),
    # Left out of ONNX Runtime after 1.22: MIGraphX is AMD's provider since.
    "rocm": OrtProvider(
        "ROCMExecutionProvider", "AMD", "amd", "GPU", packages=("onnxruntime-rocm==1.22.2.post3",), toolkit="amd"
    ),
    "migraphx": OrtProvider(
        "MIGraphXExecutionProvider",
        "AMD",
        "amd",
        "GPU",
        {"migraphx_fp16_enable": "0"},
        packages=("onnxruntime-migraphx==1.27.1",),
        toolkit="amd",
    ),
    "vitisai": OrtProvider(
        "VitisAIExecutionProvider",
        "AMD",
        "amd-npu",
        "NPU",
        source="the wheel of AMD's Ryzen AI software has it (https://ryzenai.docs.amd.com): add it to the backend's packages",
    ),
    # FP32 keeps the plugin from computing in bfloat16 on a CPU that can; without device_type it runs on the CPU.
    "openvino": OrtProvider(
        "OpenVINOExecutionProvider",
        "Intel",
        "",
        "CPU",
        {"device_type": "CPU", "precision": "FP32"},
        packages=("onnxruntime-openvino==1.24.1",),
    ),
    "dnnl": OrtProvider("DnnlExecutionProvider", "Intel", "", "CPU", source=_describe_ort_build("--use_dnnl")),
    # Float tensors are float16 on the HTP by default (its option enable_htp_fp16_precision=1).
    "qnn": OrtProvider(
        "QNNExecutionProvider",
        "Qualcomm",
        "qualcomm",
        "NPU",
        {"backend_path": "QnnHtp.dll" if sys.platform == "win32" else "libQnnHtp.so"},
        "float16",
        ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"),
        "onnxruntime_qnn",
    ),
    "dml": OrtProvider(
        "DmlExecutionProvider",
        "Microsoft",
        "microsoft",
        "GPU",
        packages=('onnxruntime-directml==1.24.4; sys_platform == "win32"',),
    ),
    # In the plain wheel, on macOS.
    "coreml": OrtProvider("CoreMLExecutionProvider", "Apple", "apple", "GPU", {"ModelFormat": "MLProgram"}),
    "cann": OrtProvider(
        "CANNExecutionProvider",
        "Huawei",
        "huawei",
        "NPU",
        {"precision_mode": "must_keep_origin_dtype"},
        packages=("onnxruntime-cann==1.24.4", "numpy==1.26.4"),  # built with NumPy 1: "import numpy failed" with 2
        toolkit="huawei",
    ),
    "xnnpack": OrtProvider(
        "XnnpackExecutionProvider", "Google", "", "CPU", source=_describe_ort_build("--use_xnnpack")
    ),
    "nnapi": OrtProvider("NnapiExecutionProvider", "Google", "", "NPU"),
    "acl": OrtProvider("ACLExecutionProvider", "Arm", "", "CPU", source=_describe_ort_build("--use_acl")),
    "rknpu": OrtProvider(
        "RknpuExecutionProvider", "Rockchip", "rockchip", "NPU", source=_describe_ort_build("--use_rknpu")
    ),
    "vsinpu": OrtProvider(
        "VSINPUExecutionProvider", "VeriSilicon", "verisilicon", "NPU", source=_describe_ort_build("--use_vsinpu")
    ),
    "webgpu": OrtProvider("WebGpuExecutionProvider", "Microsoft", "", "GPU", packages=("onnxruntime-webgpu==1.27.0",)),
}

#: What people call providers by their vendor → the device of the one that is meant.
CALLED = {
    "amd": "migraphx",
    "hip": "migraphx",
    "nvidia": "cuda",
    "intel": "openvino",
    "huawei": "cann",
    "ascend": "cann",
    "qualcomm": "qnn",
    "apple": "coreml",
}

#: The chip that QNN's emulation compiles for unless told otherwise: SM8650 (QNN's number 57). Left to itself the
#: library takes an unnamed one, for which it fails to finalise most float graphs (QNN_COMMON_ERROR_MEM_ALLOC).
EMULATED_SOC = "57"

#: Where a GPU shows on Linux: DRM render nodes, NVIDIA's own devices, the GPU of WSL's host.
_GPU_FILES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu")


def is_provider_emulated(device: str) -> bool:
    """Whether a provider's device is an emulator or a software driver on this machine."""
    if device == "qnn":
        return platform.machine().lower() in ("x86_64", "amd64")
    if device == "webgpu":
        return sys.platform == "linux" and not any(glob.glob(x) for x in _GPU_FILES)
    return False
