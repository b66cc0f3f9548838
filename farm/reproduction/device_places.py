"""Which device of which node a row is of, and which one of this machine's its case is run on now."""

from __future__ import annotations

import os
import socket

from farm.fleet import detect_vendors, node, visible_devices
from farm.reproduction.find_case import ReproduceError, StoredCase
from tasks.devices import BY_LABEL
from tasks.plugins import PluginError


def choose_device_of_row(case: StoredCase, number: int) -> None:
    """Give this process, and its children, one of this machine's devices, as a row's ``device_ids`` count them. Raises
    ReproduceError where there is no such device."""
    label = _find_case_vendor(case)
    vendor = BY_LABEL.get(label)
    if vendor is None:
        raise ReproduceError(f"--device {number}: {case.spec.name} computes on the CPU")
    try:
        here = node.find_devices_here([], detect_vendors.detect_this_machine()).get(label)
    except ValueError as error:  # also of a variable or a vendor that cannot be read
        raise ReproduceError(f"--device {number}: {error}") from None
    ids = here.ids if here and not any(name in os.environ for name in vendor.visible) else ()
    names = ids or [visible_devices.name_visible_devices(label, [str(n)])[0] for n in range(here.count if here else 0)]
    counted = [name if name.isdigit() else str(n) for n, name in enumerate(names)]
    if str(number) not in counted:
        there = f"device{'s' * (len(counted) > 1)} {', '.join(counted)}" if counted else "none"
        limit = visible_devices.count_visible_devices(vendor)
        by = f" (${limit[1]} is {os.environ[limit[1]]!r})" if limit else ""
        raise ReproduceError(f"--device {number}: this process has {there} of {vendor.name}{by}")
    at = counted.index(str(number))
    os.environ.update(visible_devices.build_visible_variables(label, [ids[at] if ids else str(at)]))


def name_devices_now(case: StoredCase) -> str:
    """What the devices are called that a case is run on here; "" of the CPU's."""
    return visible_devices.name_first_visible_device(case.spec)


def describe_device_place(host: str | None, device: str | None) -> str:
    """ "device 1 of node-a"."""
    return f"device {device} of {host or 'a node'}" if device else str(host or "")


def describe_device_here(device: str) -> str:
    return describe_device_place(socket.gethostname(), device)


def describe_other_device(case: StoredCase, device: str) -> str:
    """What is to be said, after a result that is not the stored one, where the row is of another device than
    ``device``."""
    stored = case.stored or {}
    then, on = stored.get("device_ids"), stored.get("node")
    if not then or not device or (then, on) == (device, socket.gethostname()):
        return ""
    again = f"; --device {then} asks that number here" if then.isdigit() and then != device else ""
    return f"the row is of {describe_device_place(on, then)}, this ran on {describe_device_here(device)}{again}"


def _find_case_vendor(case: StoredCase) -> str:
    try:
        return case.spec.create().device_vendor
    except (PluginError, ValueError):
        return ""
