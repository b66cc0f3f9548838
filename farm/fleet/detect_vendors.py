"""Which vendors' devices this machine has, and how that is known: device files, sysfs, the vendors' own commands."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farm.program import name_farm_program
from tasks.devices import BY_LABEL, DEVICES, TORCH_DEVICES, Device, VendorCommand
from tasks.model import Refusal

#: Seconds a vendor's command may take: the driver of a sick device hangs.
COMMAND_S = 15.0
#: Variable that says which vendors' devices are here, instead of looking: labels, or LABEL=COUNT, comma-separated; ""
#: for none.
OVERRIDE = "FARM_VENDORS"
#: Node labels that say the same: the only or first vendor of a node, and per vendor how many devices.
VENDOR_LABEL, COUNT_LABEL = "vendor", "farm.io/"
#: Device classes that vendors share: whose one of them is, sysfs says. Folder of device nodes → sysfs's PCI ids.
_SHARED = {
    "/dev/dri/": "/sys/class/drm/{name}/device",
    "/dev/accel": "/sys/class/accel/{name}/device",
    "/dev/vfio/": "/sys/kernel/iommu_groups/{name}/devices/*",
}


class UnknownVendor(Refusal):
    """A vendor label that the table does not have; the text names those it has."""


@dataclass(frozen=True)
class VendorFinding:
    """What was found of one vendor.

    models: one name a device, "" where it cannot be told; count: devices in Ray's count that this process may open;
    because: what was found where; without: what was looked for and is not there; uuids: the devices' own, where a
    command lists them; parts: whether some are parts of a card, which a process is given by these and not by numbers;
    denied: device nodes that this user may not open, each with the group that may; absent: those that are not there, as
    in a container that was not given them.
    """

    vendor: Device
    models: tuple[str, ...] = ()
    count: int = 0
    because: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    parts: bool = False
    denied: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def shut(self) -> bool:
        """Whether devices are here, with a driver, and this process may open none."""
        return bool(self.denied or self.absent) and not self.count

    @property
    def words(self) -> str:
        """What was found, for people, and what keeps this user from it."""
        return "; ".join([self._found_text, *([self._denied_text] if self.denied or self.absent else [])])

    @property
    def _denied_text(self) -> str:
        groups = ",".join(dict.fromkeys(group for _, group in self.denied if group))
        how = f": sudo usermod -aG {groups} $USER, and log in again" if groups else ""
        none = "" if self.count else ", so none is offered"
        why = [f"this user may not open {', '.join(path for path, _ in self.denied)}"] if self.denied else []
        why += [f"there is no {', '.join(self.absent)} (docker run --device=/dev/dri)"] if self.absent else []
        return f"{' and '.join(why)}{none}{how}"

    @property
    def _found_text(self) -> str:
        if self.count or self.denied or self.absent:
            models = ", ".join(sorted({m for m in self.models if m}))
            return f"{self.count or len(self.models)} × {models or self.vendor.name}: {'; '.join(self.because)}"
        if self.because:
            return f"no driver: {'; '.join(self.because)}, but {', '.join(self.without)}"
        return f"none: {', '.join(self.without)}"

    @property
    def reason(self) -> str:
        """Why a backend of this vendor's device cannot run here."""
        if self.shut:
            return f"{self._denied_text} (${OVERRIDE}={self.vendor.label} tries anyway)"
        return f"no {self.vendor.name} device on this node ({', '.join(self.without) or 'its label or ' + OVERRIDE + ' says so'})"


@dataclass
class _VendorSearch:
    """Evidence of one vendor as it is collected."""

    vendor: Device
    root: Path
    because: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    lists: list[list[str]] = field(default_factory=list)  # models by each source that counts devices
    counted: int = 0  # devices as a command counts them in Ray's units
    opened: bool = False  # by a command, which so has told what this user may open
    uuids: list[str] = field(default_factory=list)
    parts: bool = False
    denied: list[tuple[str, str]] = field(default_factory=list)
    render: list[str] = field(default_factory=list)  # device nodes that its devices take besides, one each

    def files(self) -> int:
        """Number of its device nodes."""
        found = 0
        for pattern in self.vendor.files:
            mine = [p for p in _glob_below_root(self.root, pattern) if self._is_mine(p)]
            found += len(mine)
            self.denied += [
                (p, _find_owning_group(self.root, p)) for p in mine if not _can_open_device_node(self.root, p)
            ]
            if mine:
                self.because += mine
            else:
                self.without.append(f"no {pattern.replace('[0-9]*', '*')}")
        return found

    def _is_mine(self, path: str) -> bool:
        """Whether a device node is this vendor's: those of common classes are told by the PCI id behind them."""
        for folder, behind in _SHARED.items():
            if path.startswith(folder):
                places = _glob_below_root(self.root, behind.format(name=path.rpartition("/")[2]))
                ids = {
                    (_read_sysfs_file(self.root, f"{p}/vendor"), _read_sysfs_file(self.root, f"{p}/class"))
                    for p in places
                }
                return any(self._has_id(*one) for one in ids)
        return True

    def _has_id(self, maker: str, kind: str) -> bool:
        return any(maker == f"0x{v}" and kind.startswith(f"0x{c}") for v, c in self.vendor.pci)

    def bus(self) -> int:
        """Number of its devices on the PCI bus."""
        if not self.vendor.pci:
            return 0
        found = [
            p
            for p in _glob_below_root(self.root, "/sys/bus/pci/devices/*")
            if self._has_id(_read_sysfs_file(self.root, f"{p}/vendor"), _read_sysfs_file(self.root, f"{p}/class"))
        ]
        self.because += [f"PCI device {p.rpartition('/')[2]}" for p in found]
        if not found:
            self.without.append("no such PCI device")
        return len(found)

    def about(self) -> None:
        for pattern, expression in self.vendor.about:
            models = []
            for path in _glob_below_root(self.root, pattern):
                if match := re.search(expression, _read_sysfs_file(self.root, path), re.MULTILINE):
                    said = match.groupdict()
                    models.append((said.get("model") or "").strip())
                    self.render += [f"/dev/dri/renderD{said['render']}"] if said.get("render") else []
                    self.because.append(path)
            self.lists.append(models)

    def commands(self) -> None:
        for command in self.vendor.commands:
            said, why = _run_vendor_command(command.argv)
            matches = list(re.finditer(command.pattern, said, re.MULTILINE))
            if not matches:
                self.without.append(why or f"{command.argv[0]} lists none")
                continue
            self.because.append(f"{' '.join(command.argv)} lists {len(matches)}")
            self.lists.append([(m.groupdict().get("model") or "").strip() for m in matches])
            self.opened |= command.opens
            self.counted = max(self.counted, sum(int(m.groupdict().get("count") or 1) for m in matches))
            self.uuids = [m["id"] for m in matches if "id" in m.groupdict()]
            self.parts = any(m.groupdict().get("part") for m in matches)


def detect_vendors(root: Path = Path("/"), vendors: Iterable[Device] = DEVICES) -> dict[str, VendorFinding]:
    """What this machine has of each vendor that is looked for on this platform, by label. ``root``: of its files.

    A device on the bus without a device node has no driver here: it is evidence (because), but counts none.
    """
    return {v.label: _search_vendor(v, root) for v in vendors if sys.platform in v.platforms}


def _search_vendor(vendor: Device, root: Path) -> VendorFinding:
    search = _VendorSearch(vendor, root)
    nodes = search.files()
    search.bus()
    search.commands()
    if nodes:
        search.about()
    listed = max(search.lists, key=len, default=[])
    # Files are counted where nothing better is there: AMD has one for all, and one may be a part of a device.
    models = listed or [""] * nodes
    count = search.counted or len(models)
    if search.denied and not search.opened:
        count = min(count, nodes - len(search.denied))
    absent = [p for p in search.render if not _glob_below_root(root, p)]
    shut = [p for p in search.render if p not in absent and not _can_open_device_node(root, p)]
    if search.render:
        count = min(count, len(search.render) - len(absent) - len(shut))
    return VendorFinding(
        vendor,
        tuple(models),
        count,
        tuple(dict.fromkeys(search.because)),
        tuple(search.without),
        tuple(search.uuids),
        search.parts,
        (*search.denied, *((p, _find_owning_group(root, p)) for p in shut)),
        tuple(absent),
    )


def list_node_devices(labels: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Vendor label → one model name a device ("" unknown) of what this node has; vendors it has none of are left out.

    $FARM_VENDORS or the node's Ray ``labels`` override what the machine shows. A device on the bus without a driver
    is listed as well: whether it can be used, only its runtime can say; one that this user may not open is not. Raises
    UnknownVendor for a label of $FARM_VENDORS that nobody knows.
    """
    told = _list_declared_vendors(labels or {})
    if told is not None:
        return {label: [""] for label in told}
    return {label: list(f.models) or [""] for label, f in detect_this_machine().items() if f.because and not f.shut}


def find_eager_backend() -> str:
    """The backend of eager torch on the device that this machine has; on the CPU where it has none."""
    there = list_node_devices()
    return next((f"torch-{name}" for name, (_, label) in TORCH_DEVICES.items() if label in there), "torch-cpu")


def explain_missing_vendor(label: str, labels: Mapping[str, str] | None = None) -> str:
    """Why this node has no device of a vendor; "" if it has one or nobody looks for that vendor's."""
    if label not in BY_LABEL or label in list_node_devices(labels):
        return ""
    told = _list_declared_vendors(labels or {})
    finding = VendorFinding(BY_LABEL[label]) if told is not None else detect_this_machine().get(label)
    if finding is None:
        return f"no {BY_LABEL[label].name} device on this node (not detected on {sys.platform})"
    return finding.reason


def has_no_trace_of_vendor(label: str, labels: Mapping[str, str] | None = None) -> bool:
    """Whether there is no trace of a vendor's devices on this node: none is there that cannot be opened, either."""
    if label not in BY_LABEL or label in list_node_devices(labels):
        return False
    finding = detect_this_machine().get(label)
    return _list_declared_vendors(labels or {}) is not None or finding is None or not finding.shut


def explain_no_device_of(vendors: Iterable[str]) -> str:
    """Why backends of several vendors' devices are not there, in one line; "" where it is one vendor's, whose own
    reason says more."""
    names = list(dict.fromkeys(filter(None, vendors)))
    return f"no device of {', '.join(names)} (looked for: {name_farm_program()} node detect)" if len(names) > 1 else ""


def _list_declared_vendors(labels: Mapping[str, str]) -> list[str] | None:
    """Vendors that $FARM_VENDORS or a node's labels name; None if they say nothing."""
    if OVERRIDE in os.environ:
        names = (name.partition("=")[0].strip() for name in os.environ[OVERRIDE].split(","))
        return [get_vendor_of_label(name, f"${OVERRIDE}").label for name in names if name]
    named = [labels[VENDOR_LABEL]] if labels.get(VENDOR_LABEL) else []
    named += [key.removeprefix(COUNT_LABEL) for key in labels if key.startswith(COUNT_LABEL)]
    return list(dict.fromkeys(named)) or None


def get_vendor_of_label(label: str, where: str) -> Device:
    """The vendor of a label. Raises UnknownVendor, which names the labels there are."""
    if label not in BY_LABEL:
        raise UnknownVendor(f"{where}: unknown vendor {label!r}; known: {', '.join(BY_LABEL)}")
    return BY_LABEL[label]


@functools.cache
def detect_this_machine() -> dict[str, VendorFinding]:
    """`detect_vendors` of this machine, once a process."""
    return detect_vendors()


@functools.cache
def allows_one_process(label: str) -> bool:
    """Whether one process at a time may open a device of a vendor's on this machine."""
    said = BY_LABEL[label].exclusive if label in BY_LABEL else False
    return (
        bool(re.search(said.pattern, _run_vendor_command(said.argv)[0], re.MULTILINE))
        if isinstance(said, VendorCommand)
        else said
    )


def _glob_below_root(root: Path, pattern: str) -> list[str]:
    """Paths below ``root`` that match an absolute pattern, as absolute paths of the machine they describe."""
    found = glob.glob(pattern.lstrip("/"), root_dir=root)
    return sorted(f"/{p}" for p in found)


def _read_sysfs_file(root: Path, path: str) -> str:
    try:
        return (root / path.lstrip("/")).read_text(errors="replace").strip()
    except OSError:
        return ""


def _can_open_device_node(root: Path, path: str) -> bool:
    """Whether this process may read and write a device node; a folder of sysfs is none."""
    return path.startswith("/sys/") or os.access(root / path.lstrip("/"), os.R_OK | os.W_OK)


def _find_owning_group(root: Path, path: str) -> str:
    """The group whose members may open a device node, "" where that is root's or none may."""
    with contextlib.suppress(ImportError, OSError, KeyError):
        import grp  # Windows has none

        found = os.stat(root / path.lstrip("/"))
        return grp.getgrgid(found.st_gid).gr_name if found.st_gid and found.st_mode & 0o060 == 0o060 else ""
    return ""


def _run_vendor_command(argv: tuple[str, ...]) -> tuple[str, str]:
    """(stdout of a command, why there is none). A command that hangs is ended."""
    path = shutil.which(argv[0])
    if path is None:
        return "", f"{argv[0]} not found"
    try:
        process = subprocess.Popen(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return "", f"{argv[0]} cannot be started ({error.strerror})"
    try:
        said = process.communicate(timeout=COMMAND_S)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()  # type: ignore[union-attr]
        return "", f"{argv[0]} did not answer within {COMMAND_S:g} s"
    if process.returncode:
        words = " ".join(said.split())[:120]
        return "", f"{argv[0]} failed: {words or f'exit code {process.returncode}'}"
    return said, ""
