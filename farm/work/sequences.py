"""A crash that does not come alone: which of the cases that its process had run before it left behind what kills it."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.fleet import envs
from farm.work.child_pool import PooledChildren
from farm.work.conversation import run_last_in_child
from farm.work.job import Job
from tasks import wire
from tasks.ddmin import shrink_to_fewest
from tasks.model import Status
from tasks.prepare.cases import PreparedGroup
from tasks.wire import ToRun

#: The last cases of a process that are looked at; processes that a search may take.
MOST, TRIES = 20, 30


@dataclass(frozen=True)
class SequenceDoubt:
    """What may not be a case's own: kind, stage of the death; served: cases that the process had run before; before:
    the last of them, in their order."""

    kind: str
    stage: str
    served: int
    before: tuple[ToRun, ...] = ()

    def make_columns(self, note: str | None, looked: int = 0, after: Sequence[str] = ()) -> dict[str, str]:
        """Columns of its row. note: what it says already; looked: how many earlier cases were run before it again;
        after: ids of those that it takes."""
        said = (
            f"a process that had run {self.served} other cases died of {self.kind} at stage {self.stage} in this one; first in a "
            "process it does not"
        )
        found = f", after {' and '.join(after)} it does" if after else ""
        found = found or (f", nor after the last {looked} of them" if looked else "")
        kept = (note or "").replace(said, "").removesuffix("; ")
        crash = {"kind": self.kind, "stage": self.stage, "after": list(after)}
        return {"note": "; ".join(filter(None, [kept, said + found])), "crash_after": json.dumps(crash)}


def read_sequence_crash(row: Mapping[str, Any]) -> tuple[str, str, list[str]] | None:
    """(kind, stage, ids of the earlier cases that it takes) of a crash that does not come alone; None where the row
    tells of none."""
    told = row.get("crash_after")
    if not told:
        return None
    crash = json.loads(told)
    return crash["kind"], crash["stage"], crash["after"]


def find_sequence_culprits(
    job: Job, item: ToRun, doubt: SequenceDoubt, children: PooledChildren
) -> Generator[wire.Spent, None, list[str]]:
    """Run the case after those before it, and after ever fewer of them, in processes of their own. Returns the ids of
    those that it takes, none where it does not die after all of them either."""
    tries = 0

    def ask_parts(places: list[int]) -> Generator[list[int], bool, bool]:
        return (yield places)

    def dies(places: Sequence[int]) -> bool:
        return _dies_after_cases(job, [doubt.before[place] for place in places], item, doubt.kind, children)

    everything = list(range(len(doubt.before)))
    again = dies(everything)
    yield children.take_costs()
    if not again:
        return []
    left, search = everything, shrink_to_fewest(everything, ask_parts)
    try:
        places = next(search)
        while tries < TRIES:
            tries += 1
            again = dies(places)
            left = places if again else left
            yield children.take_costs()
            places = search.send(again)
    except StopIteration as end:
        left = end.value
    return [_name_case_of_item(doubt.before[place]) for place in left]


def _dies_after_cases(job: Job, before: Sequence[ToRun], item: ToRun, kind: str, children: PooledChildren) -> bool:
    """Whether a new process that runs some cases and then this one dies in this one, as it did."""
    children.forget(job)
    try:
        row = run_last_in_child(job, (*before, item), children)
    except envs.EnvError:
        return False
    children.forget(job)
    return Status(row.status).deadly and row.kind == kind


def _name_case_of_item(item: ToRun) -> str:
    """The id of the case of an item of one."""
    return item.group.case_id(PreparedGroup(item.pack, item.group.check).samples[item.positions[0]].index)
