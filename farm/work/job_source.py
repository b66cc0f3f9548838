"""What is to be done next, as a job: groups to prepare or export, a batch of cases, a second opinion."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from farm.work import batching
from farm.work.claims import ONE, DeviceClaim
from farm.work.job import Job
from farm.work.placement import DevicePool
from farm.work.run_groups import PREPARE_FIRST
from farm.work.run_state import RunState
from farm.work.state import JobFlight, PlannedCases, Portion, RunPlan, group_planned_cases, make_child_limits
from farm.work.supervisor import CHUNK_S
from tasks.backends.base import FRACTION
from tasks.wire import ToExport, ToPrepare, ToRun

#: Messages a second that a driver takes at most, from all slots: each costs it about a third of a millisecond.
MESSAGES = 300.0
#: Slots from which on the driver's own time is what is short: then one of so many slots prepares, so many groups at
#: most in a job. A group costs the driver a tenth of a millisecond, in which it hands out nothing.
MANY, MANY_PREPARE, MANY_GROUPS = 128, 8, 64
#: Most cases of one second opinion; times that a case may take what it took in an earlier run.
OPINION_CASES, PATIENCE = 4, 5.0


def make_typical_job(plan: RunPlan, b: int, claim: DeviceClaim) -> Job:
    """A batch of a backend without cases: what its children serve. claim: of the devices."""
    shared = bool(plan.offer(b).device_vendor) and claim.fraction < 1
    return Job(
        name=plan.name(b),
        cache=str(plan.request.cache),
        limits=make_child_limits(plan.request.config, plan.name(b)),
        backend=plan.matrix.backends[b],
        policy=plan.request.policy,
        passports=plan.passports.get(plan.name(b), ()),
        run_id=plan.run_id,
        info=plan.offer(b).info,
        env={FRACTION: str(claim.fraction)} if shared else {},
    )


def expect_first_jobs(plan: RunPlan) -> None:
    """Have the children of the first jobs started, as many as run at once, before there are jobs."""
    offers = {b: plan.offer(b) for b in np.flatnonzero(plan.matrix.wanted.any(axis=0)).tolist()}
    first = [b for b, offer in offers.items() if offer.available and not offer.info.exclusive]
    for b in first[: plan.executor.slots(None, ONE)]:
        claim = plan.claim(b)
        plan.executor.expect(make_typical_job(plan, b, claim), offers[b], claim)


class JobSource:
    """Makes jobs of what waits."""

    def __init__(self, state: RunState) -> None:
        self._state, self._plan = state, state.plan
        self._begun: set[int] = set()  # backends that have had a batch

    def next(self, pool: DevicePool, idle: bool, preparing: int) -> JobFlight | None:
        """The next job for a pool's devices. idle: one of them has nothing to do, and takes whatever there is;
        preparing: jobs under way that prepare."""
        if not pool.main:
            return self._batch_for(pool, small=idle)
        # The CPUs also prepare and export. Preparing has half of the slots, so that judged numbers come early; the rest
        # if nothing else is ready.
        many = pool.devices >= MANY
        slots = pool.devices // MANY_PREPARE if many else pool.devices
        half = preparing >= slots or (many and self._has_plenty_to_run(pool))
        if not self._begun:
            return self._first(pool, half, slots)
        most, ranked = MANY_GROUPS if many else 0, self._plan.order is not None
        flight = None if half else self._make_preparing_flight(slots, most)
        if flight is None and ranked and self._do_exports_tell_more(pool):
            flight = self._make_exporting_flight(pool.devices)
        # The quick backends before the exporter, the compilers last: most of the matrix is there early.
        flight = flight or self._batch_for(pool, joint=ranked) or self._make_exporting_flight(pool.devices)
        flight = flight or self._batch_for(pool)
        if flight is None and not (many and half):
            flight = self._make_preparing_flight(slots, most)
        return flight or self._batch_for(pool, small=True)

    def _has_plenty_to_run(self, pool: DevicePool) -> bool:
        """Whether each of very many slots has two batches to run: what is prepared beyond that keeps the driver from
        handing them out."""
        left_s = sum(
            self._state.case_queue.left_s(b, self._state.run_counts.case_ms(b))
            for b in pool.backends
            if self._state.placement.may_run(b)
        )
        return left_s > 2 * batching.BATCH_S * pool.devices

    def _do_exports_tell_more(self, pool: DevicePool) -> bool:
        """Whether by a budget the cases of the next group that is to be exported are worth more than any that can be
        run."""
        groups, queue = self._state.run_groups, self._state.case_queue
        if not groups.queues["export"]:
            return False
        g = groups.queues["export"][0]
        exported = [queue.rank_of(b, (g, (0,))) for b in groups.exporting[g] if groups.wanted[g, b]]
        there = [queue.place(b)[:2] for b in pool.backends if queue.cases[b] and self._state.placement.may_run(b)]
        return bool(exported and there) and min(exported) < min(there)

    def _first(self, pool: DevicePool, half: bool, slots: int) -> JobFlight | None:
        """As long as no backend has had a batch. The first numbers are of what the first jobs prepare: these are short,
        and a slot is kept free for them once ``half`` of the slots prepare."""
        if half:
            return None
        flight = self._batch_for(pool, small=True, joint=False) or self._make_preparing_flight(slots, PREPARE_FIRST)
        return (
            flight
            or self._make_exporting_flight(pool.devices)
            or self._batch_for(pool)
            or self._batch_for(pool, small=True)
        )

    # --- groups -----------------------------------------------------------------------------------------------------

    def _make_preparing_flight(self, slots: int, most: int = 0) -> JobFlight | None:
        groups = self._state.run_groups.take("prepare", slots, most)
        with_products = self._plan.with_products
        items = tuple(ToPrepare(self._plan.matrix.groups[g], with_products=with_products) for g in groups)
        return self._make_group_flight("prepare", groups, prepare=items) if groups else None

    def _make_exporting_flight(self, slots: int) -> JobFlight | None:
        groups = self._state.run_groups.take("export", slots)
        items = []
        parcels: dict[str, Any] = {}
        for g in groups:
            most = max(int(self._state.run_groups.wanted[g, b]) for b in self._state.run_groups.exporting[g])
            items.append(ToExport(self._plan.matrix.groups[g], self._state.run_groups.packs[g], "onnx", most))
            parcels |= self._state.run_groups.parcels(g)
        return self._make_group_flight("export", groups, export=tuple(items), parcels=parcels) if groups else None

    def _make_group_flight(self, kind: str, groups: list[int], **what: Any) -> JobFlight:
        name = f"{kind} {self._plan.matrix.groups[groups[0]].unit} +{len(groups) - 1}"
        job = Job(
            name=name,
            cache=str(self._plan.request.cache),
            limits=self._plan.make_preparing_limits(groups),
            chunk_s=self._choose_message_interval_s(),
            **what,
        )
        # All groups are worth the same to the exporter.
        kinds = self._plan.kinds.of[groups] if kind == "prepare" else np.zeros(len(groups), np.int8)
        return JobFlight(job, groups=groups, work=np.zeros((len(self._plan.kinds), 3)), kinds=kinds)

    def _choose_message_interval_s(self) -> float:
        """Seconds between two messages of a job: all slots together send no more than the driver can take."""
        every_s = sum(pool.devices for pool in self._state.placement.pools()) / MESSAGES
        return every_s if every_s > CHUNK_S else 0.0

    # --- cases ------------------------------------------------------------------------------------------------------

    def _batch_for(self, pool: DevicePool, small: bool = False, joint: bool = True) -> JobFlight | None:
        """A batch of the first backend of the pool that has one worth a task (any, if ``small``).

        ``joint`` False leaves out the backends that compile.
        """
        demands = {
            b: self._measure_demand(b, pool)
            for b in pool.backends
            if self._state.case_queue.has(b) and self._state.placement.may_run(b)
        }
        left_s = {b: demand.left_s for b, demand in demands.items()}
        order = list(left_s)
        if not any(self._state.run_groups.left.values()):  # all work is known: the long ones first end together
            order.sort(key=lambda b: -left_s[b])
        # Each backend has its first numbers, and is timed, before any has its second batch.
        order = sorted(
            order, key=self._state.case_queue.place if self._plan.order is not None else self._begun.__contains__
        )
        for b in order:
            compiles = self._plan.offer(b).joint
            if compiles and not joint:
                continue
            if self._state.case_queue.doubts[b]:
                return self._second_opinion(b)
            if self._state.case_queue.isolated[b]:
                return self._batch(b, group_planned_cases(self._state.case_queue.isolated[b].popleft()))
            timed = self._state.run_counts.count(b).done + self._state.case_queue.timed[b]
            if not compiles and batching.does_batch_wait(
                demands[b], timed, self._state.run_counts.starts(b), self._state.flights.batches[b]
            ):
                continue
            if worth_s := batching.choose_batch_size_s(demands[b], sum(left_s.values()), small):
                most = batching.BATCH_MAX
                if timed < batching.UNTIMED:
                    most = max(batching.UNTIMED, math.ceil(demands[b].cases / (2 * demands[b].slots)))
                usual_ms = self._state.run_counts.case_ms(b)
                return self._batch(b, self._state.case_queue.take(b, worth_s, usual_ms, most, torn=not compiles))
        return None

    def _measure_demand(self, b: int, pool: DevicePool) -> batching.BatchDemand:
        return batching.BatchDemand(
            cases=self._state.case_queue.cases[b],
            left_s=self._state.case_queue.left_s(b, self._state.run_counts.case_ms(b)),
            start_s=self._state.run_counts.start_s(b),
            slots=max(self._state.placement.claim(b).jobs_on(pool.devices), 1),
            first=b not in self._begun,
            complete=self._state.run_groups.complete(b),
        )

    def _second_opinion(self, b: int) -> JobFlight:
        """A batch of cases that failed on one device, for another one."""
        doubts = self._state.case_queue.doubts[b]
        asked = [doubts.popleft()]
        while doubts and doubts[0].place == asked[0].place and len(asked) < OPINION_CASES:
            asked.append(doubts.popleft())
        flight = self._batch(b, [(doubt.case.group, [doubt.case.position]) for doubt in asked])
        flight.asked = asked
        return flight

    def _deadline_s(self, b: int, chosen: list[Portion]) -> float:
        """Seconds that a case may take, 0 for what the config says. What took long and came right is given more;
        nothing is ever given less than the config says: on a machine that is busy or has just been asleep, a short
        deadline would blame the sound."""
        learned = self._plan.learned
        groups = [g for g, _ in chosen if learned.finding[g, b] < 0] if learned is not None else []
        longest_s = PATIENCE * max((self._plan.case_ms(g, b) or 0.0 for g in groups), default=0.0) / 1e3
        return longest_s if longest_s > self._plan.request.config.deadline_s else 0.0

    def _batch(self, b: int, chosen: list[Portion]) -> JobFlight:
        self._begun.add(b)
        cases, timed = PlannedCases(b, chosen), any(self._plan.is_timed(g) for g, _ in chosen)
        items = []
        parcels: dict[str, Any] = {}
        for g, positions in chosen:
            exported = self._state.run_groups.forms.get(g, "")
            exported = exported if exported and b in self._state.run_groups.exporting[g] else ""
            items.append(
                ToRun(self._plan.matrix.groups[g], self._state.run_groups.packs[g], tuple(positions), exported)
            )
            parcels |= self._state.run_groups.parcels(g)
        job = replace(
            make_typical_job(self._plan, b, self._state.placement.claim(b, timed)),
            name=f"{self._plan.matrix.groups[chosen[0][0]].unit} +{len(chosen) - 1}/{self._plan.name(b)}",
            run=tuple(items),
            attempts=self._state.run_counts.find_attempts(cases),
            known=self._state.supports.find_unsupported(b, chosen),
            parcels=parcels,
            deadline_s=self._deadline_s(b, chosen),
            chunk_s=self._choose_message_interval_s(),
        )
        groups, counts = [g for g, _ in chosen], np.array([len(positions) for _, positions in chosen])
        (work,) = self._plan.work_of(groups, counts[:, None], b)
        return JobFlight(job, b, cases, timed=timed, work=work, kinds=np.repeat(self._plan.kinds.of[groups], counts))
