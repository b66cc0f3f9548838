"""What compilers call the architecture of this node's device, asked of its driver."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tasks.backends.shared import cuda_driver
from tasks.vendors import BY_LABEL


def nvidia() -> str:
    """Of the first GPU that this process sees, as LLVM and ptxas call it: "sm_90"; "" where no driver says."""
    try:
        capability = cuda_driver.Device(cuda_driver.load()).capability
    except (OSError, cuda_driver.CudaError):
        return ""
    return "sm_" + capability.replace(".", "")


def amd(root: Path = Path("/")) -> str:
    """Of the first GPU that this process sees, as LLVM calls it: "gfx942"; "" where the driver says nothing.

    The kernel driver gives decimal digits, 90402: major 9, minor 4, stepping 2, the last two of which LLVM writes in
    hexadecimal (ROCR-Runtime, `isa.cpp`; amdkfd's `gfx_target_version`).
    """
    found = []
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    for path in sorted(topology.glob("*/properties"), key=lambda p: int(p.parent.name)):
        match = re.search(r"^gfx_target_version (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
        if match and int(match[1]):  # 0: a processor
            version = int(match[1])
            found.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    visible = next(filter(None, map(os.environ.get, BY_LABEL["amd"].heeded(os.environ))), "0")
    first = visible.partition(",")[0]
    return found[int(first)] if first.isdigit() and int(first) < len(found) else (found or [""])[0]
