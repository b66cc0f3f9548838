"""Second opinions: what fails on one device is run on another before either is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from farm import lake as lakes
from farm.work.fleet_changes import FleetChanges
from farm.work.run_state import RunState
from farm.work.state import DeviceDoubt, JobFlight
from tasks.model import Status
from tasks.wire import Rows


class SecondOpinions:
    """Asks for them, weighs them, and keeps the devices that must not give them busy meanwhile."""

    def __init__(self, state: RunState, fleet_changes: FleetChanges) -> None:
        self._state, self._plan, self._fleet_changes = state, state.plan, fleet_changes
        self._held: dict[int, int | None] = {}  # job that holds a device nobody is to be given → until which one begins

    def rows_came(self, flight: JobFlight, rows: Rows, new: int) -> None:
        """Count what a device did, and ask about what it failed."""
        b, place = flight.backend, flight.place
        self._state.health.count_rows(b, place, new)
        if rows.failing and self._state.placement.elsewhere(b, place) is not None:
            for failing in rows.failing:
                case = flight.cases[failing.number]
                if self._state.health.note_failure(case, place, failing):
                    self._state.case_queue.doubts[b].append(DeviceDoubt(case, place, failing))

    def came(self, flight: JobFlight, rows: Rows) -> None:
        """Weigh what another device made of cases that failed on one; that one may be sick."""
        b = flight.backend
        flight.done.update(rows.numbers)
        found = pa.Table.from_batches(lakes.read_row_stream(rows.stream)).to_pylist()
        for number, row in zip(rows.numbers, found):
            doubt, status = flight.asked[number], Status(row["status"])
            if self._state.placement.is_sick(b, doubt.place) or status in (Status.UNAVAILABLE, Status.UNSUPPORTED):
                continue
            if self._state.health.opinion(
                doubt.case, doubt.place, flight.place, status.passed, self._describe_device_evidence(doubt, row)
            ):
                self._fleet_changes.sick(b, doubt.place, "it fails what other devices pass")

    def _describe_device_evidence(self, doubt: DeviceDoubt, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "case_id": row["case_id"],
            "backend": self._plan.name(doubt.case.backend),
            "status": doubt.failing.status,
            "error": doubt.failing.error,
            "elsewhere": row["status"],
            "on": " ".join(filter(None, [row["node"], row["device_ids"]])),
        }

    # --- devices that are held ----------------------------------------------------------------------------------------

    def hold_device(self, handle: int, flight: JobFlight, submit: Callable[[JobFlight], int | None]) -> None:
        """A job came to a device it was to avoid, and holds it: as long as it does, nobody is sent there.
        ``submit`` sends a job, and returns its handle.

        It may hold a share alone, and Ray gives the next job another share of a device that has been begun: those that
        held one until this job began go on holding it, until the device is full.
        """
        before = [holding for holding, until in self._held.items() if until == handle]
        others = any(until is not None for holding, until in self._held.items() if holding not in before)
        again = submit(flight) if flight.asked and not others else None  # two would wait for each other
        self._held |= dict.fromkeys([*before, handle], again)
        if again is None and flight.asked:
            for holding in (*before, handle):
                self._plan.executor.cancel(holding)

    def release_devices(self, handle: int) -> None:
        """A job began or ended: end those that held a device until then."""
        for holding, until in list(self._held.items()):
            if until == handle:
                self._held[holding] = None
                self._plan.executor.cancel(holding)

    def forget_job(self, handle: int) -> None:
        """A job that is not flying any more is gone; it may have held a device."""
        self._held.pop(handle, None)
