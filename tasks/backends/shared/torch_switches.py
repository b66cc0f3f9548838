"""What decides torch's numbers on a device: its switches of precision, and the versions of what computes for it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from importlib import metadata
from typing import Any

from tasks.devices import TorchDevice
from tasks.model import Unavailable


def allow_setting_flags() -> contextlib.AbstractContextManager[Any]:
    """Around the setting of torch's flags: importing torch's own tests (and their op_db) forbids it elsewhere."""
    import torch

    made: Any = getattr(torch.backends, "__allow_nonbracketed_mutation", contextlib.nullcontext)()
    return made  # type: ignore[no-any-return]


def list_precision_switches(target: str, coarse: bool, reduced: bool) -> dict[str, bool]:
    """torch's settings that ask for float32 in float32, or as coarse as a device's option allows (``coarse``), and on
    CUDA for sums of 16-bit products in 16 bits or not (``reduced``): path in torch → value. target: what torch calls
    the device."""
    if target == "cuda":
        # Sums of 16-bit products are otherwise split and added in 16 bits.
        sums = [f"backends.cuda.matmul.allow_{dtype}_reduced_precision_reduction" for dtype in ("fp16", "bf16")]
        coarser = ["backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32"]
        return dict.fromkeys(coarser, coarse) | dict.fromkeys(sums, reduced)
    # An NPU's convolutions are in hf32 by default.
    paths = {"xpu": ["backends.mkldnn.allow_tf32"], "npu": ["npu.matmul.allow_hf32", "npu.conv.allow_hf32"]}
    return dict.fromkeys(paths.get(target, ()), coarse)


def name_xla_precision(coarse: bool) -> str:
    """torch_xla's name of a precision: a TPU multiplies float32 in one pass of bfloat16 by default."""
    return "default" if coarse else "highest"


def write_torch_switch_lines(target: str, device: str, coarse: bool, reduced: bool) -> list[str]:
    """What `set_precision_switches` does, as lines of a run.py."""
    found = [f"torch.{path} = {value}" for path, value in list_precision_switches(target, coarse, reduced).items()]
    if device == "xla":
        found.append(f"torch_xla.backends.set_mat_mul_precision({name_xla_precision(coarse)!r})")
    return found


def set_precision_switches(target: str, device: str, coarse: bool, reduced: bool) -> None:
    """Make the settings of `list_precision_switches`, and torch_xla's own. Raises Unavailable where one is not taken: what is
    computed in would be unknown."""
    import torch

    with allow_setting_flags():
        for path, value in list_precision_switches(target, coarse, reduced).items():
            owner, _, name = path.rpartition(".")
            module = functools.reduce(getattr, owner.split("."), torch)
            setattr(module, name, value)
            if getattr(module, name) != value:
                raise Unavailable(f"torch does not take the setting {path}={value}")
    if device == "xla":
        backends = importlib.import_module("torch_xla.backends")
        wanted = name_xla_precision(coarse)
        backends.set_mat_mul_precision(wanted)
        if backends.get_mat_mul_precision() != wanted:
            raise Unavailable(f"torch_xla does not take the matrix product precision {wanted!r}")


#: Names in a version of torch's that come with it and are no requirements of their own: those of `list_torch_gpu_libraries`, and the
#: device's own.
LIBRARIES = ("CUDA", "cuDNN", "cuBLAS", "ROCm", "MIOpen")


def list_torch_gpu_libraries() -> str:
    """Versions of what torch says that computes for it on a GPU: the CUDA or ROCm it was built with, cuDNN or
    MIOpen."""
    import torch

    found = {"ROCm" if torch.version.hip else "CUDA": torch.version.hip or torch.version.cuda}
    with contextlib.suppress(Exception):
        found["MIOpen" if torch.version.hip else "cuDNN"] = torch.backends.cudnn.version()
    return "".join(f", {name} {version}" for name, version in found.items() if version)


def read_torch_commit() -> str:
    """The commit that torch was built of, for the build of a backend ("torch 5d2c0f1…"); "" where it does not say."""
    import torch

    found = str(getattr(torch.version, "git_version", None) or "")
    return f"torch {found}" if re.fullmatch(r"[0-9a-f]{7,40}", found) else ""


def read_torch_plugin_version(known: TorchDevice) -> str:
    """Version of the plug-in that registered the device; its package knows more of it than its module."""
    if not known.plugin:
        return ""
    version = getattr(sys.modules.get(known.plugin.partition(".")[0]), "__version__", "")
    with contextlib.suppress(metadata.PackageNotFoundError):  # of a build from source
        version = metadata.version(known.distribution)
    return f", {known.distribution} {version}".rstrip()


def read_torch_driver_version(target: str) -> str:
    """Version of the driver where torch tells it: Intel's is of the compute runtime, which is no part of the kernel."""
    import torch

    return str(getattr(torch.xpu.get_device_properties(0), "driver_version", "")) if target == "xpu" else ""


def describe_torch_device_identity(target: str) -> list[str]:
    """Which device this process sees, in words of a row's flags, where torch has its UUID; ROCm's is text, as rocminfo
    writes it."""
    import torch

    module: Any = getattr(torch, target)
    found = (
        str(getattr(module.get_device_properties(0), "uuid", "")) if hasattr(module, "get_device_properties") else ""
    )
    with contextlib.suppress(ValueError):
        text = bytes.fromhex(found.replace("-", "")).decode("ascii")
        found = f"GPU-{text}" if re.fullmatch("[0-9a-f]{16}", text) else found
    return [f"uuid={found}"] if found else []


def name_torch_architecture() -> str:
    """ "sm_90" or "gfx942:sramecc+:xnack-" of the first GPU that this process sees."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    # A CUDA build has gcnArchName too: there it is the model's name.
    return str(properties.gcnArchName) if torch.version.hip else f"sm_{properties.major}{properties.minor}"
