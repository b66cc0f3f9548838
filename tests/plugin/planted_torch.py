"""torch for a GPU of NVIDIA's or Intel's, or for Gaudi, whose memory is the CPU's: what `tests/machines.py` plants in a process.

It is loaded as each vendor's own is: by torch's entry point, or by the module that the plug-in names.
"""

from __future__ import annotations

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


def _registered(kind: str) -> Any:
    """torch, which has a device of a kind from now on."""
    import torch

    os.environ["FARM_DEVICE_KIND"] = kind
    os.environ.setdefault("FARM_DEVICE_SAYS", SPOILT[kind])
    torch.ops.load_library(str(planted_device.library()))
    return torch


def _given(variable: str, hidden: str) -> bool:
    return os.environ.get(variable, "0") != hidden


def _answers(module: Any, name: str, here: bool) -> None:
    module._lazy_init = lambda: None
    module.is_available = lambda: here
    module.device_count = lambda: int(here)
    module.current_device = lambda: 0
    module.get_device_name = lambda index=0: name
    module.synchronize = lambda device=None: None
    module.manual_seed_all = lambda seed: None
    module.set_per_process_memory_fraction = lambda fraction, device=None: None


def cuda() -> None:
    """By the entry point of torch.backends."""
    torch = _registered("cuda")
    _answers(torch.cuda, "NVIDIA H200", _given("CUDA_VISIBLE_DEVICES", ""))
    torch.cuda.get_device_properties = lambda index=0: types.SimpleNamespace(major=9, minor=0)
    torch.backends.cuda.is_built = lambda: True
    torch.version.cuda, torch.__version__ = "13.0", "2.13.0+cu130"


def xpu() -> None:
    """By the entry point of torch.backends."""
    torch = _registered("xpu")
    _answers(torch.xpu, "Intel(R) Data Center GPU Max 1550", _given("ONEAPI_DEVICE_SELECTOR", "*:cpu"))
    torch.backends.mkldnn.__class__.allow_tf32 = True  # a build for CPUs keeps no such switch
    torch.__version__ = "2.13.0+xpu"


def hpu() -> None:
    """By the module of Habana's plug-in."""
    torch = _registered("hpu")
    module = types.ModuleType("torch.hpu")
    _answers(module, "GAUDI3", True)
    torch._register_device_module("hpu", module)
