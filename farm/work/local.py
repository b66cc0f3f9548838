"""Executors without Ray: in children of this process, as many jobs at once as it has CPUs; or in this very process."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from farm.fleet import envs, inventory
from farm.fleet.child_process import caches
from farm.fleet.inventory import Offer
from farm.fleet.node import this_machine, usable_cpus
from farm.work.child_pool import Children
from farm.work.executor import Executor
from farm.work.job import Job
from farm.work.lanes import Line
from farm.work.state import HERE
from farm.work.supervisor import run_job
from tasks import wire
from tasks.wire import ToRun

#: Why a backend has no part in --inline: one process cannot be several environments.
ALONE = "it runs in an environment of its own, which --inline cannot give: use --no-ray"
#: Seconds that the end of a lane is waited for: a process that hangs in a driver's call cannot be killed.
ENDING_S = 5.0


class ChildProcesses(Executor):
    """Each job in a child process of this one: a crash of a case is a row. As many at once as there are CPUs; one on any
    other device, whose number is not known here. Raises Refusal where a variable that names devices cannot be read."""

    def __init__(self, cpus: int | None = None) -> None:
        this_machine()  # a variable that cannot be read is named before a runtime finds no device by it
        self.nodes = [inventory.this_node(cpus or usable_cpus())]
        self._lines: dict[str, Line] = {}  # by resource
        self._came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._next = 0

    def slots(self, offer: Offer | None, fraction: float) -> int:
        return int(self.nodes[0]["resources"][_resource(offer)])

    def submit(self, job: Job, offer: Offer | None, fraction: float, among: Sequence[str] = ()) -> int:
        self._next += 1
        self._line(offer).put(self._next, job)
        return self._next

    def expect(self, job: Job, offer: Offer) -> None:
        self._line(offer).expect(job)

    def _line(self, offer: Offer | None) -> Line:
        resource = _resource(offer)
        if resource not in self._lines:
            self._lines[resource] = Line(self.slots(offer, 1.0), self._came)
        return self._lines[resource]

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        with contextlib.suppress(queue.Empty):
            yield self._came.get(timeout=timeout_s)
            while True:
                yield self._came.get_nowait()

    def cancel(self, handle: int) -> None:
        """One that runs goes on: there is nowhere else that its cases could go."""
        if any(line.withdraw(handle) for line in self._lines.values()):
            self._came.put((handle, None))

    def close(self) -> None:
        for line in self._lines.values():
            line.close(ENDING_S)


def _resource(offer: Offer | None) -> str:
    return offer.resources[HERE.node] if offer else "CPU"


class Inline(Executor):
    """Everything in this process, without isolation: a crash of a case is a crash of the run."""

    def __init__(self) -> None:
        self.nodes = [inventory.this_node(1)]
        self.children = DirectChildren()
        self._queue: deque[tuple[int, Job | None]] = deque()  # None: a job that was called back
        self._next = 0

    def slots(self, offer: Offer | None, fraction: float) -> int:
        return 1

    def submit(self, job: Job, offer: Offer | None, fraction: float, among: Sequence[str] = ()) -> int:
        self._next += 1
        self._queue.append((self._next, job))
        return self._next

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if self._queue:
            handle, job = self._queue.popleft()
            for message in run_job(job, self.children) if job else ():
                yield handle, message
            yield handle, None

    def cancel(self, handle: int) -> None:
        self._queue = deque((h, None if h == handle else job) for h, job in self._queue)

    def close(self) -> None:
        self._queue.clear()


class DirectChildren(Children):
    """Stand-ins for children, which live as long as this process."""

    def __init__(self) -> None:
        self._children: dict[str, tuple[DirectChild, Any]] = {}

    def get(self, job: Job) -> tuple[DirectChild, wire.Ready | wire.Refused]:
        key = job.kind if job.backend is None else str(job.backend)
        if key not in self._children:
            if job.backend is not None and envs.of(job.backend):
                raise envs.EnvError(ALONE)
            for name, value in caches(Path(job.cache)).items():
                os.environ.setdefault(name, value)
            child = DirectChild()
            self._children[key] = child, child.ask(wire.Hello(job.backend, job.policy, job.kernels))
        return self._children[key]


class DirectChild:
    """`ChildProcess`'s interface over a `tasks.child.Child` in this process."""

    def __init__(self) -> None:
        from tasks.child import Child, Page

        fd = os.memfd_create("farm-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        self._child = Child(Page(fd))
        os.close(fd)
        self.served, self.before = 0, list[ToRun]()

    def call(self, command: Any, deadline_s: float | None = None) -> Iterator[Any]:
        yield from self._child.steps(command)

    def ask(self, command: Any, deadline_s: float | None = None) -> Any:
        return list(self.call(command))[-1]

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass
