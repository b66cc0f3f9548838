"""Where jobs run, as the dispatcher sees it: what every executor can do, whatever is behind it."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.fleet.inventory import Answers, BackendOffer
from farm.work.claims import DeviceClaim
from farm.work.job import Job
from tasks.backends import BackendSpec
from tasks.model import Refusal


class ClusterError(Refusal):
    """No cluster to run on; the text says what to do."""


class Unplaced(Exception):
    """A job never began: the nodes that it may go to have left."""


@dataclass
class Changes:
    """What has become of a cluster's nodes: ids of those that are gone; per id of a new one, its backends' answers."""

    gone: set[str] = field(default_factory=set)
    come: dict[str, Answers] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """What a command says of the place where jobs run."""

    #: Of a cluster that is there; None for this machine.
    address: str | None = None
    #: How many jobs run at once on this machine's CPUs; None for as many as it has.
    cpus: int | None = None
    #: Whether a cluster that is started has a dashboard.
    dashboard: bool = True
    #: Whether this machine's devices are looked for, by the commands of their vendors as well: a run on CPUs takes
    #: none.
    devices: bool = True
    #: Names of the backends that run cases; none where a run is only planned.
    running: frozenset[str] = frozenset()


class Executor(abc.ABC):
    """Runs jobs; `farm.work.executor_registry` has them by name. A stand-in is a subclass as well, so that it cannot
    lack a method."""

    #: Its nodes, {"id", "host", "resources", "labels"} each.
    nodes: list[dict[str, Any]]
    #: They share no cache, so that prepared cases are sent to them.
    ship: bool = False
    #: Jobs run in this very process: backends in environments of their own have no part.
    in_process: bool = False
    #: It can be given the address of a cluster.
    takes_address: bool = False
    #: A run's figures can be told to Ray's metrics (`farm.work.monitoring`).
    has_metrics: bool = False
    #: What users are told of it once it has started; "" for nothing.
    notice: str = ""

    @classmethod
    def create(cls, setup: Setup) -> Executor:
        """One that is ready to run jobs. Raises ClusterError, OSError."""
        return cls()

    @classmethod
    def asks_nodes(cls, setup: Setup) -> bool:
        """Whether its nodes are asked for their backends by `probe`. If not, its one node is this machine, which is
        asked meanwhile."""
        return False

    def probe(self, specs: Sequence[BackendSpec], cache: str, fresh: bool = True) -> dict[str, Answers]:
        """What the backends answer on every node, by its id; nodes that come later are asked by `changes`."""
        raise NotImplementedError(f"{type(self).__name__} asks no nodes")

    @abc.abstractmethod
    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        """How many jobs of a claim run at once on a backend's devices (None: on CPUs); 0: no node is left."""

    @abc.abstractmethod
    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        """Take a job, which runs as soon as all that it claims is free; its handle. among: ids of the nodes that it may
        go to (default: all of its offer)."""

    def expect(self, job: Job, offer: BackendOffer, claim: DeviceClaim) -> None:
        """Such jobs are to come: whoever is idle may start their child."""
        return None

    @abc.abstractmethod
    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        """What has come: (handle, message of `tasks.wire`) while a job goes on, (handle, None) at its end, and (handle,
        an exception) when its supervisor was lost, Unplaced if it had none."""

    @abc.abstractmethod
    def cancel(self, handle: int) -> None:
        """End a job, now or before it begins."""

    def nodes_of(self, handle: int) -> Sequence[str]:
        """Ids of the nodes that a job was sent to, of those that were named; none for any."""
        return ()

    def changes(self) -> Changes:
        """What has become of the nodes since the last call."""
        return Changes()

    def parcel(self, path: Path) -> Any:
        """A file of this process's cache for the nodes that have none of it."""
        return None

    def fetch(self, parcel: Any, path: Path) -> None:
        """Put a parcel where this process's cache has no such file. Raises OSError if it went with its node."""
        raise OSError(f"{path.name} is lost: nodes of this executor send no files")

    @abc.abstractmethod
    def close(self) -> None:
        """End every job."""
