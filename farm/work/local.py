"""Executors without Ray: in children of this process, on its CPUs and devices; or in this very process."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from farm.fleet import ask_backends, detect_vendors, envs, inventory, visible_devices
from farm.fleet.ask_backends import add_device_exclusion, explain_no_device, find_absent_vendor
from farm.fleet.child_process import name_compiler_caches
from farm.fleet.inventory import Answers, BackendOffer
from farm.fleet.node import RayNode, describe_this_machine
from farm.work.child_pool import PooledChildren
from farm.work.claims import DeviceClaim
from farm.work.executor import Executor, Setup
from farm.work.job import Job
from farm.work.lanes import JobLine, LaneCapacity
from farm.work.state import HERE
from farm.work.supervisor import run_supervised_job_items
from tasks import wire
from tasks.backends import BackendSpec
from tasks.catalogs.user_definitions import get_announced_definitions
from tasks.model import BackendInfo
from tasks.relay import count_usable_processors
from tasks.wire import Place, ToRun

#: Why a backend has no part in --on inline: one process cannot be several environments.
ALONE = "it runs in an environment of its own, which --on inline cannot give: use --on processes"
#: Seconds that the end of a lane is waited for: a process that hangs in a driver's call cannot be killed.
ENDING_S = 5.0


class ChildProcesses(Executor):
    """Each job in a child process of this one: a crash of a case is a row. As many jobs at once as there are CPUs, and
    on the devices of this machine as many as their shares allow. Raises Refusal where a variable that names devices
    cannot be read."""

    @classmethod
    def create(cls, setup: Setup) -> ChildProcesses:
        return cls(setup.cpus, setup.devices)

    def __init__(self, cpus: int | None = None, devices: bool = True) -> None:
        here = describe_this_machine() if devices else RayNode()
        os.environ.update(here.variables)
        self.nodes = [inventory.describe_this_node(cpus or count_usable_processors(), here)]
        self._lines: dict[str, JobLine] = {}  # by resource
        self._came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._next = 0

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        resource = _find_local_resource(offer)
        return claim.jobs_on(int(self.nodes[0]["resources"][resource])) if resource else 0

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        self._next += 1
        self._line(offer, claim).put(self._next, job, claim)
        return self._next

    def expect(self, job: Job, offer: BackendOffer, claim: DeviceClaim) -> None:
        self._line(offer, claim).expect(job, claim)

    def _line(self, offer: BackendOffer | None, claim: DeviceClaim) -> JobLine:
        resource = _find_local_resource(offer)
        if resource not in self._lines:
            self._lines[resource] = JobLine(self._capacities(offer, resource), self._came)
        if claim.is_gang:
            self._lines[resource].join(
                claim.devices, partial(_join_local_devices, offer.device_vendor if offer else "")
            )
        return self._lines[resource]

    def _capacities(self, offer: BackendOffer | None, resource: str) -> list[LaneCapacity]:
        """The CPUs together, or each device by itself; one that only its runtime has found is shown to children as it
        is."""
        count = int(self.nodes[0]["resources"][resource])
        vendor = offer.device_vendor if offer and offer.resource == resource else ""
        if detect_vendors.COUNT_LABEL + vendor not in self.nodes[0]["labels"]:
            return [LaneCapacity(float(count))]
        numbers = [str(n) for n in range(count)]
        return [
            LaneCapacity(
                1.0,
                Place(HERE.node, _name_local_device(vendor, n)),
                visible_devices.build_visible_variables(vendor, [n]),
            )
            for n in numbers
        ]

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        with contextlib.suppress(queue.Empty):
            yield self._came.get(timeout=timeout_s)
            while True:
                yield self._came.get_nowait()

    def cancel(self, handle: int) -> None:
        """One that runs goes on: what it still makes of a device that is not to be believed is dropped when it
        comes."""
        if any(line.withdraw(handle) for line in self._lines.values()):
            self._came.put((handle, None))

    def close(self) -> None:
        for line in self._lines.values():
            line.close(ENDING_S)


def _join_local_devices(vendor: str, numbers: range, parts: tuple[LaneCapacity, ...]) -> LaneCapacity:
    """Several devices at once."""
    place = Place(HERE.node, ",".join(part.place.device for part in parts))
    return LaneCapacity(0.0, place, visible_devices.build_visible_variables(vendor, [str(n) for n in numbers]), parts)


def _find_local_resource(offer: BackendOffer | None) -> str:
    """The resource of a backend's jobs here; "" if this machine does not have it."""
    return offer.resources.get(HERE.node, "") if offer else "CPU"


def _name_local_device(vendor: str, number: str) -> str:
    """What the vendor's variable calls a device, as rows say it; its number where it has no such name."""
    return ",".join(visible_devices.name_visible_devices(vendor, [number])) or number


class InlineExecutor(Executor):
    """Everything in this process, without isolation: a crash of a case, or of a runtime as it is asked, is a crash of
    the run. running: names of the backends that run cases; a process of its own asks any other. Raises Refusal as
    `ChildProcesses` does."""

    in_process = True

    @classmethod
    def asks_nodes(cls, setup: Setup) -> bool:
        return True

    @classmethod
    def create(cls, setup: Setup) -> InlineExecutor:
        return cls(setup.devices, setup.running)

    def __init__(self, devices: bool = True, running: Collection[str] = ()) -> None:
        here = describe_this_machine() if devices else RayNode()
        os.environ.update(here.variables)
        self.nodes = [inventory.describe_this_node(1, here)]
        self.children = DirectChildren()
        self._running = running
        self._queue: deque[tuple[int, Job | None]] = deque()  # None: a job that was called back
        self._next = 0

    def probe(self, specs: Sequence[BackendSpec], cache: str, fresh: bool = True) -> dict[str, Answers]:
        apart = [spec for spec in specs if not (spec.name in self._running or envs.find_environment(spec))]
        answers: Answers = ask_backends.probe_backends(apart, Path(cache), fresh=fresh) if apart else {}
        return {HERE.node: {s.name: answers.get(s.name) or self._ask(s, Path(cache)) for s in specs}}

    def _ask(self, spec: BackendSpec, cache: Path) -> BackendInfo | wire.Refused:
        """The answer of a backend that is about to run here; so none of an earlier run saves its start."""
        if envs.find_environment(spec):
            return wire.Refused(explain_no_device(spec, None) or ALONE, absent=find_absent_vendor(spec, None))
        began = time.monotonic()
        said = self.children.greet(wire.Hello(spec, kernels=get_announced_definitions()), cache)[1]
        if isinstance(said, wire.Refused):
            return said
        # Not remembered: where all is imported it starts at once, and no process of its own does.
        return add_device_exclusion(replace(said.info, start_s=round(time.monotonic() - began, 3)))

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        return 1

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        self._next += 1
        self._queue.append((self._next, job))
        return self._next

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if self._queue:
            handle, job = self._queue.popleft()
            for message in run_supervised_job_items(job, self.children) if job else ():
                yield handle, message
            yield handle, None

    def cancel(self, handle: int) -> None:
        self._queue = deque((h, None if h == handle else job) for h, job in self._queue)

    def close(self) -> None:
        self._queue.clear()
        self.children.close()


class DirectChildren(PooledChildren):
    """Stand-ins for children, which live until they are closed."""

    def __init__(self) -> None:
        #: By backend, or kind of job where there is none: what it was told, and what it answered.
        self._children: dict[str, tuple[DirectChild, wire.Hello, Any]] = {}

    def get(self, job: Job) -> tuple[DirectChild, wire.Ready | wire.Refused]:
        hello = wire.Hello(job.backend, job.policy, job.kernels, passports=job.passports)
        return self.greet(hello, Path(job.cache), job.kind)

    def greet(self, hello: wire.Hello, cache: Path, kind: str = "") -> tuple[DirectChild, Any]:
        """One that was told this, and what it answers. kind: of its jobs, where they have no backend. Raises
        EnvError."""
        key = kind if hello.backend is None else str(hello.backend)
        child, told, answer = self._children.get(key, (None, None, None))
        if child is None or told != hello:
            if hello.backend is not None and envs.find_environment(hello.backend):
                raise envs.EnvError(ALONE)
            for name, value in name_compiler_caches(cache).items():
                os.environ.setdefault(name, value)
            child = child or DirectChild()
            answer = child.ask(hello)
            if isinstance(answer, wire.Ready) and hello.backend is not None:
                answer = wire.Ready(replace(answer.info, environment=envs.OWN))
            self._children[key] = child, hello, answer
        return child, answer

    def close(self) -> None:
        """End what they have started."""
        for child, _, _ in self._children.values():
            child.close()
        self._children.clear()


class DirectChild:
    """`ChildProcess`'s interface over a `tasks.child.Child` in this process."""

    def __init__(self) -> None:
        from tasks.child import Child

        # A page for whoever finds a process dead: this one would find itself.
        self._child = Child(SimpleNamespace(write=lambda *at: None), isolates=False)
        self.served, self.before = 0, list[tuple[ToRun, int]]()

    def call(self, command: Any, deadline_s: float | None = None) -> Iterator[Any]:
        yield from self._child.steps(command)

    def ask(self, command: Any, deadline_s: float | None = None) -> Any:
        return list(self.call(command))[-1]

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        if self._child.runner is not None:
            self._child.runner.close()
