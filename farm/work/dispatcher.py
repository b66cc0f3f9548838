"""The loop of a run: keeps the slots full, takes in what comes back, until every planned case has its row."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from farm import lake as lakes
from farm.fleet.child_process import STARVED
from farm.fleet.health import CaseRef, Health
from farm.lake import traces
from farm.work import budget
from farm.work.accounts import Accounts
from farm.work.backlog import Backlog
from farm.work.claims import ONE
from farm.work.executor import Unplaced
from farm.work.jobs import Jobs
from farm.work.ledger import Ledger
from farm.work.losses import Losses
from farm.work.opinions import Opinions
from farm.work.outages import Outages
from farm.work.placement import Placement
from farm.work.state import Before, Flight, Flights, Plan
from farm.work.stock import Stock
from farm.work.supports import Supports
from tasks import wire
from tasks.catalogs.base import Failure
from tasks.model import Status

#: Seconds without a word, beyond the deadline, after which a supervisor is given up.
SILENCE_S = 120.0


class Dispatcher:
    """Runs a matrix to its end. One use: construct, `run`, read `accounts`.

    ``before``: what is in the lake already (a resumed run); ``had``: the backends that were available when the run began.
    """

    def __init__(
        self,
        plan: Plan,
        before: Before | None = None,
        had: Collection[str] = (),
        progress: Callable[[Dispatcher], None] = lambda d: None,
    ) -> None:
        self.plan = plan
        self.progress, self.started, self._stuck = progress, time.monotonic(), 0.0
        self._looked = float("-inf")
        left_s = plan.request.left_s
        self._until = float("inf") if left_s is None else self.started + budget.usable_s(plan.request, left_s)
        self.left_out: set[tuple[int, int]] = set()  # cells of which the end of the budget left cases out
        self.flights = Flights()
        self.health = Health()
        self.accounts, self._before = Accounts(plan), before or Before()
        self.ledger = Ledger(plan, self.accounts)
        self.placement = Placement(plan, self.health, had)
        there = [a or g for a, g in zip(self.placement.available, self.placement.gone)]
        self.stock = Stock(plan, there, self._before.done)
        self.backlog = Backlog(plan, self.stock.queues["prepare"])
        self.supports = Supports(plan, self.stock)
        self.jobs = Jobs(plan, self.stock, self.backlog, self.placement, self.accounts, self.supports, self.flights)
        self.losses = Losses(plan, self.stock, self.backlog, self.placement, self.accounts, self.ledger)
        self.outages = Outages(
            plan, self.health, self.placement, self.backlog, self.losses, self.supports, self.flights
        )
        self.opinions = Opinions(plan, self.health, self.placement, self.backlog, self.outages)

    def missing(self) -> Iterator[tuple[str, int]]:
        """(backend, cases) planned without a row; empty after a finished run."""
        yield from self.accounts.missing()
        if left := self.stock.left["prepare"]:
            yield "(not prepared)", left

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every planned case has its row. Raises OSError when the lake cannot be written to.

        Whatever ends it, rows that have arrived are flushed first if they can be.
        """
        try:
            self.progress(self)
            there, slots = np.flatnonzero(self.stock.wanted.any(axis=0)).tolist(), self.plan.executor.slots(None, ONE)
            offers = {b: self.plan.offer(b) for b in there}
            for b in [b for b, o in offers.items() if o.available and not o.info.exclusive][:slots]:
                self.plan.executor.expect(self.jobs.expected(b), self.plan.offer(b), self.plan.claim(b))
            while time.monotonic() < self._until + budget.GRACE_S:
                if time.monotonic() < self._until:
                    self._fill()
                elif not any(flight.begun for flight in self.flights.values()):
                    break
                if self.flights:
                    self._stuck = 0.0
                elif self._waits():
                    time.sleep(0.1)  # for a node to come
                else:
                    break
                for handle, message in self.plan.executor.poll(0.2):
                    self._handle(handle, message)
                    self._show()  # a job in this very process says all that it has to say within one poll
                self._give_up_silent()
                self.outages.look()
                self._show()
            self._leave_out()
        finally:
            self.ledger.flush()
            self.progress(self)
            self.supports.save()

    def _leave_out(self) -> None:
        """The budget is spent: what has not been done is left out. Nothing is, where everything is done."""
        if time.monotonic() < self._until:
            return
        self.left_out = budget.undone(self.stock, self.backlog, self.flights.values())
        for count in self.accounts.counts.values():
            count.planned = count.done
        self.stock.left = dict.fromkeys(self.stock.left, 0)
        for handle in self.flights:
            self.plan.executor.cancel(handle)

    def _show(self) -> None:
        """Rows to the lake and figures to the screen, as often as is good for them. Raises OSError."""
        self.ledger.flush_if_due()
        self.progress(self)

    def _waits(self) -> bool:
        """Whether there is work for which a node may still come. Raises OSError when there is none for preparing."""
        if any(offer.awaited for offer in self.plan.offers.values()):
            return True
        if any(self.backlog.waits(b) for b in self.outages.waited_for):
            return True
        if not any(self.stock.left.values()):
            return False
        now = time.monotonic()
        self._stuck = self._stuck or now
        if now - self._stuck > self.plan.config.node_wait_s:
            raise OSError("no node with a CPU is left to prepare cases on")
        return self.plan.executor.slots(None, ONE) == 0

    def _fill(self) -> None:
        """Submit until every pool has about two jobs per device under way."""
        for pool in self.placement.pools():
            while (load := self.flights.load(pool.name)) < 2 * pool.devices - 1e-9:
                flight = self.jobs.next(pool, load < pool.devices, self.flights.preparing)
                if flight is None:
                    break
                flight.pool = pool.name
                self._submit(flight)

    def _submit(self, flight: Flight) -> int | None:
        """Hand a job to the executor; its handle, None if no node is left that may do it."""
        to = self.placement.destination(flight)
        if to is None:
            return None
        flight.job = replace(flight.job, avoid=to.avoid)
        flight.load = to.claim.size
        flight.heard = flight.began = time.monotonic()
        steps = len(flight.cases) if to.offer is not None and to.offer.joint else 1
        for g in flight.groups:  # a group is one message, whatever number of samples
            steps = max(steps, self.plan.matrix.groups[g].samples)
        deadline_s = flight.job.deadline_s or self.plan.config.deadline_s
        flight.patience_s = SILENCE_S + deadline_s * (steps + 1 + STARVED)
        handle = self.plan.executor.submit(flight.job, to.offer, to.claim, to.among)
        flight.among = tuple(self.plan.executor.nodes_of(handle)) or tuple(to.among)
        self.flights[handle] = flight
        return handle

    def _give_up_silent(self) -> None:
        now = time.monotonic()
        if now - self._looked < 1.0:
            return
        self._looked = now
        for handle, flight in self.flights.items():
            if flight.begun and now - flight.heard > flight.patience_s:
                flight.heard = now
                self.plan.executor.cancel(handle)

    # --- what comes back --------------------------------------------------------------------------------------------

    def _handle(self, handle: int, event: Any) -> None:
        """A message of a job; None or an exception at its end."""
        ended = event is None or isinstance(event, BaseException)
        flight = self.flights.get(handle)
        if flight is None:  # it held a device, and was called back
            if ended:
                self.opinions.ended(handle)
            return
        flight.heard = time.monotonic()
        if not ended:
            self._heard(handle, flight, event)
            return
        del self.flights[handle]
        self.opinions.begun(handle)
        # A stream can end early without an error: what was not heard of is done again.
        left = flight.left
        if flight.gone and flight.backend < 0:
            self.losses.not_begun(flight, left)
        elif flight.gone:
            self.outages.device_gone(flight, left)
        elif left and (flight.moved or isinstance(event, Unplaced)):
            self.losses.requeue(flight, left)
        elif left and not flight.asked:
            why = "its stream ended early" if event is None else str(event)
            for g, failure in self.losses.lost(flight, left, why):
                self._group_failed(flight, g, failure)

    def _heard(self, handle: int, flight: Flight, message: Any) -> None:
        if isinstance(message, wire.Rows):
            if flight.asked:
                self.opinions.came(flight, message)
            else:
                self._rows_came(flight, message)
        elif isinstance(message, (wire.Prepared, wire.Exported, wire.Failed)):
            self._group_came(flight, message)
        elif isinstance(message, wire.Begun):
            flight.begun, flight.began, flight.place = True, time.monotonic(), message.place
            self.opinions.begun(handle)
        elif isinstance(message, wire.Avoided):
            del self.flights[handle]
            self.opinions.avoided(handle, flight, self._submit)
            self.losses.requeue(flight, list(range(len(flight.cases))))
        elif isinstance(message, wire.Spent):
            self.accounts.spend(
                self.plan.name(flight.backend) if flight.backend >= 0 else f"({flight.job.kind})", message
            )
        elif isinstance(message, wire.Gone):
            flight.gone = message.why
        elif isinstance(message, wire.Sick):
            self.outages.sick(flight.backend, flight.place, message.why)
        elif isinstance(message, wire.Stopped):
            raise OSError(f"the cache of prepared cases: {message.why}")
        else:
            raise TypeError(f"no message of a supervisor: {message!r}")

    def _group_came(self, flight: Flight, message: wire.Prepared | wire.Exported | wire.Failed) -> None:
        if message.number in flight.done:
            return
        flight.done.add(message.number)
        self.stock.timed(flight)
        g = flight.groups[message.number]
        if isinstance(message, wire.Failed):
            self._group_failed(flight, g, message.failure)
        elif isinstance(message, wire.Exported):
            self.stock.exported(g, message)
            self._group_exported(g)
        else:
            self.stock.prepared(g, message)
            self._group_prepared(g)

    def _group_failed(self, flight: Flight, g: int, failure: Failure) -> None:
        """A group cannot be prepared: it has its rows; or not be exported: its cases are run, and say so."""
        if flight.job.export:
            self._group_exported(g)
            return
        self.stock.left["prepare"] -= 1
        self.losses.unprepared(g, failure)
        self.backlog.group_came(g)

    def _group_prepared(self, g: int) -> None:
        self.stock.left["prepare"] -= 1
        backends = range(len(self.plan.backends))
        left = [self.stock.positions(g, b) for b in backends]
        for b, positions in enumerate(left):
            if total := self.stock.rows(g, b):
                self.accounts.planned(b, total, total - len(positions))
            tried = self._before.gone.get((g, b), {}) if self._before.gone else {}
            for position in positions if tried else ():
                self.accounts.tried(CaseRef(g, b, position), tried.get(self.stock.samples[g][position], 0))
        for b, gone in enumerate(self.placement.gone):
            if gone:
                self.losses.gone(g, b)
        waiting = self.stock.to_export(g)
        self._can_run(g, [b for b in backends if b not in waiting and left[b]])
        if any(self.placement.available[b] and left[b] for b in waiting):
            self.stock.left["export"] += 1
            self.stock.queues["export"].append(g)
        self.backlog.group_came(g)

    def _group_exported(self, g: int) -> None:
        self.stock.left["export"] -= 1
        self._can_run(g, self.stock.exports(g))

    def _can_run(self, g: int, backends: Collection[int]) -> None:
        """The group's cases can be run by some backends, or become rows where one has gone since."""
        for b in backends:
            if self.placement.available[b]:
                if positions := self.stock.positions(g, b):
                    self.backlog.add_prepared(b, (g, positions))
            elif self.placement.gone[b]:
                self.losses.gone(g, b)

    def _rows_came(self, flight: Flight, rows: wire.Rows) -> None:
        b = flight.backend
        if flight.moved and self.placement.is_sick(b, flight.place):
            return  # on their way when the device was quarantined: these cases are run again elsewhere
        fresh = flight.done.isdisjoint(rows.numbers)
        new = range(len(rows.numbers)) if fresh else [k for k, n in enumerate(rows.numbers) if n not in flight.done]
        flight.done.update(rows.numbers)
        for k in new if self.accounts.again else ():
            self.accounts.replaced(flight.cases[rows.numbers[k]])
        self.opinions.rows_came(flight, rows, len(new))
        batches = lakes.from_stream(rows.stream)
        if len(new) < len(rows.numbers):
            batches = [pa.RecordBatch.from_struct_array(b.to_struct_array().take(pa.array(new))) for b in batches]
        self.ledger.keep(b, batches, rows.status, rows.busy_ms, traces.from_stream(rows.trace))
        if Status.UNSUPPORTED.value in rows.status:
            self.supports.learn(flight, [rows.numbers[k] for k in new], batches)
