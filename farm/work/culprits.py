"""The culprit of a failing model: two child processes talk through this one, that of the search and the backend's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.fleet.child_process import Death
from farm.work.child_pool import Children, imports_of
from farm.work.conversation import Ended, conversation
from farm.work.job import Job
from tasks import wire
from tasks.catalogs import is_generated
from tasks.model import BackendInfo, OpClass, Status
from tasks.model.kind import KIND_ACCEPTED
from tasks.model.row import Row
from tasks.searches import PATIENCE, find_search
from tasks.wire import Located, ToRun

#: Seconds that a step of a search may take beyond those of the whole search: the step is where its clock is looked at.
GRACE_S = 60.0
#: Statuses of a model that is localised.
SOUGHT = (Status.WRONG.value, Status.IMPRECISE.value)


def is_sought(job: Job, row: Row) -> bool:
    """Whether the culprit of a row is looked for by itself."""
    failed = row.op_class == OpClass.MODEL.value and row.status in SOUGHT and row.check == "forward"
    failed = failed and not is_generated(row.catalog or "")  # a generated graph is made smaller instead
    failed = failed and row.kind != KIND_ACCEPTED  # there is nothing to compare
    failed = failed and not row.culprit  # its check has found it: the way in which the program was built
    failed = failed and find_search("Localise") is not None
    return failed and job.limits.localise_s > 0 and job.backend is not None


def seeker_of(job: Job, what: str, item: ToRun) -> Job:
    """The job whose child searches, by what a case of another job shows: it reads the same forms, and imports the same."""
    imports = imports_of(replace(job, run=(item,))) or ()
    prepare = (wire.ToPrepare(item.group),)
    return replace(job, name=f"{what} {item.group.label}", run=(), backend=None, prepare=prepare, imports=imports)


def localise(
    job: Job, item: ToRun, info: BackendInfo, children: Children, folder: Path
) -> Iterator[wire.Spent | Located]:
    """Search for the culprit of the case of ``item``, which failed on the job's backend; the last that is yielded is Located.

    info: what the backend answered to hello; folder: for packs, the caller's to remove. What dies or cannot be had ends
    the search with a reason: it never raises.
    """
    assert job.backend is not None and job.policy is not None
    seeker = seeker_of(job, "localise", item)
    seconds = job.limits.localise_s
    said: Any = wire.Localise(item, job.backend, job.policy, str(folder), seconds, info)

    def run(wants: wire.Wants) -> wire.Tried:
        return wire.Tried(_run_item(job, wants.item, children))

    for answer in conversation(seeker, said, PATIENCE * seconds + GRACE_S, children, run):
        if isinstance(answer, Ended):
            yield Located(error=answer.text)
        else:
            yield answer


def _run_item(job: Job, item: ToRun, children: Children) -> str:
    """Run what a search wants on the backend; "" or why there are no outputs. Raises EnvError."""
    got = children.get(job)
    if isinstance(got, Death):
        children.forget(job)
        return got.text
    child, answer = got
    if isinstance(answer, wire.Refused):
        children.forget(job)
        return answer.reason
    said = "it gave no outputs"
    for message in child.call(wire.Run((item,), (), (0,))):
        if isinstance(message, Death):
            children.forget(job)
            return message.text
        if isinstance(message, wire.Stopped):
            return message.why
        if isinstance(message, wire.Done):
            said = f"{message.row.status}: {message.row.error or message.row.kind}"
    if not child.alive():
        children.forget(job)
    return "" if Path(item.keep).exists() else said
