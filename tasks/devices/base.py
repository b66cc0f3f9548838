"""What is known of a kind of device: who makes it, how it is found, described and restricted, and what runtimes call it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.devices.sanitizer import Sanitizer

#: A plugin that torch imports by itself takes torch down with it where its driver is missing.
PLUGIN_ALONE = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


@dataclass(frozen=True)
class VendorCommand:
    """A vendor's command that lists devices. pattern: matches once a device (multi-line), its group "model" the name,
    its group "count" how many Ray counts in it (cores of a chip) where that is not one. Group "part": it is a part of a
    device, and a process is given it, and the others beside it, by group "id" and not by number. opens: it lists only
    what this user may open."""

    argv: tuple[str, ...]
    pattern: str
    opens: bool = True


@dataclass(frozen=True)
class DeviceDriver:
    """file: it has the version; module: of Linux. One that comes with the kernel has no version but the kernel's."""

    file: str
    pattern: str = r"(\S+)"
    module: str = ""

    def version(self, root: Path = Path("/")) -> str:
        """Its version; "" where it is not there, or does not say. ``root``: of the files."""
        if found := _search_file(root / self.file.lstrip("/"), self.pattern):
            return found
        there = self.module and (root / "sys/module" / self.module).is_dir()
        return f"Linux {platform.release()}" if there else ""


@dataclass(frozen=True)
class DeviceToolkit:
    """Libraries that compute and come from the vendor's installer, not with a backend's packages. folders: where they
    may be, a variable of the environment or a path; file: below a folder, it has the version."""

    name: str
    folders: Sequence[str]
    file: str
    pattern: str = r"(\S+)"

    def version(self) -> str:
        """ "CANN 8.0.RC1" as it is installed here, "" where none is found.

        Without the file that says it, a folder's own name may: toolkits are installed side by side, one a version.
        """
        for place in self.folders:
            folder = os.environ.get(place[1:], "") if place.startswith("$") else place
            if not folder:
                continue
            named = re.search(r"\d+(?:\.\w+)+$", os.path.realpath(folder))
            if found := _search_file(Path(folder) / self.file, self.pattern) or (named[0] if named else ""):
                return f"{self.name} {found}"
        return ""


@dataclass(frozen=True)
class TorchDevice:
    """One device type of torch's as a backend names it.

    target: what torch calls it ("" = the same); kernels: who wrote its kernels ("" = the device's maker); plugin: the
    module whose import registers it; distribution: the package that has that; toolkit: whether that needs the maker's
    toolkit; variables: of the environment, set before torch is imported where the user has not set them; platform: what
    PJRT calls it. option: the switch that lets it compute products of float32 coarser, and the precision it then
    declares; coarser: variables without which it does not; obeys: whether the switch is a command. Most allow it: cuDNN
    may still choose a kernel of float32. packages: of an environment of its own, pinned, with the index that has them
    beside PyPI. unsupported: what its errors say of a dtype, a device or sizes that there is no kernel for, beside
    torch's own words; sticky, out_of_memory: how they say that.
    """

    target: str = ""
    kernels: str = ""
    plugin: str = ""
    distribution: str = ""
    toolkit: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    platform: str = ""
    option: str = ""
    coarse: str = ""
    coarser: tuple[tuple[str, str], ...] = ()
    obeys: bool = False
    packages: tuple[str, ...] = ()
    unsupported: str = ""
    sticky: str = ""
    out_of_memory: str = ""


@dataclass(frozen=True)
class DeviceDescription:
    """What is known of a device once a runtime on it has started: its driver's words, and what its maker's libraries
    are."""

    name: str
    #: As compilers call it ("sm_90").
    architecture: str
    driver_version: str
    #: Bytes.
    memory: int
    #: Words of a row's flags that tell it from its like.
    identity: tuple[str, ...] = ()
    #: Versions by name of the maker's libraries that packages bring, for the version of a runtime that does not name
    #: them.
    libraries: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: Those that were loaded from elsewhere, as that version says it.
    loaded: tuple[str, ...] = ()
    #: Names of `tasks.matrix_units.accumulators` that its matrix units have.
    accumulators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """A kind of device of one maker.

    label: value of the node label "vendor"; name: the maker's; resource: the Ray resource that counts its devices;
    visible: the variables by which a process is given some of them (the first is Ray's own); instead: another maker's,
    which its runtime reads where the first is not set; nested: the first counts within the devices of the second, which
    Ray refuses alone.

    How a node detects them: files: globs of device nodes, each a device unless ``about`` counts them; pci: (vendor id,
    class prefix) of sysfs's PCI devices, hexadecimal, which also tell whose a device node of a common class (drm,
    accel, vfio) is; about: (glob, pattern) of text files of which each that matches is a device, group "model" its
    name, group "render" the number of the node /dev/dri/renderD… that it takes besides; commands: what the maker's
    tools say; platforms: those of ``sys.platform`` where it is looked for. config: what is run on it first; before:
    what must be there by then; container: what docker run is given for it. numbered: the numbers of its variables count
    what is found, from 0. exclusive: one process at a time may open a device, or a
    command that says so, where its pattern matches; shares: what lets several, where that is a setting. hidden: the
    value of its first variable with which a process sees none of its devices, where a runtime of another's would look
    at them.

    driver, toolkit: where their versions stand; libraries: of the toolkit, as a loader names one that it does not find,
    and what brings them; architecture: what compilers call this node's, "" where no driver says; describe: what the
    driver says of the device of an ordinal, None where nothing asks it. sanitizer: what watches its memory. condition:
    what says how hot and fast a device is, its argv to be followed by what the first visible variable calls the device.
    torch: its types in torch, as backends name them; called: what people call the first of these, beside the label.
    """

    label: str
    name: str
    resource: str
    visible: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    pci: tuple[tuple[str, str], ...] = ()
    about: tuple[tuple[str, str], ...] = ()
    commands: tuple[VendorCommand, ...] = ()
    platforms: tuple[str, ...] = ("linux", "win32", "darwin")
    config: str = "configs/accelerators.yaml"
    before: str = "the vendor's driver"
    container: str = ""
    numbered: bool = False
    exclusive: bool | VendorCommand = False
    shares: str = ""
    hidden: str | None = None
    instead: str = ""
    nested: bool = False
    driver: DeviceDriver | None = None
    toolkit: DeviceToolkit | None = None
    libraries: tuple[str, str] | None = None
    architecture: Callable[[], str] | None = None
    describe: Callable[[int], DeviceDescription | None] | None = None
    torch: Mapping[str, TorchDevice] = field(default_factory=dict, hash=False)
    sanitizer: Sanitizer | None = None
    condition: VendorCommand | None = None
    called: tuple[str, ...] = ()

    def find_heeded_variables(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the variables that say which of its devices a process sees, the one that decides first."""
        taken = self.instead and self.instead in env and self.visible[0] not in env
        return (self.instead, *self.visible[1:]) if taken else self.visible

    def driver_version(self, root: Path = Path("/")) -> str:
        """Of its driver in the kernel (Linux); "" where there is none or it does not say."""
        return self.driver.version(root) if self.driver else ""

    def describe_condition(self, env: Mapping[str, str]) -> str:
        """Temperature and clock of the device that a process is given ("celsius=61 mhz=1980"); "" where nothing
        says."""
        if self.condition is None:
            return ""
        device = (env.get(self.visible[0]) if self.visible else "") or "0"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            argv = [*self.condition.argv, device.partition(",")[0]]
            told = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout
            if found := re.search(self.condition.pattern, told, re.MULTILINE):
                return " ".join(f"{name}={value}" for name, value in found.groupdict().items())
        return ""

    def toolkit_version(self) -> str:
        """Name and version of its toolkit; "" where it has none or it is not installed."""
        return self.toolkit.version() if self.toolkit else ""


def _search_file(path: Path, pattern: str) -> str:
    with contextlib.suppress(OSError):
        if match := re.search(pattern, path.read_text(errors="replace")):
            return match[1]
    return ""
