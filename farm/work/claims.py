"""What a job claims of the devices there are: a share of one, one, or several at once, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from farm.fleet.inventory import BackendOffer

#: Device memory of a job where nobody says otherwise: a runtime's context takes half a GiB, the largest cases of the
#: catalogs two.
JOB_BYTES = 4 << 30
#: Device memory below which a job has no room for a context and the workspaces of its libraries.
LEAST_BYTES = 1 << 30
GIB = float(1 << 30)


@dataclass(frozen=True)
class DeviceClaim:
    """What a job takes: ``fraction`` of each of ``devices`` devices, all of them at the same time.

    why: the reason where that is all of a device, or not what the config says.
    """

    fraction: float = 1.0
    devices: int = 1
    why: str = ""

    @property
    def size(self) -> float:
        """In devices."""
        return self.fraction * self.devices

    @property
    def is_gang(self) -> bool:
        return self.devices > 1

    def jobs_on(self, devices: int) -> int:
        """How many such jobs run at once on so many devices."""
        return devices * int(1 / self.fraction + 1e-9) // self.devices  # three thirds are one

    @property
    def whole(self) -> DeviceClaim:
        """The same devices without neighbours."""
        return replace(self, fraction=1.0)

    def describe_sharing(self, devices: int) -> str:
        """How many jobs run at once, for the line of a backend."""
        why = f": {self.why}" if self.why else ""
        if self.is_gang:
            return f"{self.jobs_on(devices)} jobs at once on {self.devices} of {devices} devices each{why}"
        each = f" on each of {devices} devices" if devices > 1 else ""
        many = self.jobs_on(1)
        return f"{many} jobs at once{each}{why}" if many > 1 else f"one job at a time{each}{why}"


#: One device, or one CPU.
ONE = DeviceClaim()


def make_device_claim(offer: BackendOffer, asked: float | None, nodes: Sequence[dict[str, Any]]) -> DeviceClaim:
    """The claim of a backend's jobs. asked: the share that the config says, None for as many jobs as memory and CPUs
    allow; nodes: of the executor. What takes CPUs takes them whole, and ranks share them where there are too few."""
    if offer.resource == "CPU":
        return DeviceClaim(devices=max(min(offer.ranks, sum(offer.devices.values())), 1))
    if offer.ranks > 1:
        return DeviceClaim(devices=offer.ranks, why="its ranks wait for one another")
    if offer.info.exclusive:
        return DeviceClaim(why="only one process at a time may open it")
    memory = offer.info.runtime.memory
    if asked is not None and not (memory and asked < 1 and memory * asked < LEAST_BYTES):
        return DeviceClaim(asked)
    if asked is None and (why := offer.info.alone):
        return DeviceClaim(why=why)
    if not memory:
        return DeviceClaim(why="device memory unknown; set fraction to run several jobs")
    many = max(min(memory // JOB_BYTES, _cpus_per_device(offer, nodes)), 1)
    if asked is not None:
        least = f"a job needs {LEAST_BYTES / GIB:g}; use {LEAST_BYTES / memory:.2g} or more, or auto"
        short = f"fraction {asked:g} is {memory * asked / GIB:.2g} GiB of {memory / GIB:.3g} a job, {least}"
        return DeviceClaim(1 / many, why=short)
    short = "CPUs" if memory // JOB_BYTES > 1 else "device memory"
    return DeviceClaim(1 / many, why="" if many > 1 else f"no {short} for a second one")


def _cpus_per_device(offer: BackendOffer, nodes: Sequence[dict[str, Any]]) -> int:
    """CPUs that each device has to itself, on the node that has the fewest."""
    cpus = {n["id"]: int(n["resources"].get("CPU", 0)) for n in nodes}
    return min((cpus.get(node, 0) // max(devices, 1) for node, devices in offer.devices.items()), default=1)
