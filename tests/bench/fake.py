"""A cluster whose supervisors answer at once: what is left is the cost of the driver and of the lake."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from farm.fleet import inventory
from farm.fleet.inventory import BackendOffer
from farm.lake import Origin, make_row_stream
from farm.work.claims import DeviceClaim
from farm.work.executor import Executor
from farm.work.job import Job
from farm.work.supervisor import CHUNK_ROWS
from tasks import wire
from tasks.model import BackendInfo, Status
from tasks.model.row import Row


class FakeCluster(Executor):
    """An `Executor` of two slots whose jobs are done when they are asked for."""

    in_process = True

    def __init__(self) -> None:
        self.nodes = [inventory.describe_this_node(2)]
        self._jobs: deque[tuple[int, Job]] = deque()
        self._next = 0

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        return 2

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        self._next += 1
        self._jobs.append((self._next, job))
        return self._next

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if self._jobs:
            handle, job = self._jobs.popleft()
            for message in _answers(job):
                yield handle, message
            yield handle, None

    def nodes_of(self, handle: int) -> Sequence[str]:
        return ()

    def cancel(self, handle: int) -> None:
        pass

    def close(self) -> None:
        pass


def _answers(job: Job) -> Iterator[Any]:
    for number, item in enumerate(job.prepare):
        yield wire.Prepared(number, f"{number:040d}", "", tuple(range(item.group.samples)))
    cases = [(item.group, position) for item in job.run for position in item.positions]
    origin = Origin.of(job.run_id, job.backend.name if job.backend else "", BackendInfo(vendor="fake"), "fake")
    measured = {"error_units": 0.0, "max_diff": 0.0, "numel": 1, "build_ms": 0.0, "run_ms": 0.0}
    for at in range(0, len(cases), CHUNK_ROWS):
        common = {
            "catalog": "load",
            "status": Status.PASS.value,
            "weak": True,
            "policy": "none",
            "started_at": time.time(),
        }
        rows = [
            Row.of({"op": group.op, "dtype": group.dtype, "sample": position, **common, **measured})
            for group, position in cases[at : at + CHUNK_ROWS]
        ]
        numbers = tuple(range(at, at + len(rows)))
        yield wire.Rows(make_row_stream(rows, origin), numbers, {Status.PASS.value: len(rows)})
