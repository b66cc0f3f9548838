"""Whose device is whose: vendor, Ray resource, node label, visible-devices variable and how a node detects it.

The one table that backends (which device do I need?), nodes (what do I offer?) and supervisors (which device was I
given?) share. Plain data: detection itself is `farm.node`.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Vendor:
    """A maker of devices.

    label: value of the node label "vendor"; resource: the Ray resource that counts its devices; visible: the
    variables by which a process is given some of them (the first is Ray's own); files: globs of which one exists
    where there is a device (device nodes, sysfs); pci: (vendor id, class prefix) of sysfs's PCI devices, hexadecimal;
    commands: a command that lists devices, one a line, model names where it can. torch: names of torch's device
    types that compute on it.
    """

    label: str
    name: str
    resource: str
    visible: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    pci: tuple[tuple[str, str], ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    platforms: tuple[str, ...] = ("linux", "win32", "darwin")


#: Display controllers are class 03, processing accelerators class 12 (PCI Code and ID Assignment Specification).
VENDORS: tuple[Vendor, ...] = (
    Vendor("nvidia", "NVIDIA", "GPU", ("CUDA_VISIBLE_DEVICES",), ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu"), (("10de", "03"),),
           (("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),)),
    Vendor("amd", "AMD", "GPU", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ("/dev/kfd",), (),
           (("rocm-smi", "--showproductname", "--csv"),)),
    Vendor("intel", "Intel", "GPU", ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"), (), (("8086", "03"),), (("xpu-smi", "discovery", "-l"),)),
    Vendor("intel-npu", "Intel NPU", "NPU", (), ("/dev/accel/accel[0-9]*",), (("8086", "12"),)),
    Vendor("gaudi", "Intel Gaudi", "HPU", ("HABANA_VISIBLE_MODULES",), ("/dev/hl[0-9]*",), (("1da3", "12"),), (("hl-smi", "-Q", "name", "-f", "csv,noheader"),)),
    Vendor("huawei", "Huawei", "NPU", ("ASCEND_RT_VISIBLE_DEVICES",), ("/dev/davinci[0-9]*",), (("19e5", "12"),), (("npu-smi", "info", "-l"),)),
    Vendor("google", "Google", "TPU", ("TPU_VISIBLE_CHIPS",), ("/dev/vfio/[0-9]*", "/dev/accel[0-9]*"), (("1ae0", "12"),)),
    Vendor("aws", "AWS Neuron", "neuron_cores", ("NEURON_RT_VISIBLE_CORES",), ("/dev/neuron[0-9]*",), (), (("neuron-ls",),)),
    Vendor("qualcomm", "Qualcomm", "NPU", (), ("/dev/fastrpc-cdsp*", "/dev/accel/qaic*"), (("17cb", "12"),)),
    Vendor("rockchip", "Rockchip", "NPU", (), ("/sys/kernel/debug/rknpu", "/dev/rknpu*"), ()),
    Vendor("apple", "Apple", "GPU", (), (), (), (), ("darwin",)),
    Vendor("microsoft", "Microsoft", "GPU", (), ("/dev/dxg",), (), (), ("win32", "linux")),
)  # fmt: skip

BY_LABEL: dict[str, Vendor] = {vendor.label: vendor for vendor in VENDORS}

#: Every variable by which some vendor's devices are given to a process.
VISIBLE: tuple[str, ...] = tuple(dict.fromkeys(name for vendor in VENDORS for name in vendor.visible))

#: torch device type → (vendor of its kernels, label of the nodes that have one; "" for the CPU).
TORCH_DEVICES: dict[str, tuple[str, str]] = {
    "cpu": ("Meta", ""), "cuda": ("NVIDIA", "nvidia"), "rocm": ("AMD", "amd"), "xpu": ("Intel", "intel"), "mps": ("Apple", "apple"),
    "npu": ("Huawei", "huawei"), "hpu": ("Intel Gaudi", "gaudi"), "xla": ("Google", "google"), "neuron": ("AWS", "aws"),
}  # fmt: skip


def resource_of(label: str) -> str:
    """Ray resource of a vendor's devices, "CPU" for no vendor. Raises KeyError for a label nobody knows."""
    return BY_LABEL[label].resource if label else "CPU"
