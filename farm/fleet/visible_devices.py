"""Which of a vendor's devices this process was given, and which a child of it sees: what the variables say."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from tasks.backends import BackendSpec
from tasks.devices import BY_LABEL, DEVICE_NUMBER, DEVICE_VENDOR, DEVICES, Device, find_device_number

#: A selector of oneAPI's before the numbers: "level_zero:0,1", "*:gpu" (SYCL's notes on environment variables).
_SELECTOR = "ONEAPI_DEVICE_SELECTOR"
#: One device: a number, a number and one of its tiles (ZE_AFFINITY_MASK), or an id (of a card or of a MIG slice).
_DEVICE = re.compile(r"\d+(\.\d+)?|(GPU|MIG)-[0-9A-Za-z/-]+")
#: What a variable says in other words than numbers.
_SAY = {_SELECTOR: "level_zero:0,1", "CUDA_VISIBLE_DEVICES": "numbers (0,1), ids (GPU-…, MIG-…)"}
#: Values that give none at all (CUDA's and Neuron's notes on these variables).
_NONE = ("", "-1", "none", "NoDevFiles", "void")
#: Values that leave the choice open.
_ALL = ("all", "gpu")


class NonsenseVariable(ValueError):
    """A variable of visible devices that cannot be read; the text names it and what it may say."""


def list_visible_devices(name: str, value: str) -> tuple[str, ...] | None:
    """The devices that a variable names, as it names them; None where it leaves all open. Raises NonsenseVariable."""
    text = value.strip()
    if name == _SELECTOR:
        kind, _, text = text.rpartition(":")
        if kind.startswith("!") or ";" in value:
            return None
    if text in _ALL or "*" in text:  # oneAPI's "*.*": every tile of every card
        return None
    if text in _NONE:
        return ()
    found: list[str] = []
    for item in (x.strip() for x in text.split(",")):
        if match := re.fullmatch(r"(\d+)-(\d+)", item):  # Neuron's cores
            found += map(str, range(int(match[1]), int(match[2]) + 1))
        elif _DEVICE.fullmatch(item):
            found.append(item)
        else:
            say = _SAY.get(name, "numbers (0,1)")
            raise NonsenseVariable(f"${name} is {value!r}: {item!r} is not a device; use {say}, or unset it")
    return tuple(dict.fromkeys(found))


def make_variables_for_ray(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables without which Ray is not even imported: on a node with AMD's driver it refuses ROCR_VISIBLE_DEVICES,
    which Slurm sets, without HIP's, whose numbers count within its devices. Raises NonsenseVariable."""
    made: dict[str, str] = {}
    for vendor in DEVICES:
        if not vendor.nested:
            continue
        inner, outer = vendor.visible
        named = list_visible_devices(outer, env[outer]) if outer in env and inner not in env else None
        if named is not None and vendor.instead in env:  # of which Ray wants the same
            made[inner] = env[vendor.instead]
        elif named is not None:
            made[inner] = ",".join(map(str, range(len(named)))) or vendor.hidden or ""
    return made


def count_visible_devices(
    vendor: Device, env: Mapping[str, str] = os.environ, there: int = sys.maxsize
) -> tuple[int, str] | None:
    """(how many of a vendor's ``there`` devices this process may use, which variable says so); None where none says
    anything.

    Raises NonsenseVariable.
    """
    return min(((shown, name) for name, _, _, shown in _find_visible_choices(vendor, there, env)), default=None)


def check_visible_devices(
    vendor: Device, there: int, uuids: Sequence[str] = (), env: Mapping[str, str] = os.environ
) -> None:
    """Raises NonsenseVariable where a variable of visible devices names first what is none of the ``there`` devices:
    CUDA and HIP then show none at all. uuids: the devices' own, where the driver lists them; a variable may have the
    beginning of one."""
    cut = any(x.startswith("MIG-") for x in uuids)  # into slices: such a card is not listed
    for name, named, among, _ in _find_visible_choices(vendor, there, env) if vendor.numbered else ():
        first = next(iter(named), "")
        if first.isdigit():
            known, has = int(first) < among, "device 0" if among == 1 else f"devices 0 to {among - 1}"
        else:
            known = any(x.startswith(first) for x in uuids) or (cut and first.startswith("GPU-"))
            has = ", ".join(uuids)
        if first and has and among and not known:
            raise NonsenseVariable(
                f"${name} is {env[name]!r}, and this machine has {has} of {vendor.name}; name those, or unset it"
            )


def _find_visible_choices(
    vendor: Device, there: int, env: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...], int, int]]:
    """(variable, devices that it names, among how many, how many of them are shown) of those that name any, the
    outermost first: HIP's numbers count within ROCR's devices. CUDA and HIP show those before the first number that
    none has."""

    def is_known(device: str) -> bool:
        return not vendor.numbered or not device.isdigit() or int(device) < there

    for name in reversed(vendor.find_heeded_variables(env)):
        named = list_visible_devices(name, env[name]) if name in env else None
        if named is not None:
            shown = len(list(itertools.takewhile(is_known, named)))
            yield name, named, there, shown
            there = shown


def name_visible_devices(label: str, numbers: Sequence[str], env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What the vendor's variable calls those of this process's devices that Ray gave a task; () where it names no such
    device.

    numbers: as Ray counts them from 0, or as it has written them into that variable. One that the node was started with
    names the devices behind the numbers.
    """
    vendor = BY_LABEL.get(label)
    told = vendor.find_heeded_variables(env)[0] if vendor and vendor.visible else ""
    named = list_visible_devices(told, env[told]) if told in env else None
    # Another vendor's variable names none where Ray has set it for a task without that one's devices.
    if vendor is None or named is None or named == tuple(numbers) or (not named and told != vendor.visible[0]):
        return tuple(numbers)
    return tuple(named[int(n)] for n in numbers) if all(n.isdigit() and int(n) < len(named) for n in numbers) else ()


def build_vendor_variable(label: str, numbers: Sequence[str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The vendor's own variable for those of this process's devices that Ray gave a task; {} for none.

    numbers: as `name_visible_devices` takes them; on a node of several vendors Ray sets the variable of one.
    """
    names, joined = (
        BY_LABEL[label].visible if label in BY_LABEL else (),
        ",".join(name_visible_devices(label, numbers, env)),
    )
    return {name: f"level_zero:{joined}" if name == _SELECTOR else joined for name in names[:1] if joined}


def name_first_visible_device(spec: BackendSpec | None, env: Mapping[str, str] = os.environ) -> str:
    """What the devices are called that a backend computes on where nobody gave it others: the first that are visible;
    "" for the CPU's."""
    made = spec.create_if_there() if spec else None
    if made is None or made.device_vendor not in BY_LABEL or made.emulated:
        return ""
    at = [find_device_number()] if not BY_LABEL[made.device_vendor].visible else made.ordinals
    return ",".join(name_visible_devices(made.device_vendor, [str(n) for n in at], env))


def build_visible_variables(label: str, numbers: Sequence[str]) -> dict[str, str]:
    """Variables of a task that Ray gave devices of a vendor: `build_vendor_variable`, and the number for runtimes that
    heed none."""
    return build_vendor_variable(label, numbers) | ({DEVICE_NUMBER: numbers[0]} if numbers else {})


def build_child_variables(spec: BackendSpec | None) -> dict[str, str]:
    """Variables of a child: the devices that are not its backend's are hidden.

    What is prepared must not depend on a GPU beside it, and no process of the CPU's opens one. A variable of another's
    that its runtime reads as well, as ROCm does CUDA's, is left to it.
    """
    made = spec.create_if_there() if spec else None
    mine = made.device_vendor if made else ""
    env = {x.visible[0]: x.hidden for x in DEVICES if x.hidden is not None and x.label != mine}
    if mine in BY_LABEL:
        env.pop(BY_LABEL[mine].instead, None)
    return env | {DEVICE_VENDOR: mine}
