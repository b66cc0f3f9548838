"""Huawei's plug-in as `torch-npu` finds it, whose devices are the CPU's memory (`tests/plugin/device_of_memory.cpp`)."""

from __future__ import annotations

import types

import planted_device

__version__ = "2.13.0"

bus = planted_device.Bus("ASCEND_RT_VISIBLE_DEVICES", "AclrtSynchronizeDevice, error code is 507899")
npu = planted_device.load("npu")
npu.is_available = lambda: not bus.lost()
npu.get_device_name = lambda index=0: "Ascend910B3"
npu.synchronize = bus.synchronize
npu.matmul = types.SimpleNamespace(allow_hf32=False)
npu.conv = types.SimpleNamespace(allow_hf32=True)
