"""How much of a device a job takes: what its memory and the CPUs allow, or all of it, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farm.fleet.inventory import Offer
from farm.work.executor import jobs_of

#: Device memory of a job where nobody says otherwise: a runtime's context takes half a GiB, the largest cases of the catalogs two.
JOB_BYTES = 4 << 30
#: Device memory below which a job has no room for a context and the workspaces of its libraries.
LEAST_BYTES = 1 << 30
GIB = float(1 << 30)


@dataclass(frozen=True)
class Share:
    """The fraction of a device that a job takes; why: the reason where that is all of it, or not what the config says."""

    fraction: float
    why: str = ""

    def told(self, devices: int) -> str:
        """How many jobs run at once, for the line of a backend."""
        each = f" on each of {devices} devices" if devices > 1 else ""
        many = jobs_of(self.fraction)
        why = f": {self.why}" if self.why else ""
        return f"{many} jobs at once{each}{why}" if many > 1 else f"one job at a time{each}{why}"


def share_of(offer: Offer, asked: float | None, nodes: Sequence[dict[str, Any]]) -> Share:
    """The share of a backend's jobs. asked: what the config says, None for as many jobs as memory and CPUs allow; nodes: of the
    executor. What takes CPUs takes them whole."""
    if offer.resource == "CPU":
        return Share(1.0)
    if offer.info.get("exclusive"):
        return Share(1.0, "only one process at a time may open it")
    memory = int(offer.info.get("memory") or 0)
    if asked is not None and not (memory and asked < 1 and memory * asked < LEAST_BYTES):
        return Share(asked)
    if asked is None and (why := str(offer.info.get("alone") or "")):
        return Share(1.0, why)
    if not memory:
        return Share(1.0, "device memory unknown; set fraction to run several jobs")
    many = max(min(memory // JOB_BYTES, _cpus_per_device(offer, nodes)), 1)
    if asked is not None:
        least = f"a job needs {LEAST_BYTES / GIB:g}; use {LEAST_BYTES / memory:.2g} or more, or auto"
        return Share(
            1 / many, f"fraction {asked:g} is {memory * asked / GIB:.2g} GiB of {memory / GIB:.3g} a job, {least}"
        )
    short = "CPUs" if memory // JOB_BYTES > 1 else "device memory"
    return Share(1 / many, "" if many > 1 else f"no {short} for a second one")


def _cpus_per_device(offer: Offer, nodes: Sequence[dict[str, Any]]) -> int:
    """CPUs that each device has to itself, on the node that has the fewest."""
    cpus = {n["id"]: int(n["resources"].get("CPU", 0)) for n in nodes}
    return min((cpus.get(node, 0) // max(devices, 1) for node, devices in offer.devices.items()), default=1)
