"""Machines with devices of NVIDIA's, AMD's, Intel's and Habana's that are the CPU's memory, as a new user meets them.

Each has the vendor's command and the vendor's torch (`tests/plugin/planted_torch.py`); the backends are those of the
farm as they stand. By hand: `eval "$(python -m tests.machines cuda /tmp/machine)"`, then `farm node detect`.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: How such a machine is run: one process prepares for its devices. A second would import torch for nothing.
ALONE = ("--on", "processes", "--cpus", "1")


@dataclass(frozen=True)
class Machine:
    """command: the vendor's, and what it says; label: of the version of torch; built: what its file of versions says
    that it was built with; plugin: the module that registers the device."""

    command: str
    says: str
    label: str = ""
    built: str = ""
    plugin: str = ""


_CARDS = "\n".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i}1111111-2222-3333-4444-555555555555)" for i in range(2))
MACHINES = {
    "cuda": Machine("nvidia-smi", _CARDS, "cu130", "cuda = '13.0'"),
    "rocm": Machine(
        "rocm-smi",
        "device,Card Series\ncard0,AMD Instinct MI300X\ncard1,AMD Instinct MI300X",
        "rocm7.2",
        "hip: Optional[str] = '7.2.26015'",
    ),
    "xpu": Machine(
        "xpu-smi", '{"device_list": [{"device_name": "Intel(R) Data Center GPU Max 1550"}]}', "xpu", "xpu = '20250302'"
    ),
    "hpu": Machine("hl-smi", "HL-325L\nHL-325L", plugin="habana_frameworks/torch/core"),
}


def planted(device: str, folder: Path) -> dict[str, str]:
    """Variables of a machine with a device as torch names it; what it is made of is put into a folder."""
    machine, place = MACHINES[device], folder / device
    command = place / "bin" / machine.command
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\ncat <<'SAID'\n{machine.says}\nSAID\n")
    command.chmod(0o755)
    if machine.plugin:
        module = place / machine.plugin
        module.mkdir(parents=True)
        (module / "__init__.py").write_text(f"import planted_torch\n\nplanted_torch.{device}()\n")
    else:
        info = place / f"torch-2.13.0+{machine.label}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+{machine.label}\n")
        (place / "torch").mkdir()  # without a module: the real torch is imported
        (place / "torch" / "version.py").write_text(machine.built + "\n")
        (info / "entry_points.txt").write_text(f"[torch.backends]\nplanted = planted_torch:{device}\n")
    path = os.pathsep.join([str(place), str(ROOT / "tests" / "plugin"), str(ROOT)])
    own = {} if machine.plugin else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    return own | {"PYTHONPATH": path, "PATH": f"{command.parent}:{os.environ['PATH']}"}


if __name__ == "__main__":
    for name, value in planted(sys.argv[1], Path(sys.argv[2])).items():
        print(f"export {name}={shlex.quote(value)}")
