"""What becomes of work that a job did not finish: queued again, run in a job of its own, or settled by a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from farm.fleet.health import CaseRef
from farm.work.run_groups import WHOLE
from farm.work.run_state import RunState
from farm.work.state import JobFlight, group_planned_cases
from tasks.catalogs.base import Failure
from tasks.model import Status
from tasks.model.row import NAMES
from tasks.prepare.cases import PreparedGroup, list_prepared_columns
from tasks.wire import Failing

#: Losses of a supervisor at which what was in flight is run in smaller and smaller jobs, and losses of one that had
#: nothing else in flight at which that is recorded as the cause: whoever kills processes at random must not hit it so
#: often.
SUSPECT, ALONE = 2, 4
#: So many preparing or exporting jobs in a row of which somebody kills every process before it begins: the run stops.
#: From so many losses of a case on those count that had not begun.
NOT_BEGUN = 10
#: Into so many jobs the work is split that was in flight at one loss less.
PARTS = 8


class LostWork:
    """Blames nobody for a lost supervisor until the same work was in flight alone."""

    def __init__(self, state: RunState) -> None:
        self._state, self._plan = state, state.plan
        self._told: set[tuple[int, int]] = set()  # (group, backend) that have rows because the backend is gone
        self._stood, self._not_begun = dict(state.run_groups.left), 0
        self._unprepared: list[tuple[int, Failure]] = []

    def requeue(self, flight: JobFlight, left: list[int]) -> None:
        """Queue a job's work again, which nobody is to blame for."""
        if flight.asked:
            return
        if flight.backend < 0:
            self._state.run_groups.queues[flight.job.kind].extendleft(flight.groups[n] for n in left)
            return
        for g, positions in group_planned_cases(flight.cases[number] for number in left):
            self.again(flight.backend, g, positions)

    def not_begun(self, flight: JobFlight, left: list[int]) -> None:
        """Queue groups again that no process came to. Raises OSError if no group is had between so many such jobs."""
        if self._state.run_groups.left != self._stood:
            self._stood, self._not_begun = dict(self._state.run_groups.left), 0
        self._not_begun += 1
        if self._not_begun >= NOT_BEGUN:
            raise OSError(f"no process lives long enough to prepare cases ({flight.gone}); is memory short?")
        self.requeue(flight, left)

    def again(self, b: int, g: int, positions: Sequence[int]) -> None:
        """Run cases again if their backend is still there."""
        if self._state.placement.available[b]:
            self._state.case_queue.add(b, (g, positions))
        else:
            self.unavailable(b, g, positions)

    def run_again(self, failures: Mapping[CaseRef, Failing]) -> None:
        """Run again what failed on a device that is sick; the new row takes the place of the old one."""
        for case, failed in failures.items():
            self._state.run_counts.again[case] = failed
            self.again(case.backend, case.group, [case.position])

    def lost(self, flight: JobFlight, left: list[int], why: str) -> list[tuple[int, Failure]]:
        """A supervisor is gone: its work is queued again, what was in flight at two such losses in smaller and smaller
        jobs. Returns the groups that cannot be had, with the story."""
        kind, b = flight.job.kind, flight.backend
        self._state.run_counts.supervisors_lost += 1
        work = flight.cases or [CaseRef(g, -1, 0 if kind == "prepare" else 1) for g in flight.groups]
        again: list[CaseRef] = []
        suspects: list[CaseRef] = []
        for one in (work[number] for number in left):
            times = self._state.run_counts.lost(one)
            # A process that was killed while it started had nothing in flight; one that never starts must come to an
            # end.
            alone = len(work) == 1 and (flight.begun or times >= NOT_BEGUN)
            if alone and self._state.run_counts.lost_alone(one) >= ALONE:
                return self._blame_cases(flight, one, times, why)
            (again if times < SUSPECT else suspects).append(one)
        size = -(-len(suspects) // PARTS) or 1
        for part in (suspects[at : at + size] for at in range(0, len(suspects), size)):
            if b < 0:
                self._state.run_groups.suspects[kind].append([one.group for one in part])
            elif self._state.placement.available[b]:
                self._state.case_queue.isolated[b].append(part)
            else:
                again += part
        if b < 0:
            self._state.run_groups.queues[kind].extendleft(one.group for one in again)
        for g, positions in group_planned_cases(again) if b >= 0 else ():
            self.again(b, g, positions)
        return []

    def _blame_cases(self, flight: JobFlight, one: CaseRef, times: int, why: str) -> list[tuple[int, Failure]]:
        if flight.backend < 0:
            story = _describe_lost_work("in work", times, why)
            return [(one.group, Failure(Status.INVALID.value, flight.job.kind, "lost", story))]
        told = {
            "status": Status.CRASH.value,
            "kind": "supervisor lost",
            "stage": "run",
            "error_type": "",
            "error": _describe_lost_work("in flight", times, why),
            "attempts": self._state.run_counts.attempts(one),
        }
        self._write_lost_case_row(one, self._state.run_groups.group(one.group), told)
        return []

    def _write_lost_case_row(self, case: CaseRef, group: PreparedGroup, told: dict[str, Any]) -> None:
        """The row of a case that no process could report."""
        self._state.run_counts.uncount_replaced(case)
        self._state.row_writer.write(case.backend, list_prepared_columns(group.samples[case.position]) | told)

    def fail_group(self, g: int, failure: Failure) -> None:
        """One row per backend of a group that could not be prepared at all; of one that is awaited, when it is
        there."""
        self._state.run_groups.samples[g] = [WHOLE]
        self._unprepared.append((g, failure))
        for b in range(len(self._plan.matrix.backends)):
            if not self._plan.offer(b).awaited:
                self._write_unprepared_rows(b, g, failure)

    def _write_unprepared_rows(self, b: int, g: int, failure: Failure) -> None:
        if self._state.run_groups.wanted[g, b]:
            left = len(self._state.run_groups.positions(g, b))
            total = self._state.run_groups.rows(g, b)
            self._state.run_counts.count_planned(b, total, total - left)
            if left:
                told = {name: value for name, value in asdict(failure).items() if name in NAMES}
                row = {"sample": WHOLE, "digest": "", "shapes": "", **told}
                self._state.row_writer.write(b, self._plan.matrix.groups[g].columns | row)

    def there(self, b: int) -> None:
        """A backend that was awaited is there."""
        for g, failure in self._unprepared:
            self._write_unprepared_rows(b, g, failure)

    def never_there(self, b: int) -> None:
        """A backend that was awaited has no part in the run."""
        for _ in self._state.case_queue.drain(b):
            pass
        self._state.run_counts.count(b).planned = 0
        for g in self._state.run_groups.without(b):
            self._state.case_queue.group_came(g)

    def fail_absent_backend(self, g: int, b: int) -> None:
        """Rows of a group's cases on a backend that went away after the run had begun; once."""
        if (g, b) not in self._told:
            self._told.add((g, b))
            self.unavailable(b, g, self._state.run_groups.positions(g, b))

    def unavailable(self, b: int, g: int, positions: Iterable[int]) -> None:
        """Rows of cases whose backend went away."""
        prepared: PreparedGroup | None = None
        for position in positions:
            prepared = prepared or self._state.run_groups.group(g)
            case = CaseRef(g, b, position)
            told = {
                "status": Status.UNAVAILABLE.value,
                "stage": "",
                "error_type": "",
                "error": f"available when the run began, gone since: {self._plan.offer(b).reason}",
                "attempts": self._state.run_counts.attempts(case) + 1,
            }
            self._write_lost_case_row(case, prepared, told)


def _describe_lost_work(what: str, times: int, why: str) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(times if times < 20 else times % 10, "th")
    return f"the only one {what} when its supervisor died a {times}{ending} time: {why}"
