"""The culprit of a failing model: two child processes talk through this one, that of the search and the backend's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from farm.work.child_pool import PooledChildren
from farm.work.conversation import Ended, run_last_in_child, search_in_child
from farm.work.job import Job
from tasks import wire
from tasks.catalogs import get_generating_catalog
from tasks.model import BackendInfo, OpClass, Status
from tasks.model.kind import KIND_ACCEPTED
from tasks.model.row import Row
from tasks.searches import PATIENCE, find_hunt_search
from tasks.wire import Found, ToRun

#: Seconds that a step of a search may take beyond those of the whole search: the step is where its clock is looked at.
GRACE_S = 60.0
#: Statuses of a model that is localised.
SOUGHT = (Status.WRONG.value, Status.IMPRECISE.value)


def is_culprit_sought(job: Job, row: Row) -> bool:
    """Whether the culprit of a row is looked for by itself."""
    failed = row.status in SOUGHT and row.op_class == OpClass.MODEL.value and row.check == "forward"
    failed = failed and get_generating_catalog(row.catalog or "") is None  # a generated graph is made smaller instead
    failed = failed and row.kind != KIND_ACCEPTED  # there is nothing to compare
    failed = failed and not row.culprit  # its check has found it: the way in which the program was built
    failed = failed and find_hunt_search("Localise") is not None
    return failed and job.limits.localise_s > 0 and job.backend is not None


def localise_in_children(
    job: Job, item: ToRun, info: BackendInfo, children: PooledChildren, folder: Path
) -> Iterator[wire.Spent | Found]:
    """Search for the culprit of the case of ``item``, which failed on the job's backend; the last that is yielded is
    Found.

    info: what the backend answered to hello; folder: for packs, the caller's to remove. What dies or cannot be had ends
    the search with a reason: it never raises.
    """
    assert job.policy is not None
    seconds = job.limits.localise_s

    def run(wants: wire.Wants) -> wire.Tried:
        row = run_last_in_child(job, (wants.item,), children)
        if Path(wants.item.keep).exists():
            return wire.Tried()
        judged = Status(row.status) is not Status.LOST and not Status(row.status).deadly
        return wire.Tried(f"{row.status}: {row.error or row.kind}" if judged else str(row.error))

    what = wire.Localise(job.policy, seconds, info)
    for answer in search_in_child(job, what, item, folder, PATIENCE * seconds + GRACE_S, children, run):
        yield Found(error=answer.text) if isinstance(answer, Ended) else answer
