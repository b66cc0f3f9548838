"""The loop of a run: keeps the slots full, takes in what comes back, until every planned case has its row."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from farm import lake as lakes
from farm.fleet.child_process import STARVED
from farm.fleet.health import CaseRef
from farm.lake import beside
from farm.work import budget
from farm.work.claims import ONE
from farm.work.executor import Unplaced
from farm.work.fleet_changes import FleetChanges
from farm.work.job_source import JobSource
from farm.work.lost_work import LostWork
from farm.work.run_state import RunState
from farm.work.second_opinions import SecondOpinions
from farm.work.state import JobFlight
from tasks import checks, wire
from tasks.catalogs.base import Failure
from tasks.model import Group, Status

#: Seconds without a word, beyond the deadline, after which a supervisor is given up.
SILENCE_S = 120.0


def count_silent_deadlines(prepared: Iterable[Group], run: Iterable[Group], joint: int) -> int:
    """How many deadlines a job may take between two messages: a group is prepared in one, a case is run in one, and
    ``joint`` cases are that are run together. Each step of a case may take a deadline, and so may its judging."""
    steps = [x.samples * checks.get_check_or_default(x.check).deadlines for x in prepared]
    steps += [checks.get_check_or_default(x.check).deadlines for x in run]
    return max([joint, *steps])


class Dispatcher:
    """Runs what a state has planned to its end. One use: construct, `run`, read the state."""

    def __init__(self, state: RunState, progress: Callable[[RunState], None] = lambda state: None) -> None:
        self.state, self.plan, self.progress = state, state.plan, progress
        self._stuck, self._looked = 0.0, float("-inf")
        request = state.plan.request
        left_s = float("inf") if request.left_s is None else budget.find_usable_budget_s(request, request.left_s)
        self._until = state.started + left_s
        self.jobs = JobSource(state)
        self.lost_work = LostWork(state)
        self.fleet_changes = FleetChanges(state, self.lost_work)
        self.second_opinions = SecondOpinions(state, self.fleet_changes)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every planned case has its row. Raises OSError when the lake cannot be written to.

        Whatever ends it, rows that have arrived are flushed first if they can be.
        """
        try:
            self.progress(self.state)
            while time.monotonic() < self._until + budget.GRACE_S:
                if time.monotonic() < self._until:
                    self._fill()
                elif not any(flight.begun for flight in self.state.flights.values()):
                    break
                if self.state.flights:
                    self._stuck = 0.0
                elif self._waits_for_node():
                    time.sleep(0.1)  # for a node to come
                else:
                    break
                for handle, message in self.plan.executor.poll(0.2):
                    self._handle_job_event(handle, message)
                    self._show()  # a job in this very process says all that it has to say within one poll
                self._give_up_silent_jobs()
                self.fleet_changes.look()
                self._show()
            if time.monotonic() >= self._until:
                self._leave_out()
        finally:
            self.state.row_writer.flush()
            self.progress(self.state)
            self.state.supports.save()

    def _leave_out(self) -> None:
        """The budget is spent: what has not been done is left out. Nothing is, where everything is done."""
        self.state.left_out.update(budget.count_undone_cases(self.state))
        for count in self.state.run_counts.counts.values():
            count.planned = count.done
        self.state.run_groups.left = dict.fromkeys(self.state.run_groups.left, 0)
        for handle in self.state.flights:
            self.plan.executor.cancel(handle)

    def _show(self) -> None:
        """Rows to the lake and figures to the screen, as often as is good for them. Raises OSError."""
        self.state.row_writer.flush_if_due()
        self.progress(self.state)

    def _waits_for_node(self) -> bool:
        """Whether there is work for which a node may still come. Raises OSError when there is none for preparing."""
        if any(offer.awaited for offer in self.plan.offers.values()):
            return True
        if any(self.state.case_queue.waits(b) for b in self.fleet_changes.waited_for):
            return True
        if not any(self.state.run_groups.left.values()):
            return False
        now = time.monotonic()
        self._stuck = self._stuck or now
        if now - self._stuck > self.plan.request.config.node_wait_s:
            raise OSError("no node with a CPU is left to prepare cases on")
        return self.plan.executor.slots(None, ONE) == 0

    def _fill(self) -> None:
        """Submit until every pool has about two jobs per device under way."""
        for pool in self.state.placement.pools():
            while (load := self.state.flights.loads[pool.name]) < 2 * pool.devices - 1e-9:
                flight = self.jobs.next(pool, load < pool.devices, self.state.flights.preparing)
                if flight is None:
                    break
                flight.pool = pool.name
                self._submit(flight)

    def _submit(self, flight: JobFlight) -> int | None:
        """Hand a job to the executor; its handle, None if no node is left that may do it."""
        to = self.state.placement.destination(flight)
        if to is None:
            return None
        flight.job = replace(flight.job, avoid=to.avoid)
        flight.load = to.claim.size
        flight.heard = flight.began = time.monotonic()
        joint = len(flight.cases) if to.offer is not None and to.offer.joint else 1
        job = flight.job
        steps = count_silent_deadlines((x.group for x in job.prepare or job.export), (x.group for x in job.run), joint)
        deadline_s = flight.job.deadline_s or self.plan.request.config.deadline_s
        flight.patience_s = SILENCE_S + deadline_s * (steps + 1 + STARVED)
        handle = self.plan.executor.submit(flight.job, to.offer, to.claim, to.among)
        flight.among = tuple(self.plan.executor.nodes_of(handle)) or tuple(to.among)
        self.state.flights[handle] = flight
        return handle

    def _give_up_silent_jobs(self) -> None:
        now = time.monotonic()
        if now - self._looked < 1.0:
            return
        self._looked = now
        for handle, flight in self.state.flights.items():
            if flight.begun and now - flight.heard > flight.patience_s:
                flight.heard = now
                self.plan.executor.cancel(handle)

    # --- what comes back --------------------------------------------------------------------------------------------

    def _handle_job_event(self, handle: int, event: Any) -> None:
        """A message of a job; None or an exception at its end."""
        ended = event is None or isinstance(event, BaseException)
        flight = self.state.flights.get(handle)
        if flight is None:  # it held a device, and was called back
            if ended:
                self.second_opinions.forget_job(handle)
            return
        flight.heard = time.monotonic()
        if not ended:
            self._take_job_message(handle, flight, event)
            return
        del self.state.flights[handle]
        self.state.run_counts.spend_slot(flight, flight.kind)
        self.second_opinions.release_devices(handle)
        # A stream can end early without an error: what was not heard of is done again.
        left = flight.remaining
        if flight.gone and flight.backend < 0:
            self.lost_work.not_begun(flight, left)
        elif flight.gone:
            self.fleet_changes.device_gone(flight, left)
        elif left and (flight.moved or isinstance(event, Unplaced)):
            self.lost_work.requeue(flight, left)
        elif left and not flight.asked:
            why = "its stream ended early" if event is None else str(event)
            for g, failure in self.lost_work.lost(flight, left, why):
                self._take_failed_group(flight, g, failure)

    def _take_job_message(self, handle: int, flight: JobFlight, message: Any) -> None:
        if isinstance(message, wire.Rows):
            if flight.asked:
                self.second_opinions.came(flight, message)
            else:
                self._take_rows(flight, message)
        elif isinstance(message, (wire.Prepared, wire.Exported, wire.Failed)):
            self._take_group(flight, message)
        elif isinstance(message, wire.Begun):
            flight.begun, flight.place = True, message.place
            flight.began = flight.counted = time.monotonic()
            self.second_opinions.release_devices(handle)
        elif isinstance(message, wire.Avoided):
            del self.state.flights[handle]
            self.second_opinions.hold_device(handle, flight, self._submit)
            self.lost_work.requeue(flight, list(range(len(flight.cases))))
        elif isinstance(message, wire.Spent):
            self.state.run_counts.spend(
                self.plan.name(flight.backend) if flight.backend >= 0 else f"({flight.job.kind})", message
            )
        elif isinstance(message, wire.Gone):
            flight.gone = message.why
        elif isinstance(message, wire.Sick):
            self.fleet_changes.sick(flight.backend, flight.place, message.why)
        elif isinstance(message, wire.Stopped):
            raise OSError(f"the cache of prepared cases: {message.why}")
        else:
            raise TypeError(f"no message of a supervisor: {message!r}")

    def _take_group(self, flight: JobFlight, message: wire.Prepared | wire.Exported | wire.Failed) -> None:
        if message.number in flight.done:
            return
        self.state.run_counts.spend_slot(flight, int(flight.kinds[message.number]))
        flight.done.add(message.number)
        self.state.run_groups.learn_group_time(flight)
        g = flight.groups[message.number]
        if isinstance(message, wire.Failed):
            self._take_failed_group(flight, g, message.failure)
        elif isinstance(message, wire.Exported):
            self.state.run_groups.store_exported(g, message)
            self._take_exported_group(g)
        else:
            self.state.run_groups.store_prepared(g, message)
            self._take_prepared_group(g)

    def _take_failed_group(self, flight: JobFlight, g: int, failure: Failure) -> None:
        """A group cannot be prepared: it has its rows; or not be exported: its cases are run, and say so."""
        if flight.job.export:
            self._take_exported_group(g)
            return
        self.state.run_groups.end_preparing(g)
        self.lost_work.fail_group(g, failure)
        self.state.case_queue.group_came(g)

    def _take_prepared_group(self, g: int) -> None:
        self.state.run_groups.end_preparing(g)
        backends = range(len(self.plan.matrix.backends))
        left = [self.state.run_groups.positions(g, b) for b in backends]
        self.state.run_counts.to_do += self.plan.work_of([g], np.array([[len(positions) for positions in left]]))
        for b, positions in enumerate(left):
            if total := self.state.run_groups.rows(g, b):
                self.state.run_counts.count_planned(b, total, total - len(positions))
            tried = self.state.before.gone.get((g, b), {}) if self.state.before.gone else {}
            for position in positions if tried else ():
                self.state.run_counts.note_attempts(
                    CaseRef(g, b, position), tried.get(self.state.run_groups.samples[g][position], 0)
                )
        for b, gone in enumerate(self.state.placement.gone):
            if gone:
                self.lost_work.fail_absent_backend(g, b)
        waiting = self.state.run_groups.exporting[g]
        self._queue_group_cases(g, [b for b in backends if b not in waiting and left[b]])
        if any(self.state.placement.available[b] and left[b] for b in waiting):
            self.state.run_groups.left["export"] += 1
            self.state.run_groups.queues["export"].append(g)
        self.state.case_queue.group_came(g)

    def _take_exported_group(self, g: int) -> None:
        self.state.run_groups.end_exporting()
        self._queue_group_cases(g, self.state.run_groups.exporting[g])

    def _queue_group_cases(self, g: int, backends: Collection[int]) -> None:
        """The group's cases can be run by some backends, or become rows where one has gone since."""
        for b in backends:
            if self.state.placement.available[b]:
                if positions := self.state.run_groups.positions(g, b):
                    self.state.case_queue.add_prepared(b, (g, positions))
            elif self.state.placement.gone[b]:
                self.lost_work.fail_absent_backend(g, b)

    def _take_rows(self, flight: JobFlight, rows: wire.Rows) -> None:
        b = flight.backend
        if flight.moved and self.state.placement.is_sick(b, flight.place):
            return  # on their way when the device was quarantined: these cases are run again elsewhere
        fresh = flight.done.isdisjoint(rows.numbers)
        new = range(len(rows.numbers)) if fresh else [k for k, n in enumerate(rows.numbers) if n not in flight.done]
        # Of cases that came together, those that take longest have taken the time.
        self.state.run_counts.spend_slot(flight, int(flight.kinds[list(rows.numbers)].max(initial=0)))
        flight.done.update(rows.numbers)
        for k in new if self.state.run_counts.again else ():
            self.state.run_counts.uncount_replaced(flight.cases[rows.numbers[k]])
        self.state.run_counts.did[b] += flight.measure_part([rows.numbers[k] for k in new])
        self.second_opinions.rows_came(flight, rows, len(new))
        batches = lakes.read_row_stream(rows.stream)
        if len(new) < len(rows.numbers):
            batches = [pa.RecordBatch.from_struct_array(b.to_struct_array().take(pa.array(new))) for b in batches]
        more = beside.read_beside_stream(rows.trace) + beside.read_beside_stream(rows.passports)
        self.state.row_writer.keep(b, batches, rows.status, rows.busy_ms, more)
        if Status.UNSUPPORTED.value in rows.status:
            self.state.supports.learn(flight, [rows.numbers[k] for k in new], batches)
