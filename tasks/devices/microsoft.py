"""Whatever GPU DirectML runs on: any that Windows has; under WSL it is one device node."""

from __future__ import annotations

from tasks.devices.base import Device

DIRECTX = Device("microsoft", "Microsoft", "GPU", (), ("/dev/dxg",), platforms=("win32", "linux"))
DEVICES = (DIRECTX,)
