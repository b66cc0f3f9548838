"""A gang on a Ray cluster: one job whose devices are on one node or on several, a rank on each.

Its devices are a placement group: Ray gives all of them at the same time, on as few nodes as it can. The job's
supervisor runs on the first, and starts a task on each of the others, which starts ranks there for the supervisor's
child (`tasks.backends.shared.rank_hosts`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.fleet import envs, visible_devices
from farm.fleet.child_process import make_child_environment, name_compiler_caches
from farm.work.child_pool import POOL
from farm.work.job import Job
from tasks.backends.shared.rank_hosts import Address, RankHost, RankHosts
from tasks.model import UNASKED


class RanksLost(Exception):
    """Some of a job's devices are gone: the job is lost, and nobody to blame."""


@dataclass(frozen=True)
class DeviceGang:
    """Where a job's other ranks are; None: it has none. near: the numbers of their devices on the supervisor's own
    node."""

    hosts: RankHosts | None = None
    near: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """Of the job's child."""
        return self.hosts.variables if self.hosts else {}

    def check(self) -> None:
        """Raises RanksLost where another device, its process or its node does not answer."""
        if self.hosts and (silent := self.hosts.silent()):
            raise RanksLost(f"ranks on {', '.join(sorted(set(silent)))} do not answer")

    def end(self, job: Job) -> None:
        """Its ranks serve no other job: end the child that has them."""
        if self.hosts:
            POOL.forget(job)


#: Of a job of one device.
ALONE = DeviceGang()


def make_placement_group(resource: str, devices: int, named: Mapping[str, str]) -> Any:
    """A placement group of so many devices, on nodes with the labels ``named``."""
    from ray.util import placement_group

    return placement_group(
        [{resource: 1.0}] * devices, "PACK", bundle_label_selector=[dict(named)] * devices if named else None
    )


def dissolve_placement_group(group: Any) -> None:
    """Give its devices back, and end what runs on them."""
    from ray.util import remove_placement_group

    remove_placement_group(group)


def make_task_options_at(group: Any, number: int) -> dict[str, Any]:
    """Options of a Ray task on one of its devices."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, number)}


def find_ray_node_here() -> tuple[str, list[str]]:
    """(id of this node, numbers of the devices that Ray gave this task)."""
    import ray

    context = ray.get_runtime_context()
    return context.get_node_id(), [str(i) for ids in context.get_accelerator_ids().values() for i in ids]


@contextlib.contextmanager
def gather_gang(job: Job, vendor: str, devices: int, asks: dict[str, Any]) -> Iterator[DeviceGang]:
    """The other devices of this task's placement group, each with a task that starts ranks there. vendor: whose
    devices; asks: options of a task that takes one. Raises Ray's errors where a task cannot be had."""
    import ray

    own, token, group = ray.util.get_node_ip_address(), secrets.token_hex(16), ray.util.get_current_placement_group()
    task = ray.remote(max_retries=0, num_returns="streaming")(_lend_device_to_gang)
    # Only what ranks need: a batch may be large.
    bare = replace(job, run=(), known={}, attempts={}, parcels={}, info=UNASKED)
    streams = [
        task.options(name=f"rank {n} of {job.name}", **asks, **make_task_options_at(group, n)).remote(
            bare, vendor, token
        )
        for n in range(1, devices)
    ]
    try:
        lent: list[tuple[str, list[str], Address]] = [ray.get(next(stream)) for stream in streams]
        nodes, addresses = (
            {find_ray_node_here()[0], *(node for node, _, _ in lent)},
            tuple(address for _, _, address in lent),
        )
        near = tuple(number for node, numbers, _ in lent if node == find_ray_node_here()[0] for number in numbers)
        yield DeviceGang(RankHosts(own, addresses, token, len(nodes)), near)
    finally:
        for stream in streams:
            ray.cancel(stream, force=True)


def _lend_device_to_gang(job: Job, vendor: str, token: str) -> Iterator[tuple[str, list[str], Address]]:
    """Body of the Ray task on another device: says its node, its number there and where it listens, and then starts
    ranks."""
    import ray

    node, devices = find_ray_node_here()
    cache = Path(job.cache)
    start = envs.build_interpreter_of_backend(job.backend, cache)
    given = (
        name_compiler_caches(cache)
        | visible_devices.build_child_variables(job.backend)
        | job.env
        | (visible_devices.build_visible_variables(vendor, devices) if vendor else {})
    )
    host = RankHost(
        ray.util.get_node_ip_address(), token, start.python, make_child_environment(given, start.python, start.folders)
    )
    yield node, devices, host.address
    host.serve()
