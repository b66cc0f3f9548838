"""What decides torch's numbers on a device: its switches of precision, and the versions of what computes for it."""

from __future__ import annotations

import contextlib
import importlib
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.model import Unavailable


def settable() -> contextlib.AbstractContextManager[Any]:
    """Around the setting of torch's flags: importing torch's own tests (and their op_db) forbids it elsewhere."""
    import torch

    made: Any = getattr(torch.backends, "__allow_nonbracketed_mutation", contextlib.nullcontext)()
    return made  # type: ignore[no-any-return]


def set_precision(target: str, device: str, coarse: bool, reduced: bool) -> None:
    """Ask for float32 in float32, or as coarse as the device's option allows (``coarse``); on CUDA also for sums of 16-bit
    products in 16 bits (``reduced``).

    target: what torch calls the device. Raises Unavailable where it does not take a setting: what it computes in would be
    unknown.
    """
    import torch

    if target == "cuda":
        matmul = torch.backends.cuda.matmul
        with settable():
            matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = coarse
        # Sums of 16-bit products are otherwise split and added in 16 bits.
        matmul.allow_fp16_reduced_precision_reduction = reduced
        matmul.allow_bf16_reduced_precision_reduction = reduced
    elif target == "xpu":
        with settable():
            torch.backends.mkldnn.allow_tf32 = coarse  # type: ignore[assignment]
    elif target == "npu":
        npu: Any = getattr(torch, "npu")  # noqa: B009  the plugin's
        npu.matmul.allow_hf32 = npu.conv.allow_hf32 = coarse  # of convolutions it is on by default
        if (npu.matmul.allow_hf32, npu.conv.allow_hf32) != (coarse, coarse):
            raise Unavailable("torch_npu does not take the setting allow_hf32")
    elif device == "xla":
        backends = importlib.import_module("torch_xla.backends")
        wanted = "default" if coarse else "highest"  # a TPU multiplies float32 in one pass of bfloat16 by default
        backends.set_mat_mul_precision(wanted)
        if backends.get_mat_mul_precision() != wanted:
            raise Unavailable(f"torch_xla does not take the matrix product precision {wanted!r}")


def libraries() -> str:
    """Versions of what computes for torch on a GPU: the CUDA or ROCm it was built with, cuDNN or MIOpen, cuBLAS."""
    import torch

    found = {"ROCm" if torch.version.hip else "CUDA": torch.version.hip or torch.version.cuda}
    with contextlib.suppress(Exception):
        found["MIOpen" if torch.version.hip else "cuDNN"] = torch.backends.cudnn.version()
    for package in ("nvidia-cublas", "nvidia-cublas-cu12"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["cuBLAS"] = metadata.version(package)
    return "".join(f", {name} {version}" for name, version in found.items() if version)


def driver() -> str:
    """Version of the kernel's driver (Linux), "" where it does not say."""
    for path, pattern in (
        ("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
        ("/sys/module/amdgpu/version", r"(\S+)"),
    ):
        with contextlib.suppress(OSError):
            if match := re.search(pattern, Path(path).read_text()):
                return match[1]
    return ""


def architecture() -> str:
    """ "sm_90" or "gfx942:sramecc+:xnack-" of the first GPU that this process sees."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return str(getattr(properties, "gcnArchName", "")) or f"sm_{properties.major}{properties.minor}"
