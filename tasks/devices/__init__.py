"""Devices, one file per vendor with all that is known of it: how they are found, described and restricted, their drivers, what runtimes call them; and the processor.

Backends (which device do I need?), nodes (what do I offer?) and supervisors (which device was I given?) share them.
Detection itself is `farm.fleet.detect_vendors`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tasks.devices import (
    amd,
    apple,
    aws,
    gaudi,
    google,
    huawei,
    intel,
    microsoft,
    nvidia,
    qualcomm,
    rockchip,
    verisilicon,
)
from tasks.devices.base import Device, DeviceDescription, TorchDevice, VendorCommand

#: All, in the order in which a node of several vendors gives away what these share.
DEVICES: tuple[Device, ...] = (
    *nvidia.DEVICES,
    amd.GPU,
    *intel.DEVICES,
    *gaudi.DEVICES,
    *huawei.DEVICES,
    *google.DEVICES,
    *aws.DEVICES,
    *qualcomm.DEVICES,
    *rockchip.DEVICES,
    *verisilicon.DEVICES,
    amd.NPU,
    *apple.DEVICES,
    *microsoft.DEVICES,
)
BY_LABEL: dict[str, Device] = {device.label: device for device in DEVICES}

#: Variable of a child: the label of whose device it computes on, "" for none. What a kernel's own library (Triton) has
#: to know before it is imported.
DEVICE_VENDOR = "FARM_DEVICE_VENDOR"

#: Variable of a child: the number of its device among those of the vendor's on the node, for runtimes that see them all
#: whatever the vendor's own variable says.
DEVICE_NUMBER = "FARM_DEVICE_NUMBER"

#: Every variable by which some vendor's devices are given to a process.
VISIBLE: tuple[str, ...] = tuple(dict.fromkeys(name for device in DEVICES for name in device.visible))

#: What torch's CPU says of scales for blocks (torch 2.13, aten::_scaled_mm_v2): it takes one for a tensor or a row.
_CPU_REFUSES = r"^Invalid scaling configuration|^CPU does not support swizzle"
#: torch device type → what is known of it.
TORCH: dict[str, TorchDevice] = {"cpu": TorchDevice(unsupported=_CPU_REFUSES)} | {
    name: one for device in DEVICES for name, one in device.torch.items()
}
#: torch device type → (vendor of its kernels, label of the nodes that have one; "" for the CPU).
TORCH_DEVICES: dict[str, tuple[str, str]] = {"cpu": ("Meta", "")} | {
    name: (one.kernels or device.name, device.label) for device in DEVICES for name, one in device.torch.items()
}
#: What people call torch's devices → torch's name: vendors by their labels, and by names of products.
CALLED: dict[str, str] = {
    word: name for device in DEVICES for name in [*device.torch][:1] for word in (device.label, *device.called)
}


def find_choosing_variable(device: str) -> str:
    """How one of several devices is chosen, of those that torch names so or people do: by a variable, as the end of a
    sentence."""
    label = TORCH_DEVICES.get(CALLED.get(device, device), ("", device))[1]
    names = BY_LABEL[label].visible[:1] if label in BY_LABEL else ()
    said = (
        ", ".join(f"${name}" for name in names)
        or "its vendor's variable ($CUDA_VISIBLE_DEVICES, $HIP_VISIBLE_DEVICES, …)"
    )
    return f"to choose among several devices, set {said} when starting the farm"


def find_device_number() -> int:
    """This process's device among the vendor's; 0 where it was given none by number."""
    given = os.environ.get(DEVICE_NUMBER, "")
    return int(given) if given.isdigit() else 0


def find_driver_version(label: str, root: Path = Path("/")) -> str:
    """Version of a vendor's driver in the kernel (Linux); "" where there is none or it does not say, and for a label
    nobody knows. ``root``: of the files."""
    return BY_LABEL[label].driver_version(root) if label in BY_LABEL else ""


def find_toolkit_version(label: str) -> str:
    """ "CANN 8.0.RC1" of a vendor's toolkit as it is installed here; "" where none is found."""
    return BY_LABEL[label].toolkit_version() if label in BY_LABEL else ""


def suggest_library_package(text: str) -> str:
    """What brings a library that a runtime's error names and no Python package has; "" for none that is known."""
    known = (device.libraries for device in DEVICES if device.libraries)
    return next((what for words, what in known if re.search(words, text)), "")
