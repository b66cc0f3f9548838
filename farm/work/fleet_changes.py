"""Nodes and devices that come, go and fall sick while a run goes on."""

from __future__ import annotations

import datetime
import time
from typing import Any

from farm.fleet.inventory import Answers, BackendOffer
from farm.work.lost_work import LostWork
from farm.work.run_state import RunState
from farm.work.state import JobFlight
from tasks.wire import Place, Refused

#: Seconds until a backend without a device is asked again, each time; without a row in between it is given up then.
REST_S = (3.0, 15.0)
#: What a new node has answered of a backend that was not asked about.
NOT_ASKED = Refused("it was not asked")


class FleetChanges:
    """Keeps the offers true, and moves the work of what is gone."""

    def __init__(self, state: RunState, lost_work: LostWork) -> None:
        self._state, self._plan, self._lost_work = state, state.plan, lost_work
        self._vanished: dict[int, float] = {}  # backend without a node → since when
        self._rests: dict[int, tuple[int, int]] = {}  # backend → how often it was put off, and after how many rows

    @property
    def waited_for(self) -> list[int]:
        """Backends whose last node has left, and one may still come, and those that are asked again later."""
        return [*self._vanished, *self._state.placement.resting]

    def call_back(self, handle: int, flight: JobFlight) -> None:
        """End a job; its cases count no loss."""
        if not flight.moved:
            flight.moved = True
            self._plan.executor.cancel(handle)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in what has become of the cluster's nodes, and what backends that were awaited have answered."""
        for offer in self._plan.late():
            self._admit_awaited(offer)
        changes = self._plan.executor.changes()
        for node in changes.gone:
            self._drop_node(node)
        for node, answers in changes.come.items():
            self._add_node(node, answers)
        if changes.gone or changes.come:
            self._state.placement.forget_layout()
            for handle, flight in self._state.flights.items():
                if not flight.begun and flight.among and not self._state.placement.has_room(flight):
                    self.call_back(handle, flight)  # the nodes that are left cannot take it
        now = time.monotonic()
        wait_s = self._plan.request.config.node_wait_s
        for b, available in enumerate(self._state.placement.available):
            if not available or self._state.placement.nodes(b) or self._plan.offer(b).awaited:
                self._vanished.pop(b, None)
            elif now - self._vanished.setdefault(b, now) >= wait_s:
                del self._vanished[b]
                why = self._plan.offer(b).too_few or "the last node that offered it left"
                self.bury(b, f"{why}, and no other joined within {wait_s:g} s")

    def _admit_awaited(self, offer: BackendOffer) -> None:
        """A backend that was awaited is there, or is not: then it has no part in the run."""
        b = [s.name for s in self._plan.matrix.backends].index(offer.name)
        self._plan.offers[offer.name] = offer
        self._state.come.append(offer)
        self._state.placement.forget_layout()
        if offer.available:
            self._state.supports.there(b)
            self._lost_work.there(b)
        else:
            self._state.placement.available[b] = False
            self._lost_work.never_there(b)

    def _drop_node(self, node: str) -> None:
        offers = self._plan.offers.values()
        hosts = {h for o in offers for i, h in zip(o.node_ids, o.nodes) if i == node}
        self._state.notices.append(f"node {', '.join(hosts) or node} left")
        for offer in offers:
            offer.dismiss(node)

    def _add_node(self, node: str, answers: Answers) -> None:
        found = next((n for n in self._plan.executor.nodes if n["id"] == node), None)
        if found is None:
            return
        new = [o.name for o in self._plan.offers.values() if not self._admit_node(o, found, answers)]
        for b in range(len(self._plan.matrix.backends)):
            if self._plan.name(b) in new:
                self._state.supports.another_host(b, found["host"])
        self._state.notices.append(f"node {found['host']} joined with {', '.join(new) or 'no backends'}")

    def _admit_node(self, offer: BackendOffer, node: dict[str, Any], answers: Answers) -> str:
        """`Offer.admit`, but for a node whose products are coarser than those of any node that the run began with."""
        answer = answers.get(offer.name, NOT_ASKED)
        runtime = None if isinstance(answer, Refused) else answer.runtime
        if runtime and runtime.of_products and not any(x.of_products for x in self._plan.offers.values()):
            why = f"its {runtime.compute_precision} products are not prepared for; a run that begins with it has them"
            self._state.notices.append(f"{offer.name} is not run on node {node['host']}: {why}")
            return why
        return offer.admit(node, answer)

    # --- devices ----------------------------------------------------------------------------------------------------

    def device_gone(self, flight: JobFlight, left: list[int]) -> None:
        """A new child of a backend did not find its device: elsewhere it may be there."""
        b, place = flight.backend, flight.place
        believed = self._state.placement.available[b] and self._state.health.note_absence(b, place, flight.began)
        if believed and not self._state.placement.is_sick(b, place):
            if self._state.placement.elsewhere(b, place, alike=False) is None:
                self._put_off_backend(b, place, flight.gone)
            else:
                self.quarantine(self._plan.name(b), place, f"a new process cannot find it: {flight.gone}")
        elif not believed and self._state.placement.available[b]:
            notice = (
                f"a new process of {self._plan.name(b)} cannot find {self._describe_place(place, 'its device on ')}: {flight.gone}; "
                "rerunning the rest of its cases"
            )
            if notice not in self._state.notices:
                self._state.notices.append(notice)
        self._lost_work.requeue(flight, left)

    def _put_off_backend(self, b: int, place: Place, why: str) -> None:
        """The only device of a backend is not there: it may be again in a moment."""
        if time.monotonic() < self._state.placement.resting.get(b, 0.0):
            return  # jobs side by side see one incident
        rows = self._state.health.rows(b, place)
        times, before = self._rests.get(b, (0, rows))
        times = times if rows == before else 0
        if times >= len(REST_S):
            self.bury(b, f"{why} (probed again {times} times)")
            return
        self._rests[b] = times + 1, rows
        self._state.placement.resting[b] = time.monotonic() + REST_S[times]
        self._state.notices.append(f"{self._plan.name(b)} will be probed again in {REST_S[times]:g} s: {why}")

    def sick(self, b: int, place: Place, why: str) -> None:
        """A device is not to be believed, whatever the backend. Jobs side by side see one incident."""
        if not self._state.placement.is_sick(b, place):
            offer = self._plan.offer(b)
            self.quarantine(offer.device_vendor or offer.name, place, why)

    def quarantine(self, scope: str, place: Place, why: str) -> None:
        """Give a device no more jobs; what it failed is run again elsewhere, and that row counts."""
        numbers = range(len(self._plan.matrix.backends))
        covered = {b: self._plan.name(b) for b in numbers if scope in self._state.placement.scopes(b)}
        record = {
            "scope": scope,
            "node": self._find_host_of_node(place),
            "node_id": place.node,
            "device": place.device,
            "why": why,
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        failures = self._state.health.quarantine(scope, place, covered, record)
        self._lost_work.run_again(failures)
        self._state.placement.forget_layout()
        for handle, flight in self._state.flights.items():
            if flight.backend in covered and _may_run_on(flight, place):
                self.call_back(handle, flight)
        what = self._describe_place(place)
        self._state.notices.append(
            f"quarantined: {what} for {', '.join(covered.values())}: {why}; "
            f"{len(failures)} of its failures will be rerun elsewhere"
        )
        for b in covered:
            if self._state.placement.available[b] and not self._state.placement.nodes(b):
                many = "all" if self._plan.offer(b).ranks == 1 else "too many of"
                self.bury(b, f"{many} its devices are quarantined, the last one, {what}, because {why}")

    def _find_host_of_node(self, place: Place) -> str:
        return next((n["host"] for n in self._plan.executor.nodes if n["id"] == place.node), place.node)

    def _describe_place(self, place: Place, unnumbered: str = "") -> str:
        """A device, or a whole node, for people; unnumbered: in front of the node, where it is a device without a
        number."""
        return (
            f"device {place.device} of {self._find_host_of_node(place)}"
            if place.device
            else f"{unnumbered}{self._find_host_of_node(place)}"
        )

    def bury(self, b: int, why: str) -> None:
        """A backend is gone for good: what is left of its cells becomes rows that say so."""
        self._state.placement.available[b], self._state.placement.gone[b], self._plan.offer(b).reason = False, True, why
        self._state.notices.append(f"{self._plan.name(b)} is no longer available: {why}")
        self._state.placement.forget_layout()
        for handle, flight in self._state.flights.items():
            if flight.backend == b:
                self.call_back(handle, flight)
        for g, positions in self._state.case_queue.drain(b):
            self._lost_work.unavailable(b, g, positions)


def _may_run_on(flight: JobFlight, place: Place) -> bool:
    """Whether a job runs on a device, or may still come to it."""
    whole = Place(flight.place.node, "")
    return place in (flight.place, whole) if flight.begun else place.node in flight.among
