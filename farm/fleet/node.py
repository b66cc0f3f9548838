"""This machine as a node of a Ray cluster: the labels and resources of the devices it has."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm.fleet import detect_vendors, visible_devices
from farm.fleet.detect_vendors import COUNT_LABEL, OVERRIDE, VENDOR_LABEL, VendorFinding, get_vendor_of_label
from tasks.devices import DEVICES, Device
from tasks.model import Refusal
from tasks.relay import count_usable_processors

#: Label of the device's model; on a node of several vendors, the model of another than the first.
MODEL_LABEL, OTHER_MODEL_LABEL = "device-model", "model.farm.io/"
#: Variables of a node's processes: a task without a GPU keeps its variables; a worker is not replaced between two
#: batches, since its children would have to start again.
NODE_ENV = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_idle_worker_killing_time_threshold_ms": "600000"}


@dataclass
class RayNode:
    """What `ray start` is told of this node."""

    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    #: Of the environment that it is started in: ids of devices that numbers cannot name, and what Ray wants beside it.
    variables: dict[str, str] = field(default_factory=dict)

    def arguments(self, cpus: bool = True) -> list[str]:
        """Of `ray start`. GPUs are always said: Ray would count them itself, and count one vendor's; CPUs unless
        somebody else says them: Ray would count the machine's, of which a scheduler may have given few."""
        others = {k: v for k, v in self.resources.items() if k != "GPU"}
        made = [f"--num-cpus={count_usable_processors()}"] if cpus else []
        made += [f"--num-gpus={int(self.resources.get('GPU', 0))}"]
        made += [f"--resources={json.dumps(others)}"] if others else []
        return made + ([f"--labels={','.join(f'{k}={v}' for k, v in self.labels.items())}"] if self.labels else [])


@dataclass(frozen=True)
class NodeDevices:
    """A vendor's devices that a node offers: how many in Ray's count, their models, and the ids they must be called
    by."""

    vendor: Device
    count: int
    models: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


def make_ray_node(devices: Mapping[str, NodeDevices]) -> RayNode:
    """Labels, resources and variables of a node with devices, by vendor label.

    The label "vendor" has one value, and so has Ray's resource GPU one owner: the first vendor of the table. Every
    vendor is counted in a label of its own. Another one that shares the resource is given one of its own,
    "<vendor>-<resource>", with room for one job: Ray hands out numbers of devices for its own resources only.
    """
    made = RayNode()
    order = [v.label for v in DEVICES]
    for label in sorted(devices, key=order.index):
        mine = devices[label]
        vendor, count, models = mine.vendor, mine.count, mine.models
        if count < 1:
            continue
        if mine.ids and vendor.visible[0] not in os.environ:
            made.variables[vendor.visible[0]] = ",".join(mine.ids)
        first = VENDOR_LABEL not in made.labels
        made.labels.setdefault(VENDOR_LABEL, label)
        made.labels[f"{COUNT_LABEL}{label}"] = str(count)
        if len(names := {make_model_label(m, vendor.name) for m in models if m}) == 1:
            made.labels[MODEL_LABEL if first else f"{OTHER_MODEL_LABEL}{label}"] = names.pop()
        if vendor.resource in made.resources:
            made.resources[name_vendor_resource(label, vendor.resource)] = 1.0
        else:
            made.resources[vendor.resource] = float(count)
    if any(one.vendor.nested for one in devices.values()):
        made.variables |= visible_devices.make_variables_for_ray()
    return made


def name_vendor_resource(label: str, resource: str) -> str:
    """Ray resource of a vendor's devices on a node where another vendor has the common one."""
    return f"{label}-{resource}"


def make_model_label(model: str, vendor: str) -> str:
    """A model's name as a label value: "NVIDIA H200" → "H200". Letters, digits, "-", "_", "."; at most 63 (Kubernetes'
    rule)."""
    words = [
        w for w in re.sub(r"\((R|TM|C)\)|®|™", " ", model, flags=re.IGNORECASE).split() if w.lower() != vendor.lower()
    ]
    return re.sub(r"[^A-Za-z0-9_.]+", "-", " ".join(words)).strip("-_.")[:63].rstrip("-_.")


def parse_devices_by_hand(values: Sequence[str], where: str = "--vendor") -> dict[str, int | None]:
    """How many devices LABEL or LABEL=COUNT name, by label, None where they give no number. Raises UnknownVendor,
    ValueError."""
    made: dict[str, int | None] = {}
    for value in values:
        label, equals, number = value.partition("=")
        get_vendor_of_label(label, where)
        if equals and not number.isdigit():
            raise ValueError(f"{where} {value}: the number of devices is a whole number, not {number!r}")
        made[label] = int(number) if equals else None
    return made


def find_devices_here(values: Sequence[str], findings: Mapping[str, VendorFinding]) -> dict[str, NodeDevices]:
    """What is to be offered: as named by hand, else as $FARM_VENDORS says, else as found; no more than the variables of
    visible devices allow.

    A vendor that is named without a number and found has as many devices as were found. Raises UnknownVendor,
    NonsenseVariable (also for a number that no device has), and ValueError where more are named than this process was
    given.
    """
    have = {label: f for label, f in findings.items() if f.count}
    if values:
        named = parse_devices_by_hand(values)
    elif OVERRIDE in os.environ:
        named = parse_devices_by_hand([v.strip() for v in os.environ[OVERRIDE].split(",") if v.strip()], f"${OVERRIDE}")
    else:
        named = dict.fromkeys(have)
    made: dict[str, NodeDevices] = {}
    for label, number in named.items():
        vendor, found = get_vendor_of_label(label, "--vendor"), have.get(label)
        # A number that was given knows more than what was found.
        limit = visible_devices.count_visible_devices(
            vendor, there=found.count if found and number is None else sys.maxsize
        )
        if number is not None:
            if limit and number > limit[0]:
                raise ValueError(
                    f"{label}={number}: ${limit[1]} gives this process {limit[0]}; name at most that, or unset it"
                )
            made[label] = NodeDevices(vendor, number)
            continue
        if found:
            visible_devices.check_visible_devices(vendor, found.count, found.uuids)
        count = min(found.count if found else 1, limit[0] if limit else sys.maxsize)
        models, ids = (found.models, found.uuids if found.parts else ()) if found else ((), ())
        made[label] = NodeDevices(vendor, count, models, ids)
    return made


def describe_this_machine() -> RayNode:
    """What a run on this machine alone offers. Raises Refusal where a variable that names devices or vendors cannot be
    read."""
    try:
        return make_ray_node(find_devices_here([], detect_vendors.detect_this_machine()))
    except ValueError as error:
        raise Refusal(str(error)) from error
