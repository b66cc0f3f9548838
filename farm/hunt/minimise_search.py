"""A failing case made small: one child process searches, those of the backend run what it wants, a crash starts a new one."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.hunt.earlier_cases import EarlierCases
from farm.reproduction.find_case import ReproduceError, StoredCase
from farm.reproduction.run_again import ask_backend_of_case, make_job_of_case
from farm.work.child_pool import POOL
from farm.work.conversation import Ended, run_last_in_child, search_in_child
from farm.work.job import Job
from farm.work.supervisor import CannotRun, run_batch_here
from tasks import wire
from tasks.model import Status
from tasks.model.row import NAMES, Row
from tasks.wire import Found, ToRun, Wants

#: Seconds that a step of the search may take: a few references.
STEP_S = 120.0
#: Seconds after which a case that hangs is taken to hang, while it is made smaller: so many times what sound cases of
#: its backend have taken, within these bounds. At the end it has its whole deadline.
TIMES, LEAST_S, HANG_S = 5.0, 1.0, 10.0

#: Told of each run: how many there were, and its status.
Told = Callable[[int, str], None]


def choose_step_limit_s(sound_s: float, hung: int, hangs: bool = False) -> float:
    """Seconds that a step may take where one that ends takes ``sound_s`` and ``hung`` have hung. hangs: whether the
    stored case does; where it does not, the first to hang is waited for as long as any, each other half as long as the
    one before."""
    if hangs:
        return min(max(TIMES * sound_s, LEAST_S), HANG_S)
    return max(TIMES * sound_s, HANG_S / 2**hung, LEAST_S)


@dataclass
class MinimiseRunner:
    """Runs what a search wants. job: of the stored case; earlier: those before it in its process; sound_s: what a case
    that ends takes, None where nobody knows; hangs: whether the stored one does; runs, hung: so far, and how many of
    them hung."""

    job: Job
    earlier: EarlierCases | None
    sound_s: float | None
    told: Told
    hangs: bool = True
    runs: int = 0
    hung: int = 0

    def __call__(self, wants: Wants) -> wire.Tried:
        self.runs += 1
        job = self._impatient() if self.sound_s is not None and not wants.patient else self.job
        if wants.fresh:
            POOL.forget(job)
        row = self._after(wants) if wants.before else self._alone(job, wants.item)
        if self.sound_s is not None and row.status != Status.TIMEOUT:
            self.sound_s = max(self.sound_s, ((row.build_ms or 0.0) + (row.run_ms or 0.0)) / 1e3)
        self.hung += row.status == Status.TIMEOUT
        self.told(self.runs, row.status)
        return wire.Tried(row=row)

    def _impatient(self) -> Job:
        longest = choose_step_limit_s(self.sound_s or 0.0, self.hung, self.hangs)
        return replace(self.job, deadline_s=min(longest, self.job.limits.deadline_s))

    def _alone(self, job: Job, item: ToRun) -> Row:
        """A crash counts if it is one in a process that has run nothing before (`farm.work.supervisor`)."""
        try:
            return make_row_of_minimal(list(run_batch_here(replace(job, run=(item,))))[-1])
        except CannotRun as error:
            raise ReproduceError(f"the backend no longer runs: {error}") from None

    def _after(self, wants: Wants) -> Row:
        """The row of a case that is run after others in a process of their own."""
        assert self.earlier is not None
        POOL.forget(self.job)
        row = run_last_in_child(self.job, [*(self.earlier[number] for number in wants.before), wants.item], POOL)
        POOL.forget(self.job)
        return row


def make_row_of_minimal(values: Mapping[str, Any]) -> Row:
    """A row of the lake as its case's outcome."""
    found = {name: value for name, value in values.items() if name in NAMES}
    begun = found.get("started_at")
    found["started_at"] = begun.timestamp() if isinstance(begun, datetime.datetime) else 0.0
    return Row.of(found)


def make_job_to_minimise(case: StoredCase) -> Job:
    """The job that runs a case as its run did, without a search for its culprit."""
    return make_job_of_case(case, case.asked, localise_s=0.0)


def find_version_to_minimise(case: StoredCase) -> str:
    """Version of the backend's runtime as it is here. Raises ReproduceError where it cannot be had."""
    return ask_backend_of_case(case, make_job_to_minimise(case)).info.runtime.runtime_version


def run_minimise_search(
    case: StoredCase,
    strategy: str,
    budget: int,
    folder: Path,
    earlier: EarlierCases | None = None,
    sound_s: float | None = None,
) -> tuple[Found, float]:
    """(what the search came to, seconds that it took). folder: for packs, the minimal case's stays; sound_s: what cases
    that end take. Raises ReproduceError."""
    began, job = time.monotonic(), make_job_to_minimise(case)
    runner = MinimiseRunner(job, earlier, sound_s, _print_search_progress, case.row["status"] == Status.TIMEOUT)
    what = wire.Minimise(make_row_of_minimal(case.row), strategy, budget, len(earlier or ()))
    *_, answer = search_in_child(job, what, case.asked, folder, STEP_S, POOL, runner)
    if sys.stderr.isatty():
        print(f"\r{' ' * 60}\r", end="", file=sys.stderr, flush=True)
    if isinstance(answer, Ended):
        raise ReproduceError(f"nothing was reduced: {answer.text}")
    assert isinstance(answer, Found)
    return answer, time.monotonic() - began


def _print_search_progress(runs: int, status: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{runs} runs, the last one {status}        ", end="", file=sys.stderr, flush=True)
