"""Which devices are sick: what fails on one and passes on another is evidence against it.

No device is judged by its failures alone, which may be the kernels'. Some of them are run again elsewhere (a second
opinion); only a device that fails what others pass, time and again, is quarantined.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tasks.wire import Failing, Place

#: Of the last OPINIONS second opinions on a device, so many must have passed what it failed; and such failures must be
#: TIMES as frequent there as on the devices that passed them, where a kernel that fails now and then fails as often.
OPINIONS, AGAINST, TIMES = 4, 3, 4.0
#: The first failures of a backend on a device are asked about, and then each of so many; again after one against it.
EAGER, THEN = 4, 16
#: How often a device must have been gone in a new child before that is believed, with so few rows between.
GONE, GONE_ROWS = 2, 500
#: Pieces of evidence kept in the run's record.
KEPT = 8


class CaseRef(NamedTuple):
    """A planned case: (number of the group, number of the backend, position in the prepared group)."""

    group: int
    backend: int
    position: int


@dataclass
class _DeviceChart:
    """What is known of one backend on one device."""

    failures: dict[CaseRef, Failing] = field(default_factory=dict)
    rows: int = 0
    asked: int = 0  # second opinions
    answered: int = 0
    against: int = 0  # answers that passed what failed here
    eager: int = EAGER
    since: int = 0
    opinions: deque[bool] = field(default_factory=lambda: deque(maxlen=OPINIONS))  # True: it passed elsewhere
    evidence: list[dict[str, Any]] = field(default_factory=list)
    witnesses: set[Place] = field(default_factory=set)  # devices that passed what failed here
    given: int = 0  # opinions that this device gave on others, and those of them that agreed with the failure
    agreed: int = 0
    gone: int = 0
    gone_at: float = 0.0  # when, and after how many rows
    gone_rows: int = 0


class DeviceHealth:
    """Evidence on every device of a run, by scope: a vendor's label for its devices (whatever the backend), the
    backend's name for what is sick in it alone."""

    def __init__(self) -> None:
        self.sick: dict[str, set[Place]] = {}
        self.records: list[dict[str, Any]] = []  # for the run's record, in order
        self._charts = defaultdict[tuple[int, Place], _DeviceChart](_DeviceChart)

    def is_sick(self, scopes: tuple[str, ...], place: Place) -> bool:
        """Whether a device, or its whole node, is quarantined in any of the scopes."""
        whole = Place(place.node, "")
        return any(place in self.sick.get(s, ()) or whole in self.sick.get(s, ()) for s in scopes)

    def sick_on(self, scopes: tuple[str, ...], node: str) -> set[str]:
        """The devices of a node that are quarantined; "" among them: all."""
        return {p.device for s in scopes for p in self.sick.get(s, ()) if p.node == node}

    def count_rows(self, backend: int, place: Place, rows: int) -> None:
        """Count what a device has done for a backend."""
        self._charts[backend, place].rows += rows

    def rows(self, backend: int, place: Place) -> int:
        """How many rows a backend has made on a device."""
        return self._charts[backend, place].rows

    def note_failure(self, case: CaseRef, place: Place, failure: Failing) -> bool:
        """Note a failure; whether a second opinion on it is due."""
        chart = self._charts[case.backend, place]
        chart.failures[case] = failure
        chart.since += 1
        if chart.eager > 0:
            chart.eager -= 1
        elif chart.since < THEN:
            return False
        chart.since = 0
        chart.asked += 1
        return True

    def opinion(self, case: CaseRef, place: Place, witness: Place, passed: bool, evidence: Mapping[str, Any]) -> bool:
        """Note what ``witness`` made of a case that failed on ``place``; whether ``place`` is to be quarantined."""
        chart, other = self._charts[case.backend, place], self._charts[case.backend, witness]
        chart.opinions.append(passed)
        chart.answered += 1
        other.given += 1
        other.agreed += not passed
        if passed:
            chart.eager, chart.against = EAGER, chart.against + 1
            chart.evidence = [*chart.evidence, dict(evidence)][-KEPT:]
            chart.witnesses.add(witness)
        if sum(chart.opinions) < AGAINST:
            return False
        # Not all other devices: a second sick one would make the failures look usual.
        others = [c for p in chart.witnesses if (c := self._charts.get((case.backend, p)))]
        # What the others have been asked about and not answered may count against them.
        doubtful = sum(c.against + c.asked - c.answered for c in others) + 1
        share = doubtful / (sum(c.asked for c in others) + 1)
        usual = (
            share * (sum(len(c.failures) + c.agreed for c in others) + 1) / (sum(c.rows + c.given for c in others) + 1)
        )
        return chart.against / chart.answered * len(chart.failures) / max(chart.rows, 1) >= TIMES * usual

    def note_absence(self, backend: int, place: Place, began: float) -> bool:
        """Note that a backend's device was not there for a new child of a job that ``began`` then (monotonic seconds);
        whether that is believed by now. Jobs side by side see one incident; one long ago counts no more."""
        chart = self._charts[backend, place]
        if chart.gone and began < chart.gone_at:
            return chart.gone >= GONE
        if chart.rows - chart.gone_rows > GONE_ROWS:
            chart.gone = 0
        chart.gone, chart.gone_at, chart.gone_rows = chart.gone + 1, time.monotonic(), chart.rows
        return chart.gone >= GONE

    def quarantine(
        self, scope: str, place: Place, backends: Mapping[int, str], record: dict[str, Any]
    ) -> dict[CaseRef, Failing]:
        """Close a device for a scope; the failures it caused there, to be run again elsewhere.

        backends: names of those the scope covers, by number in the plan.
        """
        self.sick.setdefault(scope, set()).add(place)
        found: dict[CaseRef, Failing] = {}
        evidence: list[dict[str, Any]] = []
        for b in backends:
            if chart := self._charts.pop((b, place), None):
                found |= chart.failures
                evidence += chart.evidence
        self.records.append(
            record | {"backends": list(backends.values()), "failures": len(found), "evidence": evidence[-KEPT:]}
        )
        return found
