"""Versions of what computes and is no Python package: a vendor's driver, and its toolkit, as the files say that they lay down."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Driver:
    """file: it has the version; module: of Linux. One that comes with the kernel has no version but the kernel's."""

    file: str
    pattern: str = r"(\S+)"
    module: str = ""


@dataclass(frozen=True)
class Toolkit:
    """folders: where it may be, a variable of the environment or a path; file: below a folder, it has the version."""

    name: str
    folders: Sequence[str]
    file: str
    pattern: str = r"(\S+)"


#: By a vendor's label (`tasks.vendors`).
DRIVERS = {
    "nvidia": Driver("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
    "amd": Driver("/sys/module/amdgpu/version", module="amdgpu"),
    "gaudi": Driver("/sys/module/habanalabs/version", module="habanalabs"),
    "aws": Driver("/sys/module/neuron/version"),
    # As torch_npu's get_cann_version("DRIVER") reads it; a container has it where it was given it.
    "huawei": Driver("/usr/local/Ascend/driver/version.info", r"(?m)^Version=(\S+)"),
    "intel-npu": Driver("/sys/module/intel_vpu/version", module="intel_vpu"),
}
#: Toolkits whose libraries compute and come from the vendor's installer, not with a backend's packages.
TOOLKITS = {
    # set_env.sh of CANN sets both variables; its installation guide reads the version there.
    "huawei": Toolkit(
        "CANN",
        ("$ASCEND_TOOLKIT_HOME", "$ASCEND_HOME_PATH"),
        f"{platform.machine()}-linux/ascend_toolkit_install.info",
        r"(?m)^version=(\S+)",
    ),
    "amd": Toolkit("ROCm", ("$ROCM_PATH", "/opt/rocm"), ".info/version"),
    # The graph compiler is a package of the system; another system than Debian's kin keeps no text of its packages.
    "gaudi": Toolkit(
        "SynapseAI", ("/var/lib/dpkg",), "status", r"(?m)^Package: habanalabs-graph\n(?:.+\n)*?Version: (\S+)"
    ),
}

#: Libraries that no Python package brings, in the words of a loader that does not find them, and what does.
_BROUGHT = (
    (
        r"lib(?:amdhip64|hip\w+|roc\w+|hsa-runtime64|MIOpen|migraphx\w*)\.so",
        "part of ROCm: install it, and add its folder (/opt/rocm/lib) to $LD_LIBRARY_PATH",
    ),
    (r"lib(?:ascend\w*|hccl|ge_\w+|opapi|acl_\w+)\.so", "part of CANN: source its set_env.sh first"),
    (r"libze_\w+\.so", "part of Intel's compute runtime (Level Zero)"),
    (r"lib(?:Synapse|hl-thunk|hcl)\.so", "part of SynapseAI: install habanalabs-graph of the plug-in's release"),
)


def driver(label: str, root: Path = Path("/")) -> str:
    """Version of a vendor's driver in the kernel (Linux), "" where there is none or it does not say. ``root``: of the files."""
    known = DRIVERS.get(label)
    if known is None:
        return ""
    if found := _said(root / known.file.lstrip("/"), known.pattern):
        return found
    there = known.module and (root / "sys/module" / known.module).is_dir()
    return f"Linux {platform.release()}" if there else ""


def toolkit(label: str) -> str:
    """ "CANN 8.0.RC1" of a vendor's toolkit as it is installed here, "" where none is found.

    Without the file that says it, a folder's own name may: toolkits are installed side by side, one a version.
    """
    known = TOOLKITS.get(label)
    for folder in filter(None, map(_folder, known.folders if known else ())):
        assert known is not None
        named = re.search(r"\d+(?:\.\w+)+$", os.path.realpath(folder))
        if version := _said(Path(folder) / known.file, known.pattern) or (named[0] if named else ""):
            return f"{known.name} {version}"
    return ""


def brings(text: str) -> str:
    """What brings a library that a runtime's error names, "" for none that is known."""
    return next((what for words, what in _BROUGHT if re.search(words, text)), "")


def _folder(place: str) -> str:
    return os.environ.get(place[1:], "") if place.startswith("$") else place


def _said(path: Path, pattern: str) -> str:
    with contextlib.suppress(OSError):
        if match := re.search(pattern, path.read_text(errors="replace")):
            return match[1]
    return ""
