"""A search in one child process and what it wants run in another talk through this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farm.fleet import envs
from farm.fleet.child_process import ChildDeath
from farm.work.child_pool import PooledChildren, list_imports_of_job
from farm.work.job import Job
from tasks import wire
from tasks.model import Status
from tasks.model.row import Row
from tasks.wire import ToRun


@dataclass(frozen=True)
class Ended:
    """A search that came to no end of its own; the text says why."""

    text: str


def search_in_child(
    job: Job,
    what: wire.Localise | wire.Minimise,
    item: ToRun,
    folder: Path,
    step_s: float,
    children: PooledChildren,
    run: Callable[[wire.Wants], wire.Tried],
) -> Iterator[wire.Spent | wire.Found | Ended]:
    """Search over the case of ``item``, which failed on the job's backend, in a child of the farm's own, and run what
    it wants.

    Yields Spent after each step, and at the end Found, or Ended. folder: for packs, the caller's to remove; step_s:
    seconds that a step of the search may take. run: may raise EnvError.
    """
    assert job.backend is not None
    seeker = _make_search_job(job, type(what).__name__.lower(), item)
    said: wire.Search | wire.Tried = wire.Search(what, item, job.backend, str(folder))
    try:
        while True:
            got = children.get(seeker)
            if isinstance(got, ChildDeath):
                yield Ended(f"the search could not be started: {got.text}")
                return
            answer = got[0].ask(said, step_s)
            if not isinstance(answer, wire.Wants):
                break
            yield children.take_costs()
            said = run(answer)
            yield children.take_costs()
    except envs.EnvError as error:
        yield Ended(str(error))
        return
    if isinstance(answer, ChildDeath):
        children.forget(seeker)
        answer = Ended(f"the search died: {answer.text}")
    elif isinstance(answer, wire.Stopped):
        answer = Ended(answer.why)
    children.recycle(seeker)
    yield answer


def _make_search_job(job: Job, what: str, item: ToRun) -> Job:
    """The job whose child searches, by what a case of another job shows: it reads the same forms, and imports the
    same."""
    imports = list_imports_of_job(replace(job, run=(item,))) or ()
    prepare = (wire.ToPrepare(item.group),)
    return replace(job, name=f"{what} {item.group.label}", run=(), backend=None, prepare=prepare, imports=imports)


def run_last_in_child(job: Job, items: Sequence[ToRun], children: PooledChildren) -> Row:
    """What came of the last of some cases that the job's child runs one after another; of one that it did not come to,
    a row of status "lost" that says why. Nobody asks whether a death is the case's own. Raises EnvError."""
    last = sum(len(item.positions) for item in items) - 1
    got = children.get(job)
    if isinstance(got, ChildDeath):
        children.forget(job)
        return _make_lost_row(items[-1], got.text)
    child, answer = got
    if isinstance(answer, wire.Refused):
        children.forget(job)
        return _make_lost_row(items[-1], answer.reason)
    row = _make_lost_row(items[-1], "it was not run")
    for message in child.call(wire.Run(tuple(items), solo=(0,) if len(items) == 1 else ())):
        if isinstance(message, ChildDeath):
            row = row.with_values({"error": message.text})
            if message.number == last:
                told = {"status": message.status, "kind": message.kind, "stage": message.stage}
                row = row.with_values(told | {"error_type": message.kind})
        elif isinstance(message, wire.Stopped):
            row = row.with_values({"error": message.why})
        elif isinstance(message, wire.Done) and message.number == last:
            row = message.row
    if not child.alive():
        children.forget(job)
    return row


def _make_lost_row(item: ToRun, why: str) -> Row:
    told = {"status": Status.LOST.value, "started_at": 0.0, "error": why}
    return Row.of({"op": item.group.op, "dtype": item.group.dtype, **told})
