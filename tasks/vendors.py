"""Whose device is whose: vendor, Ray resource, node label, visible-devices variable and how a node detects it.

The one table that backends (which device do I need?), nodes (what do I offer?) and supervisors (which device was I
given?) share. Plain data: detection itself is `farm.node`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A vendor's command that lists devices. pattern: matches once a device (multi-line), its group "model" the name,
    its group "count" how many Ray counts in it (cores of a chip) where that is not one. Group "part": it is a part of a
    device, and a process is given it, and the others beside it, by group "id" and not by number. opens: it lists only
    what this user may open."""

    argv: tuple[str, ...]
    pattern: str
    opens: bool = True


@dataclass(frozen=True)
class Vendor:
    """A maker of devices.

    label: value of the node label "vendor"; resource: the Ray resource that counts its devices; visible: the
    variables by which a process is given some of them (the first is Ray's own); instead: another vendor's, which its runtime reads
    where the first is not set.

    How a node detects them: files: globs of device nodes, each a device unless ``about`` counts them; pci: (vendor id,
    class prefix) of sysfs's PCI devices, hexadecimal, which also tell whose a device node of a common class (drm, accel,
    vfio) is; about: (glob, pattern) of text files of which each that matches is a device, group "model" its name, group "render" the
    number of the node /dev/dri/renderD… that it takes besides;
    commands: what the vendor's tools say; platforms: those of ``sys.platform`` where it is looked for.
    config: what is run on it first. numbered: the numbers of its variables count what is found, from 0. exclusive: one process at a time may open a device, or
    a command that says so, where its pattern matches; shares: what lets several, where that is a setting. hidden: the value of its first variable with which a process sees none of its devices, where a runtime of another's would look at them.
    """

    label: str
    name: str
    resource: str
    visible: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    pci: tuple[tuple[str, str], ...] = ()
    about: tuple[tuple[str, str], ...] = ()
    commands: tuple[Command, ...] = ()
    platforms: tuple[str, ...] = ("linux", "win32", "darwin")
    config: str = "configs/accelerators.yaml"
    numbered: bool = False
    exclusive: bool | Command = False
    shares: str = ""
    hidden: str | None = None
    instead: str = ""

    def heeded(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the variables that say which of its devices a process sees, the one that decides first."""
        taken = self.instead and self.instead in env and self.visible[0] not in env
        return (self.instead, *self.visible[1:]) if taken else self.visible


#: A line that is a name and nothing else.
_LINES = r"^(?P<model>\S.*)$"
#: As an administrator sets it, `nvidia-smi -c EXCLUSIVE_PROCESS`.
_EXCLUSIVE = Command(("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"), r"^Exclusive_Process")
#: A card of `nvidia-smi -L`; in place of one that is cut into MIG slices, each slice.
_CARDS = (
    r"^(?:(?P<card>GPU \d+:)|[ \t]+(?P<part>MIG))[ \t]+(?P<model>\S.*?)(?:[ \t]+Device[ \t]+\d+:)?"
    r"[ \t]+\(UUID: (?P<id>[^)]*)\)[ \t]*$(?(card)(?!\n[ \t]+MIG))"
)

# fmt: off
#: Display controllers are class 03, processing accelerators class 12 (PCI Code and ID Assignment Specification).
VENDORS: tuple[Vendor, ...] = (
    Vendor("nvidia", "NVIDIA", "GPU", ("CUDA_VISIBLE_DEVICES",), ("/dev/nvidia[0-9]*", "/dev/nvhost-gpu"), (("10de", "03"),),
           (("/proc/driver/nvidia/gpus/*/information", r"^Model:\s*(?P<model>.+)$"),),
           (Command(("nvidia-smi", "-L"), _CARDS),), config="configs/cuda.yaml", numbered=True, exclusive=_EXCLUSIVE, shares="nvidia-smi -c DEFAULT", hidden=""),
    # One device node serves all GPUs; the driver's topology also lists the processors, which have no SIMDs. rocm-smi reads sysfs.
    Vendor("amd", "AMD", "GPU", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ("/dev/kfd",), (("1002", "03"), ("1002", "12")),
           (("/sys/class/kfd/kfd/topology/nodes/*/properties", r"^simd_count [1-9](?:[\s\S]*?^drm_render_minor (?P<render>\d+))?"),),
           (Command(("rocm-smi", "--showproductname", "--csv"), r"^card\d+,(?P<model>[^,\n]*)", opens=False),), config="configs/rocm.yaml", numbered=True, hidden="-1", instead="CUDA_VISIBLE_DEVICES"),
    Vendor("intel", "Intel", "GPU", ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"), ("/dev/dri/renderD*",), (("8086", "03"),), (),
           (Command(("xpu-smi", "discovery", "-j"), r'"device_name":\s*"(?P<model>[^"]*)"'),), config="configs/xpu.yaml", hidden="*:cpu"),
    Vendor("intel-npu", "Intel NPU", "NPU", (), ("/dev/accel/accel*",), (("8086", "12"),), config="configs/xpu.yaml"),
    Vendor("gaudi", "Intel Gaudi", "HPU", ("HABANA_VISIBLE_MODULES",), ("/dev/accel/accel*", "/dev/hl[0-9]*"), (("1da3", "12"),), (),
           (Command(("hl-smi", "-Q", "name", "-f", "csv,noheader"), _LINES),), config="configs/gaudi.yaml", exclusive=True),
    Vendor("huawei", "Huawei", "NPU", ("ASCEND_RT_VISIBLE_DEVICES",), ("/dev/davinci[0-9]*",), (("19e5", "12"),), (),
           (Command(("npu-smi", "info", "-m"), r"^\s*\d+\s+\d+\s+\d+\s+(?P<model>Ascend\S*.*?)\s*$"),), numbered=True),
    Vendor("google", "Google", "TPU", ("TPU_VISIBLE_CHIPS",), ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"), (("1ae0", "12"),), exclusive=True),
    # Ray counts cores of a chip; without the tool a chip counts as one.
    Vendor("aws", "AWS Neuron", "neuron_cores", ("NEURON_RT_VISIBLE_CORES",), ("/dev/neuron[0-9]*",), (("1d0f", "12"),), (),
           (Command(("neuron-ls", "--json-output"), r'"nc_count":\s*(?P<count>\d+)'),), exclusive=True),
    Vendor("qualcomm", "Qualcomm", "NPU", (), ("/dev/fastrpc-cdsp", "/dev/accel/accel*"), (("17cb", "12"),)),
    Vendor("rockchip", "Rockchip", "NPU", (), ("/sys/kernel/debug/rknpu", "/dev/rknpu"), config="configs/rockchip.yaml"),
    Vendor("verisilicon", "VeriSilicon", "NPU", (), ("/dev/galcore",)),
    Vendor("amd-npu", "AMD Ryzen AI", "NPU", (), ("/dev/accel/accel*",), (("1022", "11"),)),  # a signal processing controller
    Vendor("apple", "Apple", "GPU", (), (), (), (), (Command(("sysctl", "-n", "machdep.cpu.brand_string"), r"^(?P<model>Apple .*)$"),), ("darwin",)),
    # DirectML runs on whatever GPU Windows has; under WSL it is one device node.
    Vendor("microsoft", "Microsoft", "GPU", (), ("/dev/dxg",), (), (), (), ("win32", "linux")),
)
# fmt: on

BY_LABEL: dict[str, Vendor] = {vendor.label: vendor for vendor in VENDORS}

#: Variable of a child: the label of whose device it computes on, "" for none. What a kernel's own library (Triton) has to know
#: before it is imported.
DEVICE_VENDOR = "FARM_DEVICE_VENDOR"

#: Variable of a child: the number of its device among those of the vendor's on the node, for runtimes that see them all whatever
#: the vendor's own variable says.
DEVICE_NUMBER = "FARM_DEVICE_NUMBER"

#: Every variable by which some vendor's devices are given to a process.
VISIBLE: tuple[str, ...] = tuple(dict.fromkeys(name for vendor in VENDORS for name in vendor.visible))

#: torch device type → (vendor of its kernels, label of the nodes that have one; "" for the CPU).
TORCH_DEVICES: dict[str, tuple[str, str]] = {
    "cpu": ("Meta", ""),
    "cuda": ("NVIDIA", "nvidia"),
    "rocm": ("AMD", "amd"),
    "xpu": ("Intel", "intel"),
    "mps": ("Apple", "apple"),
    "npu": ("Huawei", "huawei"),
    "hpu": ("Intel Gaudi", "gaudi"),
    "xla": ("Google", "google"),
    "neuron": ("AWS", "aws"),
}

#: What people call torch's devices → torch's name: vendors by their labels, and by names of products.
CALLED: dict[str, str] = {label: device for device, (_, label) in TORCH_DEVICES.items() if label} | {
    "ascend": "npu",
    "habana": "hpu",
    "hip": "rocm",
    "metal": "mps",
    "tpu": "xla",
}


def chosen_by(device: str) -> str:
    """How one of several devices is chosen, of those that torch names so or people do: by a variable, as the end of a sentence."""
    label = TORCH_DEVICES.get(CALLED.get(device, device), ("", device))[1]
    names = BY_LABEL[label].visible[:1] if label in BY_LABEL else ()
    said = (
        ", ".join(f"${name}" for name in names)
        or "its vendor's variable ($CUDA_VISIBLE_DEVICES, $HIP_VISIBLE_DEVICES, …)"
    )
    return f"to choose among several devices, set {said} when starting the farm"


def device_number() -> int:
    """This process's device among the vendor's; 0 where it was given none by number."""
    given = os.environ.get(DEVICE_NUMBER, "")
    return int(given) if given.isdigit() else 0


def resource_of(label: str) -> str:
    """Ray resource of a vendor's devices, "CPU" for no vendor. Raises KeyError for a label nobody knows."""
    return BY_LABEL[label].resource if label else "CPU"
