"""The children of one worker process: kept alive between its tasks, bounded together, their cost told once."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from farm.fleet import detect_vendors, envs, fork_server, visible_devices
from farm.fleet.child_process import ChildDeath, ChildProcess, name_compiler_caches
from farm.work.job import Job
from tasks import catalogs, wire
from tasks.catalogs.base import Catalog
from tasks.catalogs.user_definitions import put_kernel_in_definitions
from tasks.devices import VISIBLE
from tasks.prepare import cases, forms
from tasks.wire import ToExport, ToPrepare, ToRun

#: Children kept alive between the tasks of one worker, as far as memory allows; the least recently used is ended first.
SIZE = 8
#: Seconds for which a child that has done its batch is watched: it may wait for the next one, but not spin.
IDLE_S = 0.03
#: How many items of a job are looked at, to know what a child will import.
LOOKED_AT = 8
#: What exports are made with (`tasks.importing.import_by_name`).
EXPORTER = "tasks.prepare.onnx_export:load_onnx_exporter"
#: Least seconds for an import, which is not a case and has a bound of its own.
HELLO_S = 120.0


class PooledChildren(Protocol):
    """Where a supervisor has its children from. What is not one's own process is not ended, and has cost nothing."""

    def get(self, job: Job) -> tuple[Any, wire.Ready | wire.Refused] | ChildDeath:
        """A living child for the job, with its answer to hello; its Death if it died of that. Raises EnvError."""

    def forget(self, job: Job) -> None:
        """End the job's child: the next one starts afresh."""
        return

    def recycle(self, job: Job) -> None:
        """The job's child is done with its work for now."""
        return

    def take_costs(self) -> wire.Spent:
        """What children have cost since it was last told."""
        return wire.Spent()


class Closed(Exception):
    """The pool was killed: no child is started any more."""


class ChildPool:
    """Children by what they serve. Whoever has it runs one job at a time, so it needs no lock."""

    def __init__(self) -> None:
        # The last used at the end. A plain dict: `kill` copies it from another thread, which an OrderedDict cannot bear
        # while it changes.
        self._children: dict[tuple[Any, ...], tuple[ChildProcess, Any]] = {}
        self._told: dict[int, float] = {}  # CPU seconds already told, by child (its process id; a worker has few)
        #: Bytes of a child when it had started, likewise: a runtime of a GPU's has gigabytes of libraries before its
        #: first case.
        self._began: dict[int, int] = {}
        self._cpu_s = self._start_s = 0.0
        self._starts = 0
        self._killed = False

    def has(self, job: Job) -> bool:
        """Whether a child for such jobs was started, and is kept."""
        return _make_child_key(job) in self._children

    def get(self, job: Job) -> tuple[ChildProcess, wire.Ready | wire.Refused] | ChildDeath:
        """A living child, from the pool or new. Raises EnvError, Closed."""
        key = _make_child_key(job)
        got = self._get_child(key, job)
        if self._killed:  # looked at last: what `kill` did not find was put here after it
            self.forget(job)
            raise Closed
        return got

    def _get_child(self, key: tuple[Any, ...], job: Job) -> tuple[ChildProcess, wire.Ready | wire.Refused] | ChildDeath:
        if self._killed:
            raise Closed
        self._make_room(key, job.limits.pool_bytes)
        if key in self._children:
            child, _ = kept = self._children[key]
            if child.alive() and not child.answering:  # what is left of an earlier call would be taken for this one's
                del self._children[key]
                self._children[key] = kept
                return kept
            self._drop(key)
        began = time.monotonic()
        cache = Path(job.cache)
        kernel = job.backend.kernel if job.backend else ""
        hello = wire.Hello(
            job.backend, job.policy, put_kernel_in_definitions(job.kernels, kernel), job.limits.race_s, job.passports
        )
        python = envs.build_interpreter_of_backend(job.backend or job.home, cache)
        env = name_compiler_caches(cache) | visible_devices.build_child_variables(job.backend) | job.env
        env |= envs.find_model_converter(job.kernels, cache) if job.prepare else {}
        deadline_s = max(HELLO_S, job.limits.deadline_s)
        child, answer = ChildProcess.start_and_ask(python, job.limits, env, hello, deadline_s, list_imports_of_job(job))
        if isinstance(answer, ChildDeath):
            self._end(child)
            return answer
        if isinstance(answer, wire.Ready) and job.backend is not None:
            answer = wire.Ready(replace(answer.info, environment=envs.label_environment(job.backend)))
        self._starts += 1
        self._start_s += time.monotonic() - began
        self.add(job, child, answer)
        while len(self._children) > SIZE:
            self._drop(next(iter(self._children)))
        return child, answer

    def add(self, job: Job, child: ChildProcess, answer: wire.Ready | wire.Refused) -> None:
        """Keep a child for the jobs that are like this one."""
        self._children[_make_child_key(job)] = child, answer
        self._began[child.process.pid] = child.resident()

    def forget(self, job: Job) -> None:
        """End the job's child, if it is alive."""
        key = _make_child_key(job)
        if key in self._children:
            self._drop(key)

    def recycle(self, job: Job) -> None:
        """End a child that has grown, that spins while it waits, or that holds a device which no other process may open
        beside it: nobody is to blame, the next batch starts afresh."""
        key = _make_child_key(job)
        if key in self._children:
            child, answer = self._children[key]
            grown = child.resident() - self._began[child.process.pid]
            if _is_device_exclusive(answer) or grown > job.limits.recycle_bytes or _is_child_spinning(child):
                self._drop(key)

    def take_costs(self) -> wire.Spent:
        """What children have cost since it was last told."""
        for child, _ in self._children.values():
            self._count_child_cpu(child)
        told = wire.Spent(self._cpu_s, self._starts, self._start_s)
        self._cpu_s, self._starts, self._start_s = 0.0, 0, 0.0
        return told

    def kill(self) -> None:
        """From another thread: every child dies, and `get` raises Closed."""
        self._killed = True
        for child, _ in list(self._children.values()):
            child.kill()

    def close(self) -> None:
        """End every child."""
        while self._children:
            self._drop(next(iter(self._children)))

    def _make_room(self, key: tuple[Any, ...], pool_bytes: int) -> None:
        """End children that wait for further batches, the longest unused first, so that all but that of ``key`` stay
        within the pool's bound."""
        waiting = {k: child.resident() for k, (child, _) in self._children.items() if k != key}
        while waiting and sum(waiting.values()) > pool_bytes:
            oldest = next(iter(waiting))
            del waiting[oldest]
            self._drop(oldest)

    def _drop(self, key: tuple[Any, ...]) -> None:
        self._end(self._children.pop(key)[0])

    def _end(self, child: ChildProcess) -> None:
        self._count_child_cpu(child)
        for kept in (self._told, self._began):
            kept.pop(child.process.pid, None)
        child.close()

    def _count_child_cpu(self, child: ChildProcess) -> None:
        pid, now = child.process.pid, child.cpu_s()
        self._cpu_s += now - self._told.get(pid, 0.0)
        self._told[pid] = now


#: The children of this process.
POOL = ChildPool()


def can_share_child(one: Job, other: Job) -> bool:
    """Whether the same child can serve both."""
    return _make_child_key(one) == _make_child_key(other)


def _make_child_key(job: Job) -> tuple[Any, ...]:
    visible = tuple(os.environ.get(v, "") for v in VISIBLE)
    return (
        f"{job.kind} {job.home}" if job.backend is None else str(job.backend),
        str(job.policy),
        job.limits,
        str(job.env),
        job.kernels,
        visible,
    )


def list_imports_of_job(job: Job) -> tuple[str, ...] | None:
    """What a child for a job may be forked with: what it would import itself, for its backend and for groups that are
    not in the cache. None where it is to be started plainly."""
    wanted = job.imports if job.backend is None else fork_server.list_early_imports(job.backend)
    if wanted is None or (job.backend is not None and "torch" not in wanted):
        return wanted
    items: tuple[ToPrepare | ToExport | ToRun, ...] = job.prepare or job.export or job.run
    for item in items[:: len(items) // LOOKED_AT + 1]:
        catalog = catalogs.get_catalog(item.group.catalog)
        more = catalog.imports if job.backend is None or "torch" in catalog.forms else ()
        more += (EXPORTER,) if isinstance(item, ToExport) else ()
        if not set(more) <= set(wanted) and not _is_item_cached(item, Path(job.cache)):
            wanted = tuple(dict.fromkeys(wanted + more))
    return wanted


def _is_item_cached(item: ToPrepare | ToExport | ToRun, cache: Path) -> bool:
    """Whether an item is in the cache already: nothing is imported for it."""
    if type(catalogs.get_catalog(item.group.catalog)).group_version is not Catalog.group_version:
        return False  # the user's own modules say which version it is, and are imported in children alone
    if isinstance(item, ToPrepare):
        bad = {x.position: x.failure for x in item.bad}
        return cases.find_pack_key(item.group, cache, bad=bad or None, with_products=item.with_products) is not None
    if isinstance(item, ToExport):
        whys = {x.position: x.failure.error for x in item.bad}
        return forms.find_exported_forms_path(Path(item.pack), cache, item.form, item.count, whys).exists()
    return False


def _is_device_exclusive(answer: Any) -> bool:
    return isinstance(answer, wire.Ready) and detect_vendors.allows_one_process(answer.info.device_vendor)


def _is_child_spinning(child: ChildProcess) -> bool:
    """Whether a child without work uses the processor all the same, as IREE's threads do that wait for Mesa's
    semaphores."""
    before = child.cpu_s()
    time.sleep(IDLE_S)
    return child.cpu_s() - before > IDLE_S / 2
