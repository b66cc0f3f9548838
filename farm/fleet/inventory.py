"""Which node offers what: the answers of every backend put together, and the true reason of a missing one."""

from __future__ import annotations

import fnmatch
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from farm.fleet import detect_vendors
from farm.fleet.node import RayNode, name_vendor_resource
from tasks.backends import BackendSpec
from tasks.devices import BY_LABEL
from tasks.model import UNASKED, BackendInfo
from tasks.plugins import PluginError
from tasks.wire import Refused

#: What the backends of a node say of themselves, or why they cannot be had there, by name.
Answers = dict[str, BackendInfo | Refused]
#: Fields of an offer that the record of a run has in other words, or not at all.
UNRECORDED = ("info", "resources", "devices", "models", "awaited")
#: Why a backend that is awaited is not there.
AWAITED = "its environment is still being built or started"
UNBUILT = "its environment is not built yet: the run builds it, if it can"


@dataclass
class BackendOffer:
    """What a run knows of one backend.

    available: some node can run it; reason: why none can; nodes: the hosts that can, node_ids: Ray's ids of them;
    resources, devices: per such id, the Ray resource that counts its devices there, and their number; models: the
    devices' name there; labels: what a node must be labelled, by glob;
    info: the backend's answer to hello on the first of these nodes;
    installs: (command, package) of what it needs and no node has, where a package of the system brings it;
    awaited: it has not answered yet, and what it answers will count; absent: the vendor of whose devices no node has a
    trace; oldest: the oldest release of its runtime that was tried and computes, "" where none was tried; ranks:
    `Backend.ranks`; of_products: whether it computes products, and nothing else, in less than the dtype on one of these
    nodes; broken: what the user gives it can be used on no node (`tasks.model.Broken`).
    """

    name: str
    vendor: str
    device_vendor: str
    resource: str
    forms: list[str]
    joint: bool
    available: bool = False
    reason: str = ""
    nodes: list[str] = field(default_factory=list)
    node_ids: list[str] = field(default_factory=list)
    resources: dict[str, str] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    info: BackendInfo = UNASKED
    installs: list[tuple[str, str]] = field(default_factory=list)
    awaited: bool = False
    absent: str = ""
    oldest: str = ""
    ranks: int = 1
    of_products: bool = False
    broken: bool = False

    def room(self, devices: Mapping[str, int]) -> int:
        """How many devices one job can be given, of so many by node: those that are counted by one resource; 0 where
        they are fewer than its ranks. Ranks of the CPU share one where there are too few."""
        by_resource: dict[str, int] = {}
        for node, count in devices.items():
            by_resource[self.resources[node]] = by_resource.get(self.resources[node], 0) + count
        most = max(by_resource.values(), default=0)
        return most if most >= self.ranks or self.resource == "CPU" else 0

    @property
    def too_few(self) -> str:
        """Why its devices are too few for a job of it; "" if they are not."""
        if not self.devices or self.room(self.devices):
            return ""
        there = sum(self.devices.values())
        return (
            f"a job of {self.name} takes {self.ranks} devices ({self.resource}), one for each rank, and there "
            f"{'is' if there == 1 else 'are'} {there}"
        )

    @property
    def words(self) -> str:
        """Versions, device and nodes of one that is available, or why it is not."""
        if not self.available:
            return " ".join(self.reason.split())  # a runtime's own words may be several lines
        said = [word for word in (self.info.runtime.runtime_version, self.info.runtime.device) if word]
        emulated = ["emulated"] * self.info.emulated
        alone = ["one process at a time"] * self.info.exclusive
        if alone and (shares := BY_LABEL[self.device_vendor].shares):
            alone = [f"{alone[0]}: {shares} lets several share it"]
        return ", ".join([*said, *emulated, *alone, f"on {', '.join(sorted(set(self.nodes)))}"])

    def record(self) -> dict[str, Any]:
        """Plain data for the run's record."""
        names = ("device", "runtime_version", "driver_version", "compute_precision")
        kept = {name: getattr(self.info.runtime, name) for name in names}
        return {k: v for k, v in asdict(self).items() if k not in UNRECORDED} | kept

    def admit(self, node: dict[str, Any], answer: BackendInfo | Refused) -> str:
        """Take a node in, given what the backend answered there; why not, or "" if it was."""
        if isinstance(answer, Refused):
            self.broken = (self.broken or answer.broken) and not self.resources
            return answer.reason
        # One of its vendor's own counts the backend's devices where another vendor has the common one
        # (`farm.fleet.node.make_ray_node`).
        own = name_vendor_resource(self.device_vendor, self.resource)
        resource = own if node["resources"].get(own) else self.resource
        reason = check_node_placement(self, node, resource)
        if not reason and node["id"] not in self.resources:
            self.nodes.append(node["host"])
            self.node_ids.append(node["id"])
            self.resources[node["id"]] = resource
            self.devices[node["id"]] = int(node["resources"][resource])
            self.models[node["id"]] = answer.runtime.device
            self.broken = False
            self.of_products |= answer.runtime.of_products
            if self.info == UNASKED:
                self.info = answer
        return reason

    def dismiss(self, node: str) -> None:
        """Forget a node that has gone, by its id."""
        if node in self.resources:
            at = self.node_ids.index(node)
            del self.node_ids[at], self.nodes[at], self.resources[node], self.devices[node], self.models[node]


def join_node_offers(
    specs: Sequence[BackendSpec],
    nodes: Sequence[dict[str, Any]],
    answers: Mapping[str, Answers],
    labels: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, BackendOffer]:
    """Put the nodes' answers together.

    nodes: {"id", "host", "resources", "labels"} each; answers: per node id, what `probe` said there; labels: per
    backend, globs of the labels its nodes must have.
    """
    table: dict[str, BackendOffer] = {}
    for spec in specs:
        try:
            made = spec.create()
        except PluginError as error:
            table[spec.name] = BackendOffer(spec.name, "", "", "CPU", [], False, reason=str(error))
            continue
        offer = BackendOffer(
            spec.name,
            made.vendor,
            made.device_vendor,
            made.resource,
            list(made.forms),
            made.joint,
            labels=dict((labels or {}).get(spec.name, {})),
            oldest=made.oldest,
            ranks=made.ranks,
        )
        reasons: dict[str, list[str]] = {}
        vendors = set[str]()
        for node in nodes:
            answer = answers.get(node["id"], {}).get(spec.name, Refused("the node did not answer the probe"))
            if reason := offer.admit(node, answer):
                reasons.setdefault(reason, []).append(node["host"])
            if isinstance(answer, Refused):
                offer.installs += [(command, package) for command, package in answer.installs]
            vendors.add(answer.absent if isinstance(answer, Refused) else "")
        if offer.too_few:
            offer.reason = f"{offer.too_few}: add nodes that have them, or leave it out"
        offer.available = bool(offer.resources) and not offer.reason
        if not offer.resources:
            offer.absent = vendors.pop() if len(vendors) == 1 else ""
            offer.awaited = UNBUILT in reasons
            several = len(reasons) > 1
            offer.reason = (
                "; ".join(f"{r} (on {', '.join(h)})" if several else r for r, h in reasons.items()) or "no node"
            )
        table[spec.name] = offer
    return table


def check_node_placement(offer: BackendOffer, node: dict[str, Any], resource: str) -> str:
    """Why a node whose runtime works may not be given the backend's cells; "" if it may. resource: Ray's that counts
    the backend's devices there."""
    labels, vendor = node["labels"], offer.device_vendor
    for name, pattern in offer.labels.items():
        if not fnmatch.fnmatchcase(labels.get(name, ""), pattern):
            has = (
                f"labelled {name}={labels[name]}, not {pattern}"
                if name in labels
                else f"no label {name} ({pattern} required)"
            )
            return f"the node is {has}"
    if not node["resources"].get(resource):
        return f"the node offers no Ray resource {resource}"
    label = labels.get(detect_vendors.VENDOR_LABEL)
    if (
        not vendor
        or not label
        or resource != offer.resource
        or detect_vendors.COUNT_LABEL + vendor in labels
        or label == vendor
    ):
        return ""
    if label not in BY_LABEL:
        return f"unknown vendor label {label!r} on the node; known: {', '.join(BY_LABEL)}"
    return f"the node is labelled vendor={label}, not {vendor}"


def describe_this_node(cpus: int, devices: RayNode | None = None) -> dict[str, Any]:
    """The one node of a run without Ray: so many CPUs, its devices as they were found, and one of whatever else its
    runtimes find by themselves."""
    found = devices or RayNode()
    resources = {v.resource: 1.0 for v in BY_LABEL.values()} | found.resources | {"CPU": float(cpus)}
    return {"id": "local", "host": socket.gethostname(), "resources": resources, "labels": dict(found.labels)}
