"""VeriSilicon's NPUs."""

from __future__ import annotations

from tasks.devices.base import Device

NPU = Device("verisilicon", "VeriSilicon", "NPU", (), ("/dev/galcore",))
DEVICES = (NPU,)
