"""The Ray task that owns one child process: runs a job's work in it, survives its deaths, assigns the blame."""

from __future__ import annotations

import collections
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farm.fleet import envs
from farm.fleet.child_process import ChildProcess, Death, Limits
from farm.lake import Origin, from_stream, to_stream
from farm.plan import kernels as user
from tasks.backends.shared.artefacts import FOLDER, inductor_cache
from tasks.judge import verdict
from tasks.model import FAILED, Group, Status
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup
from tasks.runner import sample_columns
from tasks.vendors import VISIBLE
from tasks.wire import Done

#: Seconds and rows after which collected rows are handed on.
CHUNK_S, CHUNK_ROWS = 0.1, 1000
#: Children kept alive between the tasks of one worker, as far as memory allows; the least recently used is ended first.
POOL_SIZE = 8
#: Deaths of a child in a row, without a case in flight, after which its backend is given up.
STRIKES = 3
#: Seconds between two tries of a new child whose device cannot be had: a driver may be resetting it.
PAUSES = (0.5, 2.0)
#: Seconds for which a child that has done its batch is watched: it may wait for the next one, but not spin.
IDLE_S = 0.03
#: Failures in a row on a device after which a new child asks, once a batch, whether it is still there.
STREAK = 25
#: Statuses of a case that ran and failed, in which a device may show that it is sick.
FAILING = tuple(s.value for s in FAILED)
#: Characters of an error's text that travel beside its row.
EVIDENCE = 300


@dataclass(frozen=True)
class Job:
    """Work for one supervisor. kind: "prepare", "export" or "batch".

    items: dicts of the child's command of that kind (`tasks.child`), plain JSON. For a batch an item also has
    "group" (fields of Group) and "attempts" (number of earlier losses, by place), and "known": words of cases that the
    backend is known not to implement, by place. backend: BackendSpec as JSON; info: what it answered when it was probed;
    policy: fields of Policy. env: further variables of the child. host, device: where it runs, as the supervisor knows
    it: the node's own name if it has one, the numbers of the devices it was given. avoid: (node id, device) of the places
    that must not do it.
    ship: the nodes share no cache, so files travel: an item's "parcels" are those it needs (path → Ray reference).
    """

    kind: str
    name: str
    items: list[dict[str, Any]]
    cache: str
    limits: Limits
    backend: dict[str, Any] | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    run_id: str = ""
    ship: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    device: str = ""
    avoid: tuple[tuple[str, str], ...] = ()
    env: dict[str, str] = field(default_factory=user.carried)


#: Children of this process by what they serve. A worker process runs one task at a time, so it needs no lock.
_pool: collections.OrderedDict[tuple[Any, ...], tuple[ChildProcess, dict[str, Any]]] = collections.OrderedDict()

GetChild = Callable[[Job], "tuple[ChildProcess, dict[str, Any]] | Death"]


@dataclass
class Spent:
    """What children have cost since it was last told: CPU seconds; children started and the seconds until they answered."""

    cpu_s: float = 0.0
    starts: int = 0
    start_s: float = 0.0


_spent = Spent()
#: CPU seconds already told, by child (its process id; a worker has few).
_told: dict[int, float] = {}


def _account(child: ChildProcess) -> None:
    pid, now = child.process.pid, child.cpu_s()
    _spent.cpu_s += now - _told.get(pid, 0.0)
    _told[pid] = now


def _spending() -> dict[str, Any]:
    """Message of what was spent since the last one."""
    for child, _ in _pool.values():
        _account(child)
    told = {"spent": asdict(_spent)}
    _spent.cpu_s, _spent.starts, _spent.start_s = 0.0, 0, 0.0
    return told


def _key(job: Job) -> tuple[Any, ...]:
    visible = tuple(os.environ.get(v, "") for v in VISIBLE)
    return (
        job.kind if job.backend is None else str(sorted(job.backend.items())),
        str(job.policy),
        job.limits,
        str(job.env),
        visible,
    )


def _child(job: Job) -> tuple[ChildProcess, dict[str, Any]] | Death:
    """A living child for the job, from the pool or new, with the answer to its hello. Raises EnvError."""
    key = _key(job)
    _make_room(key, job.limits)
    if key in _pool:
        _pool.move_to_end(key)
        if _pool[key][0].alive():
            return _pool[key]
        _drop(key)
    env = {
        "TORCHINDUCTOR_CACHE_DIR": inductor_cache(Path(job.cache)),
        FOLDER: str(Path(job.cache) / "artefacts"),
        **job.env,
    }
    began = time.monotonic()
    child = ChildProcess(envs.python_of(job.backend, Path(job.cache)), job.limits, env)
    # An import is not a case: it has a bound of its own.
    answer = child.ask(
        {"do": "hello", "backend": job.backend, "policy": job.policy}, deadline_s=max(120.0, job.limits.deadline_s)
    )
    if isinstance(answer, Death):
        _end(child)
        return answer
    _spent.starts += 1
    _spent.start_s += time.monotonic() - began
    _pool[key] = (child, answer)
    while len(_pool) > POOL_SIZE:
        _drop(next(iter(_pool)))
    return _pool[key]


def _drop(key: tuple[Any, ...]) -> None:
    _end(_pool.pop(key)[0])


def _end(child: ChildProcess) -> None:
    _account(child)
    _told.pop(child.process.pid, None)
    child.close()


def close_children() -> None:
    """End every child of this process."""
    while _pool:
        _drop(next(iter(_pool)))


def run_job(job: Job, get_child: GetChild | None = None) -> Iterator[dict[str, Any]]:
    """Do a job in a child from ``get_child`` (default: this process's pool of child processes).

    Yields messages for the dispatcher: {"stop": why no job can be done here} when the cache's disk is full or not writable;
    {"rows": Arrow IPC stream, "done": [case numbers], "busy_ms": …} of a batch; {"number", "key", "samples"} of a
    prepared group; {"number", "path"} of an exported one; {"number", "failed": Failure fields} of a group that
    cannot be had; {"gone": why} when the backend's device cannot be had here any more: what is not done is to be done
    elsewhere; at the end {"spent": fields of Spent}.
    """
    get = get_child or _child
    yield from _run_batch(job, get) if job.kind == "batch" else _run_groups(job, get)
    yield _spending()


class Gone(Exception):
    """A batch that cannot be run here; the text is the backend's or the disk's reason."""


def rows_of(job: Job) -> Iterator[dict[str, Any]]:
    """The rows of a batch that is run here and now, as dicts by column. Raises Gone."""
    for message in run_job(job):
        if why := message.get("gone") or message.get("stop"):
            raise Gone(why)
        if "rows" in message:
            for batch in from_stream(message["rows"]):
                yield from batch.to_pylist()


def _run_groups(job: Job, get_child: GetChild) -> Iterator[dict[str, Any]]:
    """Prepare or export: a sample that kills the child is remembered as bad and its group done again."""
    items = [{k: v for k, v in item.items() if k != "parcels"} for item in job.items]
    done: set[int] = set()
    strikes = 0
    while len(done) < len(items):
        got = get_child(job)
        death: Death | None = got if isinstance(got, Death) else None
        if not isinstance(got, Death):
            command = {"do": job.kind, "items": items, "cache": job.cache, "skip": sorted(done)}
            for message in got[0].call(command):
                if isinstance(message, Death):
                    death = message
                elif "end" in message:
                    if "stop" in message["end"]:
                        yield message["end"]
                        return
                else:
                    done.add(message["number"])
                    strikes = 0
                    yield message
        if death is None:
            _recycle(job)
            continue
        _forget(job)
        number = death.number
        if number < 0 or number in done or death.stage == "idle":
            strikes += 1
            if strikes < STRIKES:
                continue
            for number in set(range(len(items))) - done:
                yield {"number": number, "failed": _failure(job, number, death)}
            return
        bad = items[number].setdefault("bad", {})
        if len(bad) >= STRIKES:
            done.add(number)
            yield {"number": number, "failed": _failure(job, number, death)}
        elif job.kind == "prepare":
            bad[str(death.span)] = _failure(job, number, death)
        else:
            bad[str(death.span)] = f"not exported: {death.text}"


def _failure(job: Job, number: int, death: Death) -> dict[str, str]:
    what, group = "reference" if job.kind == "prepare" else "export", job.items[number].get("group")
    of = f" of {Group(**group).label}" if group else ""
    story = death.text.replace(f" at stage {death.stage}", "", 1)  # the stages are those of a case
    return {
        "status": "invalid",
        "stage": what,
        "error_type": death.kind,
        "error": f"while making the {what}{of}: {story}",
    }


def _forget(job: Job) -> None:
    key = _key(job)
    if key in _pool:
        _drop(key)


def _recycle(job: Job) -> None:
    """End a child that has grown, or that spins while it waits: nobody is to blame, the next batch starts afresh."""
    key = _key(job)
    if key in _pool and (_pool[key][0].resident() > job.limits.recycle_bytes or _spins(_pool[key][0])):
        _drop(key)


def _spins(child: ChildProcess) -> bool:
    """Whether a child without work uses the processor all the same, as IREE's threads do that wait for Mesa's semaphores."""
    before = child.cpu_s()
    time.sleep(IDLE_S)
    return child.cpu_s() - before > IDLE_S / 2


def _make_room(key: tuple[Any, ...], limits: Limits) -> None:
    """End children that wait for further batches, the longest unused first, so that all but that of ``key`` stay within
    the pool's bound."""
    waiting = {k: child.resident() for k, (child, _) in _pool.items() if k != key}
    while waiting and sum(waiting.values()) > limits.pool_bytes:
        oldest = next(iter(waiting))
        del waiting[oldest]
        _drop(oldest)


@dataclass
class _Batch:
    """Bookkeeping of one batch: which case is which, what is done, how often each was started."""

    job: Job
    cases: list[tuple[dict[str, Any], int]] = field(default_factory=list)  # (item, place) by case number
    labels: list[str] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    solo: set[int] = field(default_factory=set)
    doubted: dict[int, str] = field(default_factory=dict)  # crashed once, after others in the same process
    attempts: collections.Counter[int] = field(default_factory=collections.Counter)
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in self.job.items:
            for place in item["places"]:
                self.attempts[len(self.cases)] = item.get("attempts", {}).get(str(place), 0)
                self.cases.append((item, place))
                self.labels.append(Group(**item["group"]).unit)

    @property
    def left(self) -> list[int]:
        return [n for n in range(len(self.cases)) if n not in self.done]

    def dead(self, death: Death) -> list[Done]:
        """Rows that a death settles: one case's, or none if it has to be found out first."""
        left = self.left
        if death.span > 1:
            # Several were built in one go: once more, each by itself.
            together = [n for n in left if self.labels[n] == self.labels[death.number]]
            self.solo |= set(together)
            for n in together:
                self.attempts[n] += 1
            return []
        told = {"kind": death.kind, "stage": death.stage, "error_type": death.kind, "error": death.text}
        return [self.settle(death.number, death.status, **told)]

    def doubts(self, death: Death, served: int) -> bool:
        """Whether a crash may be the work of the ``served`` cases that its process had run before: memory that one of
        them has spoilt kills another. It is then run again in a new process, and believed if that dies as well."""
        number = death.number
        if death.status != "crash" or death.span > 1 or not served or number in self.doubted:
            return False
        self.doubted[number] = (
            f"a process that had run {served} other cases died of {death.kind} in this one; first in a process it does not"
        )
        self.attempts[number] += 1
        return True

    def acquitted(self, done: Done) -> Done:
        """A row as it is, with what is to be said of a crash that was not its case's own."""
        story = self.doubted.get(done.number)
        if not story:
            return done
        return Done(done.number, done.row.with_values({"flags": "; ".join(filter(None, [done.row.flags, story]))}))

    def known(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Cases that the backend has said before not to implement, with the columns of their rows."""
        for number, (item, place) in enumerate(self.cases):
            if words := item.get("known", {}).get(str(place)):
                yield (
                    number,
                    {k: v for k, v in words.items() if k != "run"} | {"flags": f"as answered in run {words['run']}"},
                )

    def settle(self, number: int, status: str, **columns: Any) -> Done:
        """The row of a case that its child could not write; ``columns``: further columns."""
        item, place = self.cases[number]
        sample = PreparedGroup(Path(item["pack"]), item["group"]["check"]).samples[place]
        own = {"status": status, "policy": verdict.from_json(self.job.policy).id, "started_at": time.time()}
        return Done(number, Row.of({**sample_columns(sample), **own, **columns}))


def _run_batch(job: Job, get_child: GetChild) -> Iterator[dict[str, Any]]:
    batch = _Batch(job)
    out = _Rows(batch)
    batch.info = job.info
    for number, words in batch.known():
        out.add(batch.settle(number, Status.UNSUPPORTED.value, **words))
    strikes, pauses, asked_again = 0, list(PAUSES), False
    while batch.left:
        try:
            got = get_child(job)
        except envs.EnvError as error:
            yield from out.rest()
            yield {"gone": str(error)}
            return
        death = got if isinstance(got, Death) else None
        doubtful = False
        if not isinstance(got, Death):
            child, info = got
            if "unavailable" in info:
                _forget(job)  # the next child may find what this one did not
                if pauses:
                    time.sleep(pauses.pop(0))
                    yield _spending()  # a sign of life: a hello may take minutes
                    continue
                yield from out.rest()
                yield {"gone": info["unavailable"]}
                return
            batch.info = info
            command = {
                "do": "batch",
                "skip": sorted(batch.done),
                "solo": sorted(batch.solo),
                "items": [
                    {k: item.get(k) for k in ("pack", "places", "form", "keep")}
                    | {"label": Group(**item["group"]).unit, "check": item["group"]["check"]}
                    for item in job.items
                ],
            }
            streak = 0
            for message in child.call(command):
                if isinstance(message, Death):
                    death = message
                elif "stop" in message.get("end", {}):
                    yield message["end"]
                    return
                elif "end" not in message:
                    strikes = 0
                    done = Done(message["number"], Row.of(message["row"]))
                    streak = streak + 1 if done.row.status in FAILING else 0
                    child.served += 1
                    out.add(batch.acquitted(done))
                    if out.due():
                        yield out.flush()
                    if streak >= STREAK and batch.info.get("device_vendor") and not asked_again:
                        asked_again = doubtful = True
                        break
        if doubtful:
            _forget(job)
            continue
        if death is None:
            if batch.left or not child.alive():
                _forget(job)  # the runner asked to be replaced: its device is unusable
            _recycle(job)
            continue
        _forget(job)
        if death.number < 0 or death.number in batch.done or death.stage == "idle":
            strikes += 1
            if strikes >= STRIKES:
                yield from out.rest()
                yield {"gone": f"{STRIKES} processes died before their first case: {death.text}"}
                return
            time.sleep(PAUSES[0])
            yield _spending()
            continue
        if not batch.doubts(death, 0 if isinstance(got, Death) else child.served):
            for done in batch.dead(death):
                out.add(done)
            yield out.flush()
    yield from out.rest()


class _Rows:
    """Rows collected until they are due, then handed on as Arrow with the columns the batch decides."""

    def __init__(self, batch: _Batch) -> None:
        self.batch, self.since = batch, time.monotonic()
        self.rows: list[Done] = []
        self.node = batch.job.host or socket.gethostname()

    def add(self, done: Done) -> None:
        attempts = self.batch.attempts[done.number] + 1
        self.batch.done.add(done.number)
        self.rows.append(done if attempts == 1 else Done(done.number, done.row.with_values({"attempts": attempts})))

    def due(self) -> bool:
        return len(self.rows) >= CHUNK_ROWS or time.monotonic() - self.since > CHUNK_S

    def rest(self) -> Iterator[dict[str, Any]]:
        """What has not been handed on yet."""
        if self.rows:
            yield self.flush()

    def flush(self) -> dict[str, Any]:
        """Message of the collected rows: Arrow IPC bytes, the case numbers they settle, counts by status, and of those
        that failed (number, status, attempts, error): evidence, should the device turn out to be sick."""
        done, self.rows, self.since = self.rows, [], time.monotonic()
        job, rows = self.batch.job, [d.row for d in done]
        origin = Origin.of(job.run_id, (job.backend or {}).get("name", ""), self.batch.info, self.node, job.device)
        return {
            "rows": to_stream(rows, origin),
            "done": [d.number for d in done],
            "busy_ms": sum((r.build_ms or 0.0) + (r.run_ms or 0.0) for r in rows),
            "status": dict(collections.Counter(r.status for r in rows)),
            "times": [(r.build_ms or 0.0, r.run_ms or 0.0) for r in rows],
            "failed": [
                (d.number, d.row.status, d.row.attempts, (d.row.error or "")[:EVIDENCE])
                for d in done
                if d.row.status in FAILING
            ],
        }
