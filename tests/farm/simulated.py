"""A cluster in one process: nodes with devices that take jobs, answer at once, fall sick, come and go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from farm.fleet.inventory import BackendOffer
from farm.lake import Origin, make_row_stream
from farm.work.claims import DeviceClaim
from farm.work.executor import Changes, Unplaced
from farm.work.job import Job
from farm.work.local import InlineExecutor
from farm.work.supervisor import FAILING, run_supervised_job_items
from tasks import wire
from tasks.model import BackendInfo, RuntimeInfo
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, list_prepared_columns
from tasks.wire import Place


def node(name: str, labels: dict[str, str] | None = None, **resources: float) -> dict[str, Any]:
    return {"id": name, "host": name, "resources": {k: float(v) for k, v in resources.items()}, "labels": labels or {}}


class Simulated(InlineExecutor):
    """An `Executor` whose devices run one job at a time.

    status: what becomes of a case, given (backend, op, sample, node, device): a status, "gone" for a device that is
    lost, "sick" for one that computes otherwise than it did, or "killed" for the supervisor. after: called before each
    poll with this executor, to change its nodes by `join` and `leave`.
    """

    def __init__(
        self,
        nodes: list[dict[str, Any]],
        status: Callable[[str, str, int, str, str], str] = lambda *a: "pass",
        after: Callable[[Simulated], None] = lambda s: None,
    ) -> None:
        super().__init__()
        self.nodes, self.status, self.after = nodes, status, after
        self.jobs: dict[
            int, tuple[Job, str, dict[str, str]]
        ] = {}  # handle → (job, backend, node it may go to → resource)
        self.busy: dict[tuple[str, str], int] = {}  # (node, device) → handle that holds it
        self.log: list[tuple[str, str, str, int]] = []  # (backend, node, device, cases)
        self.called_back: list[int] = []
        self.strikes: Callable[[Job], bool] = lambda job: False  # whether a job's supervisor dies before it begins
        self.start_s = 0.1  # of a child, as its supervisor tells
        self._changes = Changes()

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        held = [
            n["resources"].get(offer.resources[n["id"]] if offer else "CPU", 0)
            for n in self.nodes
            if offer is None or n["id"] in offer.resources
        ]
        return claim.jobs_on(int(sum(held)))

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        self._next += 1
        self.jobs[self._next] = (
            job,
            offer.name if offer else "",
            {n: offer.resources[n] if offer else "CPU" for n in among},
        )
        return self._next

    def cancel(self, handle: int) -> None:
        self.called_back.append(handle)

    def join(self, new: dict[str, Any], backends: Sequence[str]) -> None:
        self.nodes = [*self.nodes, new]
        self._changes.come[new["id"]] = {name: BackendInfo(RuntimeInfo("", "d")) for name in backends}

    def leave(self, name: str) -> None:
        self.nodes = [n for n in self.nodes if n["id"] != name]
        self._changes.gone.add(name)

    def changes(self) -> Changes:
        found, self._changes = self._changes, Changes()
        return found

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        self.after(self)
        while self.called_back:
            handle = self.called_back.pop()
            if self.jobs.pop(handle, None):
                self.busy = {place: h for place, h in self.busy.items() if h != handle}
                yield handle, RuntimeError("called back")
        for handle, (job, backend, among) in list(self.jobs.items()):
            if handle in self.busy.values() or handle not in self.jobs or handle in self.called_back:
                continue
            if not backend:
                del self.jobs[handle]
                for message in run_supervised_job_items(job, self.children):
                    yield handle, message
                yield handle, None
                return
            here = {n["id"]: n for n in self.nodes}
            if not set(among) & set(here):
                del self.jobs[handle]
                yield handle, Unplaced("its nodes have left")
                continue
            free = [
                Place(name, str(i) if resource != "CPU" else "")
                for name, resource in among.items()
                if name in here
                for i in range(int(here[name]["resources"].get(resource, 0)))
                if (name, str(i)) not in self.busy
            ]
            if free:
                place = free[self._turn(len(free))]
                if place in job.avoid:
                    self.busy[place] = handle
                    yield handle, wire.Avoided(place)
                else:
                    yield from self._do(handle, job, backend, place)
                return
        time.sleep(0.01)

    def _turn(self, choices: int) -> int:
        return len(self.log) % choices

    def _do(self, handle: int, job: Job, backend: str, place: Place) -> Iterator[tuple[int, Any]]:
        if self.strikes(job):
            self.jobs.pop(handle, None)
            yield handle, RuntimeError("killed")
            return
        yield handle, wire.Begun(place)
        rows: list[Row] = []
        gone: type[wire.Gone] | type[wire.Sick] | None = None
        cases = [(item, position) for item in job.run for position in item.positions]
        for number, (item, position) in enumerate(cases):
            status = self.status(backend, item.group.op, position, *place)
            if status == "killed":
                self.jobs.pop(handle, None)
                yield handle, RuntimeError("killed")
                return
            if status in ("gone", "sick"):
                gone = wire.Gone if status == "gone" else wire.Sick
                break
            told = {
                "status": status,
                "attempts": job.attempts.get(number, 0) + 1,
                "policy": "none",
                "started_at": time.time(),
                "run_ms": 10.0,
                "error": "planted" if status in FAILING else "",
            }
            rows.append(Row.of(list_prepared_columns(PreparedGroup(item.pack).samples[position]) | told))
        self.log.append((backend, *place, len(rows)))
        if rows:
            origin = Origin.of(job.run_id, backend, BackendInfo(RuntimeInfo("", "d")), *place)
            failing = (n for n, r in enumerate(rows) if r.status in FAILING)
            yield (
                handle,
                wire.Rows(
                    make_row_stream(rows, origin),
                    tuple(range(len(rows))),
                    dict(Counter(r.status for r in rows)),
                    (0.0, 10.0 * len(rows)),
                    tuple(wire.Failing(n, rows[n].status, rows[n].attempts, "planted") for n in failing),
                ),
            )
        if gone:
            yield handle, gone("it has fallen off the bus" if gone is wire.Gone else "it computes otherwise")
        yield handle, wire.Spent(1.0, 1, self.start_s)
        if self.jobs.pop(handle, None):
            yield handle, None
