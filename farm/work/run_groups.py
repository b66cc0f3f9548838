"""The groups of a run: which are to be prepared or exported, and what is known of those that are."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.work.durations import GUESSED_MS, START_S
from farm.work.state import JobFlight, RunPlan
from tasks import catalogs, checks
from tasks.catalogs.user_definitions import USER, find_home_backend
from tasks.prepare.cases import PreparedGroup, find_pack_path
from tasks.wire import Exported, Prepared

#: Groups of one preparing job: as many as take about this many seconds, and no more; those of a run's first jobs; of an
#: exporting job.
PREPARE_S, PREPARE_MAX, PREPARE_FIRST, EXPORT_GROUPS = 4.0, 1024, 8, 16
#: Index of the row of a group that cannot be prepared, in place of its samples.
WHOLE = -1


class RunGroups:
    """Groups before, in and after preparing.

    wanted[g, b]: samples that a backend is to run, 0 where it was never there; exporting[g]: backends that wait for the
    group to be exported, since they take no other form of it; done: (g, b) → indices of samples that are already in the
    lake. group_ms: milliseconds that an ordinary group takes, by the kind of job; to_come: cases of groups that are
    still to be prepared, by backend, as `RunPlan.work_of` has them; to_prepare, prepared: how many groups are, and were,
    of each kind of work; exports_to_come: how many of those to be prepared are to be exported then; exported: how many
    have been.
    """

    def __init__(self, plan: RunPlan, there: list[bool], done: dict[tuple[int, int], set[int]]) -> None:
        self._plan, self._done = plan, done
        self.wanted = plan.matrix.wanted * np.array(there, dtype=np.int32)
        self.keys: dict[int, str] = {}
        self.packs: dict[int, str] = {}  # group → its file
        self.samples: dict[int, list[int]] = {}  # group → indices of its prepared samples, in order
        self.forms: dict[int, str] = {}
        self.exporting = _list_exporting_backends(plan)
        self._exporters = {b for many in {id(x): x for x in self.exporting}.values() for b in many}
        self.queues = {"prepare": deque(np.flatnonzero(self.wanted.any(axis=1)).tolist()), "export": deque[int]()}
        self.left = {"prepare": len(self.queues["prepare"]), "export": 0}
        waiting = list(self.queues["prepare"])
        self.to_prepare, self.prepared = plan.kinds.count(waiting), np.zeros(len(plan.kinds), np.int64)
        self.to_come = plan.work_of(waiting, self.wanted[waiting])
        self._unprepared = set(waiting)
        self.exports_to_come, self.exported = self._count_exports(waiting), 0
        self.suspects: dict[str, deque[list[int]]] = {
            "prepare": deque(),
            "export": deque(),
        }  # of losses: jobs of their own
        self._parcels: dict[int, dict[str, Any]] = {}  # group → files that a node may lack, as Ray references
        self.group_ms = GUESSED_MS.copy()  # little once it is in the cache

    # --- what is to be made ---------------------------------------------------------------------------------------

    def take(self, kind: str, slots: int, most: int = 0) -> list[int]:
        """Groups of the next job of a kind, all at home in one environment: suspects of losses, else as many of the
        queue as make a job, at most ``most``, and no more than half of what each of the ``slots`` that take such jobs
        has left to do: else one is still at it when all others are done (guided self-scheduling: Polychronopoulos and
        Kuck, 1987). What is done before another process has started is one job."""
        if self.suspects[kind]:
            return self.suspects[kind].popleft()
        queue = self.queues[kind]
        sized = self._size_preparing_job() if kind == "prepare" else EXPORT_GROUPS
        sized = max(min(sized, most or sized), 1)
        share = -(-len(queue) // (2 * slots)) if slots > 1 and not self._is_little(queue) else len(queue)
        first: Iterator[int] = itertools.islice(queue, min(len(queue), sized, share))
        if find_home_backend(USER):
            first = itertools.takewhile(
                lambda g: self._find_catalog_home(g) == self._find_catalog_home(queue[0]), first
            )
        taken = list(first)
        for _ in taken:
            queue.popleft()
        return taken

    def _size_preparing_job(self) -> int:
        """How many of the next groups make a preparing job."""
        most = min(PREPARE_MAX, int(PREPARE_S * 1e3 / (self.group_ms["prepare"] * self._plan.kinds.prepare.min())))
        if len(self._plan.kinds) == 1:
            return most
        waiting = list(itertools.islice(self.queues["prepare"], max(most, 1)))
        ms = self.group_ms["prepare"] * np.cumsum(self._plan.kinds.prepare[self._plan.kinds.of[waiting]])
        return int(np.count_nonzero(ms <= PREPARE_S * 1e3))

    def _is_little(self, groups: Collection[int]) -> bool:
        """Whether earlier runs prepared all these groups in less time than a process takes to start."""
        learned = self._plan.learned
        most = START_S * 1e3
        if learned is None or len(groups) > most / GUESSED_MS["prepare"]:
            return False
        return bool(learned.prepare_ms[list(groups)].sum() < most)  # not where one is NaN

    def _find_catalog_home(self, g: int) -> dict[str, Any] | None:
        return find_home_backend(self._plan.matrix.groups[g].catalog)

    def without(self, b: int) -> list[int]:
        """A backend has no part in the run: the groups that need not be prepared any more."""
        self.wanted[:, b], self.to_come[b] = 0, 0.0
        nobodys = self._drop_groups("prepare", lambda g: not self.wanted[g].any())
        self._drop_groups("export", lambda g: not self.wanted[g, self.exporting[g]].any())
        self.to_prepare -= self._plan.kinds.count(nobodys)
        self._unprepared.difference_update(nobodys)
        self.exports_to_come = self._count_exports(self._unprepared)
        return nobodys

    def _drop_groups(self, kind: str, nobodys: Callable[[int], bool]) -> list[int]:
        groups = list(self.queues[kind])
        dropped = [g for g in groups if nobodys(g)]
        self.queues[kind] = deque(g for g in groups if not nobodys(g))
        self.left[kind] -= len(dropped)
        return dropped

    def end_preparing(self, g: int) -> None:
        """A group is prepared, or cannot be."""
        self.left["prepare"] -= 1
        self._unprepared.discard(g)
        kind = self._plan.kinds.of.item(g)
        self.to_prepare[kind] -= 1
        self.prepared[kind] += 1
        self.exports_to_come -= self._count_exports([g])
        self.to_come -= self._plan.work_of([g], self.wanted[[g]])

    def end_exporting(self) -> None:
        """A group is exported, or cannot be."""
        self.left["export"] -= 1
        self.exported += 1

    def _count_exports(self, groups: Iterable[int]) -> int:
        """How many of these groups are exported for a backend that is there."""
        return sum(bool(self.wanted[g, self.exporting[g]].any()) for g in groups)

    def complete(self, b: int) -> bool:
        """Whether no group is to come any more for a backend."""
        waits = self.left["export"] and b in self._exporters
        return not self.left["prepare"] and not waits

    def store_prepared(self, g: int, message: Prepared) -> None:
        self.keys[g], self.samples[g] = message.key, list(message.samples)
        self.packs[g] = str(find_pack_path(self._plan.request.cache, message.key))
        self._store_parcel(g, message)

    def store_exported(self, g: int, message: Exported) -> None:
        self.forms[g] = message.path
        self._store_parcel(g, message)

    def _store_parcel(self, g: int, message: Prepared | Exported) -> None:
        if message.parcel is not None:
            self._parcels.setdefault(g, {})[message.path] = message.parcel

    def learn_group_time(self, flight: JobFlight) -> None:
        """Learn from a preparing or exporting job, one of whose groups has come, how long a group takes: of what takes
        minutes before all have, or the jobs that wait for a slot wait for the next such job as well."""
        now, done = time.monotonic(), len(flight.done)
        flight.first = flight.first or now
        kind = flight.job.kind
        whole = done == len(flight.groups)
        since, groups = (flight.first, done - 1) if done > 1 else (flight.began, done)
        if groups and (whole or done > 1):
            kinds = self._plan.kinds
            worth = float(kinds.prepare[kinds.of[flight.groups]].mean()) if kind == "prepare" else 1.0
            taken = max((now - since) * 1e3 / (groups * worth), 0.1)
            self.group_ms[kind] = taken if whole else max(taken, self.group_ms[kind])

    # --- what is there --------------------------------------------------------------------------------------------

    def positions(self, g: int, b: int) -> Sequence[int]:
        """Positions of the group's samples that the backend has still to run."""
        known = self._done.get((g, b)) if self._done else None
        if not known:
            return range(min(len(self.samples[g]), self.wanted.item(g, b)))
        if WHOLE in known:  # given up in an earlier launch: that is its result
            return ()
        return [p for p, index in enumerate(self._list_asked_samples(g, b)) if index not in known]

    def rows(self, g: int, b: int) -> int:
        """How many rows the group has in the end on a backend, those of earlier launches included."""
        known = self._done.get((g, b)) if self._done else None
        if not known:
            return len(self.positions(g, b))
        return len(known if WHOLE in known else known.union(self._list_asked_samples(g, b)))

    def count_stored_cases(self) -> int:
        """Cases in the lake already of groups that are still to be prepared: `RunCounts` hears of them when they
        are."""
        waiting = self.left["prepare"] > 0
        return sum(len(known) for (g, _), known in self._done.items() if g not in self.samples) if waiting else 0

    def _list_asked_samples(self, g: int, b: int) -> list[int]:
        return self.samples[g][: int(self.wanted[g, b])]  # none where the backend was never there

    def content(self, g: int, b: int) -> str:
        """Content key of what a backend is given of a group: of the exported form, where it takes one."""
        form = self.forms.get(g) if b in self.exporting[g] else None
        return f"{self._plan.matrix.groups[g].check}/{Path(form).stem if form else self.keys[g]}"

    def parcels(self, g: int) -> dict[str, Any]:
        """The files of a group for nodes that may lack them; none where all share a cache."""
        if self._plan.executor.ship:  # a node may have joined that lacks what the others share
            for path in (self.packs[g], self.forms.get(g, "")):
                if path not in self._parcels.get(g, {}) and Path(path).is_file():
                    self._parcels.setdefault(g, {})[path] = self._plan.executor.parcel(Path(path))
        return self._parcels.get(g, {})

    def group(self, g: int) -> PreparedGroup:
        """A prepared group as it can be read here. Raises OSError if its file is lost."""
        path = Path(self.packs[g])
        if not path.exists() and str(path) in self._parcels.get(g, {}):
            self._plan.executor.fetch(self._parcels[g][str(path)], path)
        return PreparedGroup(path, self._plan.matrix.groups[g].check)


def _list_exporting_backends(plan: RunPlan) -> list[list[int]]:
    """Per group, the backends that are given an exported form of it; none where its check's samples have none."""
    forms = [plan.offer(b).forms for b in range(len(plan.matrix.backends))]
    known: dict[tuple[str, tuple[str, ...], bool], list[int]] = {}
    found = []
    for group in plan.matrix.groups:
        catalog = catalogs.get_catalog(group.catalog)
        key = group.catalog, catalog.forms_of(group), checks.get_check_or_default(group.check).exported
        if key not in known:
            known[key] = [b for b, some in enumerate(forms) if key[-1] and catalog.needs_export(some, group)]
        found.append(known[key])
    return found
