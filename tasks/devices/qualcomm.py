"""Qualcomm's NPUs."""

from __future__ import annotations

from tasks.devices.base import Device

NPU = Device("qualcomm", "Qualcomm", "NPU", (), ("/dev/fastrpc-cdsp", "/dev/accel/accel*"), (("17cb", "12"),))
DEVICES = (NPU,)
