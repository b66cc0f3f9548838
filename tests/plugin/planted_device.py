"""torch on a device that is the CPU's memory (`device_of_memory.cpp`), as `torch-<device>` has it: a backend of a GPU."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from tasks.backends.torch import TorchEager
from tasks.model import RuntimeInfo

#: What torch calls the device.
NAME = "memory"
SOURCE = Path(__file__).with_name("device_of_memory.cpp")


def library() -> Path:
    """The compiled device, kept by its source and by the version of torch. Raises CalledProcessError."""
    import torch

    root = Path(torch.__file__).parent
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    # Not in tempfile's folder: each process of the farm has its own, and compiling takes longer than most tests.
    made = Path("/tmp") / f"farm-device-{os.getuid()}" / f"lib{NAME}-{key}.so"
    if not made.exists():
        made.parent.mkdir(mode=0o700, exist_ok=True)
        with open(made.with_suffix(".lock"), "w") as lock:  # one process compiles for half a minute, the others wait
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                _compile(root, made)
    return made


def _compile(root: Path, made: Path) -> None:
    aside = made.with_suffix(f".{os.getpid()}")
    include = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    links = [f"-L{root}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root}/lib"]
    flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared"]
    subprocess.run(["g++", *flags, *include, str(SOURCE), "-o", str(aside), *links], check=True)
    aside.replace(made)


def load(name: str = NAME) -> Any:
    """torch's module of the device, which is registered once a process."""
    import torch

    if hasattr(torch, name):
        return getattr(torch, name)
    torch.ops.load_library(str(library()))
    torch.utils.rename_privateuse1_backend(name)
    module: Any = types.ModuleType(f"torch.{name}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.get_device_name = lambda index=0: "the CPU's memory"
    module.synchronize = lambda device=None: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return module


class Bus:
    """The devices of a machine, as one of its processes has them: each may be lost, for good.

    $FARM_DEVICES: a folder, their state. A file "lost-1" there: the second has fallen off the bus. $FARM_DEVICES_LOSE:
    300, the first device that a process has waited for so many times is lost. visible: the vendor's variable; says: its
    words of a loss.
    """

    def __init__(self, visible: str, says: str) -> None:
        self._machine = Path(os.environ.get("FARM_DEVICES") or "/nonexistent")
        self._left, self._says = int(os.environ.get("FARM_DEVICES_LOSE") or -1), says
        named = re.match(r"(?:level_zero:)?(\d+)", os.environ.get(visible, ""))
        self.number = named[1] if named else "0"

    def lost(self) -> bool:
        return (self._machine / f"lost-{self.number}").exists()

    def synchronize(self, device: object = None) -> None:
        """Raises RuntimeError where the device is gone."""
        self._left -= 1
        if self._left == 0 and not list(self._machine.glob("lost-*")):
            (self._machine / f"lost-{self.number}").touch()
        if self.lost():
            raise RuntimeError(f"{self._says}: device {self.number} is lost")


class OnMemory(TorchEager):
    """`torch-<device>` whose device is registered before it is looked for, as a plugin of torch's does it."""

    def probe(self) -> RuntimeInfo:
        load()
        return super().probe()


if __name__ == "__main__":
    print(library(), file=sys.stderr)
