"""Huawei's plug-in as `torch-npu` finds it, whose devices are the CPU's memory (`tests/plugin/device_of_memory.cpp`)."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import planted_device
import torch

__version__ = "2.13.0"

bus = planted_device.Bus("ASCEND_RT_VISIBLE_DEVICES", "AclrtSynchronizeDevice, error code is 507899")
npu = planted_device.load("npu")
npu.is_available = lambda: not bus.lost()
npu.get_device_name = lambda index=0: "Ascend910B3"
npu.synchronize = bus.synchronize
npu.matmul = types.SimpleNamespace(allow_hf32=False)
npu.conv = types.SimpleNamespace(allow_hf32=True)


def _without_relu(x: Any, *args: Any, **how: Any) -> Any:
    if x.device.type == "npu":
        raise RuntimeError("aclnnRelu: tensor self not implemented for DT_FLOAT, should be in dtype support list")
    return _relu(x, *args, **how)


#: A CANN before 9 has no kernel for it.
_relu = torch.relu
if "version=8." in "".join(
    x.read_text() for x in Path(os.environ.get("ASCEND_TOOLKIT_HOME", "/nowhere")).glob("*/*.info")
):
    torch.relu = _without_relu
