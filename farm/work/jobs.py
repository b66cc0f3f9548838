"""What is to be done next, as a job: groups to prepare or export, a batch of cases, a second opinion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farm.fleet.health import CaseRef
from farm.work import batching
from farm.work.accounts import Accounts
from farm.work.backlog import Backlog
from farm.work.job import Job
from farm.work.placement import Placement, Pool
from farm.work.state import Flight, Plan, Portion, portions
from farm.work.stock import PREPARE_MIN, Stock
from farm.work.supports import Supports
from tasks.wire import ToExport, ToPrepare, ToRun

#: Most cases of one second opinion.
OPINION_CASES = 4


class Jobs:
    """Makes jobs of what waits."""

    def __init__(
        self, plan: Plan, stock: Stock, backlog: Backlog, placement: Placement, accounts: Accounts, supports: Supports
    ) -> None:
        self._plan, self._stock, self._backlog = plan, stock, backlog
        self._placement, self._accounts, self._supports = placement, accounts, supports
        self._begun: set[int] = set()  # backends that have had a batch

    def next(self, pool: Pool, idle: bool, flights: Mapping[int, Flight]) -> Flight | None:
        """The next job for a pool's devices. idle: one of them has nothing to do, and takes whatever there is."""
        if not pool.main:
            return self._batch_for(pool, small=idle)
        # The CPUs also prepare and export. Preparing has half of the slots, so that judged numbers come early; the rest
        # if nothing else is ready.
        half = sum(1 for f in flights.values() if f.job.prepare) >= pool.devices
        if not self._begun:
            return self._first(pool, half)
        flight = None if half else self._preparing()
        # The quick backends before the exporter, the compilers last: most of the matrix is there early.
        flight = flight or self._batch_for(pool, joint=False) or self._exporting()
        return flight or self._batch_for(pool) or self._preparing() or self._batch_for(pool, small=True)

    def _first(self, pool: Pool, half: bool) -> Flight | None:
        """As long as no backend has had a batch. The first numbers are of what the first jobs prepare: these are short, and
        a slot is kept free for them once ``half`` of the slots prepare."""
        if half:
            return None
        flight = self._batch_for(pool, small=True, joint=False) or self._preparing(PREPARE_MIN)
        return flight or self._exporting() or self._batch_for(pool) or self._batch_for(pool, small=True)

    # --- groups -----------------------------------------------------------------------------------------------------

    def _preparing(self, most: int = 0) -> Flight | None:
        groups = self._stock.take("prepare", most)
        items = tuple(ToPrepare(self._plan.matrix.groups[g]) for g in groups)
        return self._of_groups("prepare", groups, prepare=items) if groups else None

    def _exporting(self) -> Flight | None:
        groups = self._stock.take("export")
        items = []
        parcels: dict[str, Any] = {}
        for g in groups:
            most = max(int(self._stock.wanted[g, b]) for b in self._stock.exports(g))
            items.append(ToExport(self._plan.matrix.groups[g], str(self._stock.pack(g)), "onnx", most))
            parcels |= self._stock.parcels(g)
        return self._of_groups("export", groups, export=tuple(items), parcels=parcels) if groups else None

    def _of_groups(self, kind: str, groups: list[int], **what: Any) -> Flight:
        name = f"{kind} {self._plan.unit(groups[0])} +{len(groups) - 1}"
        return Flight(Job(name=name, cache=str(self._plan.cache), limits=self._plan.limits(-1), **what), groups=groups)

    # --- cases ------------------------------------------------------------------------------------------------------

    def _batch_for(self, pool: Pool, small: bool = False, joint: bool = True) -> Flight | None:
        """A batch of the first backend of the pool that has one worth a task (any, if ``small``).

        ``joint`` False leaves out the backends that compile.
        """
        demands = {b: self._demand(b, pool) for b in pool.backends if self._may(b)}
        left_s = {b: demand.left_s for b, demand in demands.items()}
        for b in batching.order(left_s, not self._stock.left["prepare"] and not self._stock.left["export"]):
            compiles = self._plan.offer(b).joint
            if compiles and not joint:
                continue
            if self._backlog.doubts[b]:
                return self._second_opinion(b)
            if self._backlog.isolated[b]:
                return self._batch(b, portions(self._backlog.isolated[b].popleft()))
            if cases := batching.size(demands[b], sum(left_s.values()), small):
                chosen = batching.take(self._backlog.ready[b], cases, self._plan.unit if compiles else None)
                self._backlog.cases[b] -= sum(len(positions) for _, positions in chosen)
                return self._batch(b, chosen)
        return None

    def _may(self, b: int) -> bool:
        return self._placement.available[b] and not self._placement.rests(b)

    def _demand(self, b: int, pool: Pool) -> batching.Demand:
        return batching.Demand(
            cases=self._backlog.cases[b],
            case_ms=self._accounts.case_ms(b),
            start_s=self._accounts.start_s(b),
            slots=pool.devices * int(1 / self._plan.fraction(b)),
            first=b not in self._begun,
            complete=self._stock.complete(b),
        )

    def _second_opinion(self, b: int) -> Flight:
        """A batch of cases that failed on one device, for another one."""
        doubts = self._backlog.doubts[b]
        asked = [doubts.popleft()]
        while doubts and doubts[0].place == asked[0].place and len(asked) < OPINION_CASES:
            asked.append(doubts.popleft())
        flight = self._batch(b, [(doubt.case.group, [doubt.case.position]) for doubt in asked])
        flight.asked = asked
        return flight

    def expected(self, b: int) -> Job:
        """A batch of a backend without cases: what its children serve."""
        return Job(
            name=self._plan.name(b),
            cache=str(self._plan.cache),
            limits=self._plan.limits(b),
            backend=self._plan.backends[b],
            policy=self._plan.policy,
            run_id=self._plan.run_id,
            info=self._plan.offer(b).info,
        )

    def _batch(self, b: int, chosen: list[Portion]) -> Flight:
        self._begun.add(b)
        cases = [CaseRef(g, b, p) for g, positions in chosen for p in positions]
        items = []
        parcels: dict[str, Any] = {}
        for g, positions in chosen:
            exported = self._stock.forms.get(g, "") if b in self._stock.exports(g) else ""
            items.append(ToRun(self._plan.matrix.groups[g], str(self._stock.pack(g)), tuple(positions), exported))
            parcels |= self._stock.parcels(g)
        known = ((n, self._supports.words(c.group, b, c.position)) for n, c in enumerate(cases))
        job = replace(
            self.expected(b),
            name=f"{self._plan.unit(chosen[0][0])} +{len(chosen) - 1}/{self._plan.name(b)}",
            run=tuple(items),
            attempts={n: times for n, c in enumerate(cases) if (times := self._accounts.attempts(c))},
            known={n: words for n, words in known if words},
            parcels=parcels,
        )
        return Flight(job, b, cases)
