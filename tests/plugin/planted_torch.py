"""torch for a GPU of NVIDIA's or Intel's, or for Gaudi, whose memory is the CPU's: what `tests/machines.py` plants in a process.

It is loaded as each vendor's own is: by torch's entry point, or by the module that the plug-in names.
"""

from __future__ import annotations

import ctypes
import os
import types
from typing import Any

import planted_device

#: What a device that nothing can be computed on any more says.
SPOILT = {
    "cuda": "CUDA error: an illegal memory access was encountered",
    "xpu": "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
    "hpu": "synStreamSynchronize failed, device was lost",
}
#: Of a driver that is too old for a build of torch, by its version.
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version {}). Please update your GPU driver by downloading and installing "
    "a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a "
    "PyTorch version that has been compiled with your version of the CUDA driver."
)


def _registered(kind: str, visible: str) -> tuple[Any, planted_device.Bus]:
    """torch, which has a device of a kind from now on, and the machine's devices."""
    import torch

    os.environ["FARM_DEVICE_KIND"] = kind
    os.environ.setdefault("FARM_DEVICE_SAYS", SPOILT[kind])
    torch.ops.load_library(str(planted_device.library()))
    return torch, planted_device.Bus(visible, SPOILT[kind])


def _answers(module: Any, name: str, bus: planted_device.Bus, count: int, none: str) -> None:
    """What torch's module of a device says: of ``count`` of them this process sees one, which may be lost. none: its
    words then."""

    def init() -> None:
        """As torch does it before its first tensor there. Raises RuntimeError."""
        if not module.is_available():
            raise RuntimeError(none)

    module._lazy_init = init
    module.is_available = lambda: int(bus.number) < count and not bus.lost()
    module.device_count = lambda: int(module.is_available())
    module.current_device = lambda: 0
    module.get_device_name = lambda index=0: name
    module.synchronize = bus.synchronize
    module.manual_seed_all = lambda seed: None
    module.set_per_process_memory_fraction = lambda fraction, device=None: None
    counted = ctypes.CDLL(str(planted_device.library())).farm_handed_out
    counted.restype = ctypes.c_longlong
    module.memory_stats = lambda: {"NumAllocs" if "hpu" in module.__name__ else "allocation.all.allocated": counted()}


def cuda() -> None:
    """By the entry point of torch.backends. $FARM_DEVICE_DRIVER: the driver's version, where it is too old for this
    torch."""
    torch, bus = _registered("cuda", "CUDA_VISIBLE_DEVICES")
    old = os.environ.get("FARM_DEVICE_DRIVER", "")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    none = TOO_OLD.format(old) if old else "No CUDA GPUs are available"
    _answers(torch.cuda, "NVIDIA H200", bus, 0 if hidden or old else 2, none)
    # As a CUDA build has it: the name stands where a ROCm build has the architecture.
    properties = types.SimpleNamespace(
        name="NVIDIA H200", gcnArchName="NVIDIA H200", major=9, minor=0, total_memory=141 << 30
    )
    torch.cuda.get_device_properties = lambda index=0: properties
    torch.backends.cuda.is_built = lambda: True
    torch.version.cuda, torch.__version__ = "13.0", "2.13.0+cu130"


def rocm() -> None:
    """By the entry point of torch.backends. Its devices are CUDA's to torch, and AMD's variable says which."""
    torch, bus = _registered("cuda", "HIP_VISIBLE_DEVICES")
    hidden = os.environ.get("HIP_VISIBLE_DEVICES") == "-1"
    _answers(torch.cuda, "AMD Instinct MI300X", bus, 0 if hidden else 2, "No HIP GPUs are available")
    torch.cuda.get_device_properties = lambda index=0: types.SimpleNamespace(
        major=9, minor=4, gcnArchName="gfx942:sramecc+:xnack-"
    )
    torch.backends.cuda.is_built = lambda: True
    torch.version.hip, torch.__version__ = "7.2.26015", "2.13.0+rocm7.2"


def xpu() -> None:
    """By the entry point of torch.backends."""
    torch, bus = _registered("xpu", "ONEAPI_DEVICE_SELECTOR")
    hidden = os.environ.get("ONEAPI_DEVICE_SELECTOR") == "*:cpu"
    _answers(torch.xpu, "Intel(R) Data Center GPU Max 1550", bus, 0 if hidden else 1, "No XPU devices are available.")
    properties = types.SimpleNamespace(driver_version="1.6.33578+15")
    torch.xpu.get_device_properties = lambda index=0: properties
    torch.backends.mkldnn.__class__.allow_tf32 = True  # a build for CPUs keeps no such switch
    torch.__version__ = "2.13.0+xpu"


def hpu() -> None:
    """By the module of Habana's plug-in."""
    torch, bus = _registered("hpu", "HABANA_VISIBLE_MODULES")
    module = types.ModuleType("torch.hpu")
    _answers(module, "GAUDI3", bus, 2, "synStatus=8 [Device not found] Device acquire failed.")
    torch._register_device_module("hpu", module)
