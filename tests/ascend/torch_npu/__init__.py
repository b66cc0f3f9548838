"""Huawei's plug-in as `torch-npu` finds it, whose devices are the CPU's memory (`tests/plugin/device_of_memory.cpp`).

$FARM_NPU: a folder, the state of the machine's devices. A file "lost-1" there: the second has fallen off the bus.
$FARM_NPU_LOSE: 300, the first device that a process has waited for so many times is lost.
"""

from __future__ import annotations

import os
import types
from pathlib import Path

import planted_device

__version__ = "2.13.0"

MACHINE = Path(os.environ.get("FARM_NPU") or "/nonexistent")
#: The number of this process's device on the machine.
NUMBER = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").partition(",")[0] or "0"
left = [int(os.environ.get("FARM_NPU_LOSE") or -1)]


def lost() -> bool:
    return (MACHINE / f"lost-{NUMBER}").exists()


def synchronize(device: object = None) -> None:
    """Raises RuntimeError, in CANN's words, where the device is gone."""
    left[0] -= 1
    if left[0] == 0 and not list(MACHINE.glob("lost-*")):
        (MACHINE / f"lost-{NUMBER}").touch()
    if lost():
        raise RuntimeError(f"AclrtSynchronizeDevice, error code is 507899: device {NUMBER} is lost")


npu = planted_device.load("npu")
npu.is_available = lambda: not lost()
npu.get_device_name = lambda index=0: "Ascend910B3"
npu.synchronize = synchronize
npu.matmul = types.SimpleNamespace(allow_hf32=False)
npu.conv = types.SimpleNamespace(allow_hf32=True)
