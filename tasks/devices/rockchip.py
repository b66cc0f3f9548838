"""Rockchip's NPUs."""

from __future__ import annotations

from tasks.devices.base import Device

NPU = Device(
    "rockchip",
    "Rockchip",
    "NPU",
    (),
    ("/sys/kernel/debug/rknpu", "/dev/rknpu"),
    config="configs/rockchip.yaml",
    before="nothing: it runs on the toolkit's simulator",
)
DEVICES = (NPU,)
