"""Where a job may go: which nodes and devices each backend has, and which of them it shares with others."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from farm.fleet.health import DeviceHealth
from farm.fleet.inventory import BackendOffer
from farm.work.claims import ONE, DeviceClaim
from farm.work.state import JobFlight, RunPlan
from tasks.wire import Place


@dataclass(frozen=True)
class DevicePool:
    """Devices that some backends share, because the same nodes offer them. devices: how many; main: all nodes' CPUs."""

    name: str
    backends: tuple[int, ...]
    devices: int
    main: bool = False


@dataclass(frozen=True)
class JobDestination:
    """Where a job is sent: the nodes it may go to, and the devices there that it must avoid."""

    offer: BackendOffer | None
    claim: DeviceClaim
    among: list[str]
    avoid: tuple[Place, ...]


class JobPlacement:
    """Which backends there are, and where. had: names of those that were available when the run began."""

    def __init__(self, plan: RunPlan, health: DeviceHealth, had: Collection[str]) -> None:
        self._plan, self._health = plan, health
        numbers = range(len(plan.matrix.backends))
        #: What is awaited is there as well, on no node yet.
        self.available = [plan.offer(b).available or plan.offer(b).awaited for b in numbers]
        #: There when the run began and gone now: its cases become rows that say so.
        self.gone = [not self.available[b] and plan.name(b) in had for b in numbers]
        self.resting: dict[int, float] = {}  # backends that are asked again later → when (monotonic seconds)
        self._pools: list[DevicePool] = []
        self._nodes: dict[int, list[str]] = {}
        self._claims: dict[int, DeviceClaim] = {}

    def may_run(self, b: int) -> bool:
        """Whether a backend is there and may be given a job now."""
        return self.available[b] and time.monotonic() >= self.resting.get(b, 0.0)

    def forget_layout(self) -> None:
        """Nodes or devices came, went or fell sick: what is known of who can go where holds no more."""
        self._pools, self._nodes, self._claims = [], {}, {}

    def claim(self, b: int, timed: bool = False) -> DeviceClaim:
        """`Plan.claim`, which looks at every node: kept until one comes or goes. What is timed has no neighbours."""
        if b not in self._claims:
            self._claims[b] = self._plan.claim(b)
        return self._claims[b].whole if timed else self._claims[b]

    def pools(self) -> list[DevicePool]:
        """Backends by the devices they share: those of one kind on the same nodes."""
        if not self._pools:
            shared: dict[tuple[str, tuple[str, ...]], list[int]] = {}
            for b in range(len(self._plan.matrix.backends)):
                offer = self._plan.offer(b)
                if self.available[b] and (nodes := tuple(sorted(self.nodes(b)))):
                    kind = "CPU" if offer.resource == "CPU" else f"{offer.resource}/{offer.device_vendor}"
                    shared.setdefault((kind, nodes), []).append(b)
            cpus = tuple(sorted(self._list_cpu_nodes()))
            slots = self._plan.executor.slots(None, ONE)
            self._pools = [DevicePool("CPU", tuple(shared.pop(("CPU", cpus), ())), slots, main=True)]
            for (kind, nodes), bs in shared.items():
                self._pools.append(DevicePool(f"{kind} on {' '.join(nodes)}", tuple(bs), self._devices(bs[0])))
        return self._pools

    def _list_cpu_nodes(self) -> list[str]:
        return [n["id"] for n in self._plan.executor.nodes if n["resources"].get("CPU")]

    def scopes(self, b: int) -> tuple[str, ...]:
        """What a device may be sick for, as far as a backend is concerned (`farm.fleet.health`)."""
        offer = self._plan.offer(b)
        return (offer.name, offer.device_vendor) if offer.device_vendor else (offer.name,)

    def is_sick(self, b: int, place: Place) -> bool:
        return self._health.is_sick(self.scopes(b), place)

    def _count_healthy_devices(self, b: int, node: str) -> int:
        """How many devices of a node a backend may be given."""
        offer = self._plan.offer(b)
        if node not in offer.resources:
            return 0
        sick = self._health.sick_on(self.scopes(b), node)
        # Nobody tells a gang's ranks apart: one device that is not to be believed spoils what all of them make.
        return 0 if "" in sick or (sick and offer.ranks > 1) else max(offer.devices[node] - len(sick), 0)

    def nodes(self, b: int) -> list[str]:
        """Ids of the nodes that a backend may go to; none where they have too few devices for one job of it."""
        if b not in self._nodes:
            healthy = {n: count for n in self._plan.offer(b).node_ids if (count := self._count_healthy_devices(b, n))}
            self._nodes[b] = list(healthy) if self._plan.offer(b).room(healthy) else []
        return self._nodes[b]

    def has_room(self, flight: JobFlight) -> bool:
        """Whether the nodes that a job was sent to can still give it what it claims."""
        if flight.backend < 0:
            return bool(set(self._list_cpu_nodes()) & set(flight.among))
        b, offer = flight.backend, self._plan.offer(flight.backend)
        left = set(self.nodes(b)) & set(flight.among)
        return (
            bool(left)
            if offer.ranks == 1
            else offer.room({n: self._count_healthy_devices(b, n) for n in left}) >= flight.load
        )

    def _devices(self, b: int) -> int:
        return sum(self._count_healthy_devices(b, n) for n in self.nodes(b))

    def elsewhere(self, b: int, place: Place, alike: bool = True) -> tuple[list[str], set[Place]] | None:
        """(ids of nodes, devices to avoid there) where a backend can run that is not ``place``; None if nowhere.

        alike: only on devices of the same name: what one model gets wrong, another may well pass.
        """
        if self._plan.offer(b).ranks > 1:
            return None  # what fails on several devices is evidence against none of them
        models = self._plan.offer(b).models
        others = [
            n for n in self.nodes(b) if n != place.node and not (alike and models.get(n) != models.get(place.node))
        ]
        if others:
            return others, set()
        return ([place.node], {place}) if place.device and self._count_healthy_devices(b, place.node) > 1 else None

    def destination(self, flight: JobFlight) -> JobDestination | None:
        """Where a job is to be sent; None if no node is left that may do it."""
        b = flight.backend
        if b < 0:
            return JobDestination(None, ONE, self._list_cpu_nodes(), ())
        among, avoid = self.nodes(b), set[Place]()
        if flight.asked:
            elsewhere = self.elsewhere(b, flight.asked[0].place)
            if elsewhere is None:
                return None
            among, avoid = elsewhere
        avoid |= {p for scope in self.scopes(b) for p in self._health.sick.get(scope, ()) if p.node in among}
        return JobDestination(self._plan.offer(b), self.claim(b, flight.timed), among, tuple(avoid))
