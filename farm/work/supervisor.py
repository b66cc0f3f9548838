"""The Ray task that owns one child process: runs a job's work in it, survives its deaths, assigns the blame."""

from __future__ import annotations

import collections
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.fleet import envs, scratch_folders, visible_devices
from farm.fleet.child_process import KILLS, ChildDeath
from farm.lake import Origin, beside, make_row_stream, read_row_stream
from farm.work.child_pool import POOL, PooledChildren
from farm.work.culprits import is_culprit_sought, localise_in_children
from farm.work.job import Job
from farm.work.sequences import MOST, SequenceDoubt, find_sequence_culprits
from tasks import wire
from tasks.canary import EVERY_S
from tasks.catalogs.base import Failure
from tasks.model import FAILED, Status
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, list_prepared_columns
from tasks.wire import Bad, Done, ToRun

#: Seconds and rows after which collected rows are handed on.
CHUNK_S, CHUNK_ROWS = 0.1, 1000
#: Deaths of a child in a row, without a case in flight, after which its backend is given up.
STRIKES = 3
#: Deaths in cases of a batch after which a submission's others are not run; and hangs, of which each takes a whole
#: deadline.
DEATHS, HANGS = 2, 1
#: Seconds between two tries of a new child whose device cannot be had: a driver may be resetting it.
PAUSES = (0.5, 2.0)
#: Failures in a row on a device after which a new child asks, once a batch, whether it is still there.
STREAK = 25
#: Statuses of a case that ran and failed, in which a device may show that it is sick.
FAILING = tuple(s.value for s in FAILED)
#: Kind of a crash: what is left of a process whose memory a case has overwritten.
SPOILT = "spoilt"
#: Characters of an error's text that travel beside its row.
EVIDENCE = 300


class CannotRun(Exception):
    """A batch cannot be run here; ``message`` says it to the dispatcher, its text is the backend's or the disk's
    reason."""

    def __init__(self, message: wire.Gone | wire.Sick | wire.Stopped) -> None:
        super().__init__(message.why)
        self.message = message


def run_supervised_job_items(job: Job, children: PooledChildren = POOL) -> Iterator[Any]:
    """Do a job in children of ``children`` (default: this process's pool of child processes).

    Yields messages of `tasks.wire` for the dispatcher: Rows of a batch; Prepared, Exported or Failed for each group; of
    a device that is screened Ready, what was Observed, and the Death of each process that died; Stopped when no job can
    be done here, Gone when the backend's device cannot be had or somebody kills every child before it begins, Sick when
    the device computes otherwise than it did; at the end Spent.
    """
    try:
        work = {"batch": _run_job_batch, "screen": _screen_device_in_child}.get(job.kind, _run_group_jobs)
        yield from work(job, children)
    except CannotRun as end:
        yield end.message
    yield children.take_costs()


def run_batch_here(job: Job) -> Iterator[dict[str, Any]]:
    """The rows of a batch that is run here and now, as dicts by column. Raises CannotRun."""
    for message in run_supervised_job_items(job):
        if isinstance(message, (wire.Gone, wire.Sick, wire.Stopped)):
            raise CannotRun(message)
        if isinstance(message, wire.Rows):
            for batch in read_row_stream(message.stream):
                yield from batch.to_pylist()


def _get_job_child(job: Job, children: PooledChildren) -> tuple[Any, wire.Ready | wire.Refused] | ChildDeath:
    """As `Children.get`. Raises CannotRun where its environment cannot be had here."""
    try:
        return children.get(job)
    except envs.EnvError as error:
        raise CannotRun(wire.Gone(str(error))) from None


# --- preparing and exporting ----------------------------------------------------------------------------------------


def _run_group_jobs(job: Job, children: PooledChildren) -> Iterator[Any]:
    """Prepare or export: a sample that kills the child is remembered as bad and its group done again."""
    items: list[Any] = list(job.prepare or job.export)
    command = wire.Prepare if job.prepare else wire.Export
    done: set[int] = set()
    kills = collections.Counter[tuple[int, int]]()
    strikes = 0
    while len(done) < len(items):
        got = _get_job_child(job, children)
        death: ChildDeath | None = got if isinstance(got, ChildDeath) else None
        if not isinstance(got, ChildDeath):
            for message in got[0].call(command(tuple(items), job.cache, tuple(sorted(done)))):
                if isinstance(message, ChildDeath):
                    death = message
                elif isinstance(message, wire.Stopped):
                    raise CannotRun(message)
                elif not isinstance(message, wire.Answer):
                    done.add(message.number)
                    strikes = 0
                    yield message
        if death is None:
            children.recycle(job)
            continue
        children.forget(job)
        number = death.number
        if number < 0 or number in done or death.stage == "idle":
            strikes += 1
            if strikes >= STRIKES and death.was_killed:
                raise CannotRun(wire.Gone(f"{STRIKES} processes died before they began: {death.text}"))
            if strikes >= STRIKES:
                yield from (
                    wire.Failed(n, _make_failed_group(job, n, death)) for n in sorted(set(range(len(items))) - done)
                )
                return
        elif _is_unexplained_kill(death, kills, (number, death.sample)):
            continue
        elif len(items[number].bad) >= STRIKES:
            done.add(number)
            yield wire.Failed(number, _make_failed_group(job, number, death))
        else:
            why = (
                replace(_make_failed_group(job, number, death), error=f"not exported: {death.text}")
                if job.export
                else None
            )
            bad = Bad(death.sample, why or _make_failed_group(job, number, death))
            items[number] = replace(items[number], bad=(*items[number].bad, bad))


def _is_unexplained_kill(death: ChildDeath, kills: collections.Counter[Any], work: Any) -> bool:
    """Whether a death is a SIGKILL that nobody is to blame for yet; ``kills``: how often the same work was in
    flight."""
    kills[work] += death.was_killed
    return death.was_killed and kills[work] < KILLS


def _make_failed_group(job: Job, number: int, death: ChildDeath) -> Failure:
    stage = "reference" if job.prepare else "export"
    label = (job.prepare or job.export)[number].group.label
    story = death.text.replace(f" at stage {death.stage}", "", 1)  # the stages are those of a case
    return Failure(Status.INVALID.value, stage, death.kind, f"while making the {stage} of {label}: {story}")


# --- screening a device ---------------------------------------------------------------------------------------------


def _screen_device_in_child(job: Job, children: PooledChildren) -> Iterator[Any]:
    """Screen a device: what its backend answered, what was seen of each exercise, and each death, whose exercise is
    left out then. Raises CannotRun."""
    command = job.screen
    assert command is not None
    for _ in range(STRIKES):
        got = _get_job_child(job, children)
        if isinstance(got, ChildDeath):
            raise CannotRun(wire.Gone(got.text))
        child, answer = got
        if isinstance(answer, wire.Refused):
            children.forget(job)
            raise CannotRun(wire.Gone(answer.reason))
        yield answer
        death = None
        for message in child.call(command, job.deadline_s or None):
            if isinstance(message, wire.Stopped):
                raise CannotRun(message)
            death = message if isinstance(message, ChildDeath) else None
            if not isinstance(message, wire.Answer):
                yield message
        if death is None:
            children.recycle(job)
            return
        children.forget(job)
        if death.number < 0:
            raise CannotRun(wire.Gone(death.text))
        command = replace(command, skip=(*command.skip, death.number))
    raise CannotRun(wire.Gone(f"its processes died in {STRIKES} exercises"))


# --- batches --------------------------------------------------------------------------------------------------------


def _run_job_batch(job: Job, children: PooledChildren) -> Iterator[wire.Rows | wire.Spent]:
    batch = _JobBatch(job)
    for number, words in job.known.items():
        told = {k: v for k, v in words.items() if k != "run"} | {"note": f"as answered in run {words['run']}"}
        batch.add(batch.settle(number, Status.UNSUPPORTED.value, told))
    try:
        while batch.remaining or batch.unsure:
            yield from _run_cases_in_child(batch, children)
        yield from _localise_held_rows(batch, children)
    except CannotRun as end:
        if isinstance(end.message, (wire.Gone, wire.Sick)):
            yield from batch.rest()
        raise
    yield from batch.rest()


def _run_cases_in_child(batch: _JobBatch, children: PooledChildren) -> Iterator[wire.Rows | wire.Spent]:
    """What one child makes of the cases that are left, until it ends or dies. Raises CannotRun."""
    job = batch.job
    got = _get_job_child(job, children)
    if isinstance(got, ChildDeath):
        children.forget(job)
        yield from _take_child_death(batch, got, SequenceDoubt(got.kind, got.stage, 0), children)
        return
    child, answer = got
    if isinstance(answer, wire.Refused):
        children.forget(job)  # the next child may find what this one did not
        if not batch.pauses:
            raise CannotRun(wire.Gone(answer.reason))
        time.sleep(batch.pauses.pop(0))
        yield children.take_costs()  # a sign of life: a hello may take minutes
        return
    batch.info = answer.info
    batch.answers(frozenset(answer.info.canary))
    streak = 0
    every_s = 0.0 if batch.changes else EVERY_S
    command = wire.Run(job.run, tuple(sorted(batch.done)), tuple(sorted(batch.solo)), every_s)
    for message in child.call(command, job.deadline_s or None):
        if isinstance(message, ChildDeath):
            children.forget(job)
            doubt = SequenceDoubt(
                message.kind,
                message.stage,
                child.served,
                tuple(item.alone(position) for item, position in child.before),
            )
            yield from _take_child_death(batch, message, doubt, children)
            return
        if isinstance(message, wire.Stopped):
            raise CannotRun(message)
        if isinstance(message, wire.Canary):
            if message.changed:
                children.forget(job)
                batch.reject_unsure(message.changed)
                yield children.take_costs()
                return
            batch.sure()
        if isinstance(message, Done):
            failed = message.row.status in FAILING
            if failed and batch.doubts_memory(message):
                children.forget(job)
                time.sleep(PAUSES[0])  # whoever shares the device may be done by then
                yield children.take_costs()
                return
            batch.strikes = 0
            streak = streak + 1 if failed else 0
            child.served += 1
            child.before[: 1 - MOST] = []
            child.before.append(batch.cases[message.number])
            if message.number in batch.doubted:
                message = batch.explain_acquittal(message)
            batch.add_confirmed(message, sought=batch.has_culprit(message))
        if batch.due():
            yield batch.flush()
        if streak >= STREAK and answer.info.device_vendor and not batch.asked_again:
            batch.asked_again = True
            children.forget(job)
            return
    if batch.remaining or not child.alive():
        children.forget(job)  # the runner asked to be replaced: its device is unusable
    children.recycle(job)


def _localise_held_rows(batch: _JobBatch, children: PooledChildren) -> Iterator[wire.Rows | wire.Spent]:
    """The rows that were held back, each with its culprit: one that is found now can be in the row, which is written
    once.

    It is looked for when all else of the batch is done, by children that are at hand: so nothing waits for it, and a
    death in a search is no case's.
    """
    while batch.held:
        done = batch.held[0]
        columns: dict[str, Any] = {}
        if batch.rows:
            yield batch.flush()
        doubt = batch.doubted.get(done.number)
        if isinstance(doubt, SequenceDoubt) and batch.in_sequence(done):
            found = yield from find_sequence_culprits(batch.job, batch.alone(done.number), doubt, children)
            told = doubt.make_columns(done.row.note, len(doubt.before), found)
            done = replace(done, row=done.row.with_values(told))
        if not is_culprit_sought(batch.job, done.row):
            batch.held.pop(0)
            batch.add(done)
            continue
        launcher = batch.job.backend.launcher if batch.job.backend else ()
        home = scratch_folders.make_folder_for_child(Path(batch.job.cache), launcher)
        with tempfile.TemporaryDirectory(prefix="localise-", dir=home) as folder:
            for message in localise_in_children(
                batch.job, batch.alone(done.number), batch.info, children, Path(folder)
            ):
                if isinstance(message, wire.Found):
                    columns = message.columns
                else:
                    yield message
        batch.held.pop(0)
        batch.add(replace(done, row=done.row.with_values(columns)))


def _take_child_death(
    batch: _JobBatch, death: ChildDeath, doubt: SequenceDoubt, children: PooledChildren
) -> Iterator[wire.Rows | wire.Spent]:
    """What a death says of the case that was in flight. Raises CannotRun after so many without one."""
    if death.number < 0 or death.number in batch.done or death.stage == "idle":
        batch.strikes += 1
        if batch.strikes >= STRIKES:
            raise CannotRun(wire.Gone(f"{STRIKES} processes died before their first case: {death.text}"))
        time.sleep(PAUSES[0])
        yield children.take_costs()
    elif not batch.doubts(death, doubt):
        for done in batch.dead(death):
            batch.add_confirmed(done)
            batch.give_up(death)
        if batch.rows:
            yield batch.flush()


class _JobBatch:
    """Bookkeeping of one batch: which case is which, what is done, how often each was started, rows not handed on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cases: list[tuple[ToRun, int]] = [(item, p) for item in job.run for p in item.positions]  # by number
        self.attempts = collections.Counter[int](job.attempts)
        self.done: set[int] = set()
        self.solo: set[int] = set()  # to be built by themselves
        self.doubted: dict[
            int, SequenceDoubt | str
        ] = {}  # crashed once, after others in the same process; or what is to be said
        self.kills = collections.Counter[int]()  # SIGKILLs, by the case in flight
        self.info = job.info
        self.strikes, self.pauses, self.asked_again = 0, list(PAUSES), False
        self.deaths = 0
        self.rows: list[Done] = []
        self.held: list[Done] = []  # whose culprit is still to be found
        self.watched = frozenset(job.info.canary)  # dtypes in which the device has given the known answers
        self.unsure: list[tuple[Done, bool]] = []  # rows since it last did, and whether their culprit is to be found
        self.changes = 0  # how often it did not
        self._spoils = collections.Counter[int]()  # right after a case alone, by that case
        self._since = time.monotonic()
        self._node = job.host or socket.gethostname()
        # Ray numbers no devices of a node's second vendor, and a run without Ray gives none by number.
        self._device = job.device or visible_devices.name_first_visible_device(job.backend, os.environ | job.env)

    @property
    def remaining(self) -> list[int]:
        return [n for n in range(len(self.cases)) if n not in self.done]

    def dead(self, death: ChildDeath) -> list[Done]:
        """Rows that a death settles: one case's, or none if it has to be found out first."""
        if death.together > 1:
            # Several were built in one go: once more, each by itself.
            unit = self.cases[death.number][0].group.unit
            together = [n for n in self.remaining if self.cases[n][0].group.unit == unit]
            self.solo |= set(together)
            self.attempts.update(together)
            self.kills.clear()  # what was one step is several now
            return []
        told = {"kind": death.kind, "stage": death.stage, "error_type": death.kind, "error": death.text}
        return [self.settle(death.number, death.status, told)]

    def give_up(self, death: ChildDeath) -> None:
        """After so many deaths of a submission, its other cases are not run: what dies at each would take minutes of
        everybody's time."""
        self.deaths += 1
        hangs = death.status == Status.TIMEOUT
        if not (self.job.backend and self.job.backend.kernel) or self.deaths < (HANGS if hangs else DEATHS):
            return
        told = {"kind": death.kind, "stage": death.stage, "error_type": death.kind, "error": death.text}
        told["note"] = f"not run: the submission {'hung' if hangs else 'died'}, in {self.deaths} of the cases before"
        for number in self.remaining:
            self.add_confirmed(self.settle(number, death.status, told))

    def alone(self, number: int) -> ToRun:
        """A case as an item of its own."""
        item, position = self.cases[number]
        return item.alone(position)

    def doubts(self, death: ChildDeath, doubt: SequenceDoubt) -> bool:
        """Whether a crash may not be its case's own: a SIGKILL may come from outside, the cases that the process had
        run before may have spoilt the memory that kills this one, or still hold some. It is then run again, first in a
        new process, and believed if that dies as well."""
        number = death.number
        if _is_unexplained_kill(death, self.kills, number):
            self.attempts[number] += 1
            return True
        if death.together > 1 or not doubt.served or number in self.doubted:
            return False
        if death.status == Status.OOM:
            self.doubted[number] = (
                f"{death.text.splitlines()[0]}, after {doubt.served} other cases; in a new process it does not"
            )
        elif death.status == Status.CRASH:
            self.doubted[number] = doubt
        else:
            return False
        self.attempts[number] += 1
        return True

    def doubts_memory(self, done: Done) -> bool:
        """Whether a device that is out of memory may be so for the sake of others: neighbours on it, and what the cases
        before left in a runtime's cache. The case is then run again first of all in a new process, and believed
        there."""
        if done.row.status != Status.OOM or not self.info.device_vendor or done.number in self.doubted:
            return False
        self.doubted[done.number] = "out of memory beside others at first; alone in a new process it is not"
        self.attempts[done.number] += 1
        return True

    def explain_acquittal(self, done: Done) -> Done:
        """The row of a case that was doubted, with what is to be said of a crash that was not its own."""
        story = self.doubted[done.number]
        if done.row.status == Status.OOM:
            return done
        if isinstance(story, SequenceDoubt):
            return replace(done, row=done.row.with_values(story.make_columns(done.row.note)))
        return replace(done, row=done.row.with_values({"note": "; ".join(filter(None, [done.row.note, story]))}))

    def in_sequence(self, done: Done) -> bool:
        """Whether the earlier case that a crash takes is looked for: when all else of the batch is done."""
        doubt = self.doubted.get(done.number)
        return isinstance(doubt, SequenceDoubt) and bool(doubt.before) and self.job.limits.localise_s > 0

    def settle(self, number: int, status: str, told: dict[str, Any]) -> Done:
        """The row of a case that its child could not write; ``told``: further columns."""
        item, position = self.cases[number]
        sample = PreparedGroup(Path(item.pack), item.group.check).samples[position]
        own = {"status": status, "policy": self.job.policy.id if self.job.policy else "", "started_at": time.time()}
        return Done(number, Row.of({**list_prepared_columns(sample), **own, **told}))

    # --- rows that are handed on in chunks ------------------------------------------------------------------------

    def add(self, done: Done) -> None:
        self.done.add(done.number)
        attempts = self.attempts[done.number] + 1
        self.rows.append(done if attempts == 1 else replace(done, row=done.row.with_values({"attempts": attempts})))

    def has_culprit(self, done: Done) -> bool:
        """Whether something else than the case as a whole may be to blame, and is looked for."""
        if done.number in self.doubted and self.in_sequence(done):
            return True
        return is_culprit_sought(self.job, done.row)

    def add_confirmed(self, done: Done, sought: bool = False) -> None:
        """`add`, when its device has given the known answers again. sought: when its culprit has been looked for as
        well."""
        self.done.add(done.number)
        self.unsure.append((done, sought))
        if not self.watched:
            self.sure()

    # --- whether the device still computes ----------------------------------------------------------------------------

    def sure(self) -> None:
        """The device has given the known answers again: what it did before is believed."""
        for done, sought in self.unsure:
            if sought:
                self.held.append(done)
            else:
                self.add(done)
        self.unsure = []

    def answers(self, dtypes: frozenset[str]) -> None:
        """A new process was given the known answers in ``dtypes``. Raises CannotRun where an earlier one was given
        more."""
        if lost := sorted(self.watched - dtypes):
            raise CannotRun(wire.Sick(f"it no longer gives the known answer of a small product in {', '.join(lost)}"))
        self.watched |= dtypes
        self.sure()

    def reject_unsure(self, why: str) -> None:
        """Other answers: nothing is believed that was done since the last right ones. From now on they are asked for
        after each case, for it may be a case that spoils its process, which is then its crash. Raises CannotRun if it
        is not."""
        numbers = [done.number for done, _ in self.unsure]
        self.unsure, self.changes = [], self.changes + 1
        self.done.difference_update(numbers)
        self.attempts.update(numbers)
        if len(numbers) == 1:
            self._spoils.update(numbers)
            if self._spoils[numbers[0]] > 1:
                text = f"after it, twice, its process no longer computes as before, and a new one does: {why}"
                told = {"kind": SPOILT, "stage": "run", "error_type": "", "error": text}
                self.changes = 1
                self.attempts.subtract(numbers)
                self.add_confirmed(self.settle(numbers[0], Status.CRASH.value, told))
        if self.changes >= STRIKES:
            raise CannotRun(wire.Sick(f"it has changed its answer of a small product {self.changes} times: {why}"))

    def due(self) -> bool:
        enough = len(self.rows) >= CHUNK_ROWS or time.monotonic() - self._since > (self.job.chunk_s or CHUNK_S)
        return bool(self.rows) and enough  # all that came may be held back

    def rest(self) -> Iterator[wire.Rows]:
        """What has not been handed on yet."""
        for done in self.held:
            self.add(done)
        self.held = []
        if self.rows:
            yield self.flush()

    def flush(self) -> wire.Rows:
        """The collected rows, as Arrow with the columns that the batch decides."""
        done, self.rows, self._since = self.rows, [], time.monotonic()
        rows = [d.row for d in done]
        name = self.job.backend.name if self.job.backend else ""
        origin = Origin.of(self.job.run_id, name, self.info, self._node, self._device)
        return wire.Rows(
            make_row_stream(rows, origin),
            tuple(d.number for d in done),
            dict(collections.Counter(r.status for r in rows)),
            (sum(r.build_ms or 0.0 for r in rows), sum(r.run_ms or 0.0 for r in rows)),
            tuple(
                wire.Failing(d.number, d.row.status, d.row.attempts, (d.row.error or "")[:EVIDENCE])
                for d in done
                if d.row.status in FAILING
            ),
            beside.TRACE.to_stream([(d.row, d.trace) for d in done], origin),
            beside.PASSPORTS.to_stream([(d.row, d.readings) for d in done], origin),
        )
