"""A crash that does not come alone: which of the cases that its process had run before it left behind what kills it."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from farm.fleet import envs
from farm.fleet.child_process import Death
from farm.work.child_pool import Children
from farm.work.job import Job
from tasks import wire
from tasks.minimise.parts import fewest
from tasks.prepare.cases import PreparedGroup
from tasks.wire import ToRun

#: The last cases of a process that are looked at; processes that a search may take.
MOST, TRIES = 20, 30
#: What `Doubt.told` says of a crash, and of the cases that it takes, as `crash_of` reads it again.
_AND = " and "
_STORY = re.compile(
    r"had run \d+ other cases died of (\w+) at stage (\w+) in this one; first in a process it does not(?:, after (.+?) it does)?"
)


@dataclass(frozen=True)
class Doubt:
    """What may not be a case's own: kind, stage of the death; served: cases that the process had run before; before: the last
    of them, in their order."""

    kind: str
    stage: str
    served: int
    before: tuple[ToRun, ...] = ()

    def told(self, found: str = "") -> str:
        """What its row says. found: of `culprits`."""
        return (
            f"a process that had run {self.served} other cases died of {self.kind} at stage {self.stage} in this one; first in a "
            f"process it does not{found}"
        )


def crash_of(flags: str) -> tuple[str, str, list[str]] | None:
    """(kind, stage, ids of the earlier cases that it takes) of a crash that ``flags`` of a row tell of; None where they do not."""
    found = _STORY.search(flags)
    return (found[1], found[2], found[3].split(_AND) if found[3] else []) if found else None


def culprits(job: Job, item: ToRun, doubt: Doubt, children: Children) -> Generator[wire.Spent, None, str]:
    """Run the case after those before it, and after ever fewer of them, in processes of their own. Returns what is to be said."""
    tries = 0

    def asked(places: list[int]) -> Generator[list[int], bool, bool]:
        return (yield places)

    def dies(places: Sequence[int]) -> bool:
        return _dies(job, [doubt.before[place] for place in places], item, doubt.kind, children)

    everything = list(range(len(doubt.before)))
    again = dies(everything)
    yield children.spent()
    if not again:
        return f", nor after the last {len(everything)} of them"
    left, search = everything, fewest(everything, asked)
    try:
        places = next(search)
        while tries < TRIES:
            tries += 1
            again = dies(places)
            left = places if again else left
            yield children.spent()
            places = search.send(again)
    except StopIteration as end:
        left = end.value
    return f", after {_AND.join(_name(doubt.before[place]) for place in left)} it does"


def _dies(job: Job, before: Sequence[ToRun], item: ToRun, kind: str, children: Children) -> bool:
    """Whether a new process that runs some cases and then this one dies in this one, as it did."""
    children.forget(job)
    try:
        got = children.get(job)
    except envs.EnvError:
        return False
    died = False
    if not isinstance(got, Death) and isinstance(got[1], wire.Ready):
        for message in got[0].call(wire.Run((*before, item))):
            died = isinstance(message, Death) and (message.number, message.kind) == (len(before), kind)
    children.forget(job)
    return died


def _name(item: ToRun) -> str:
    """The id of the case of an item of one."""
    return item.group.case_id(PreparedGroup(item.pack, item.group.check).samples[item.positions[0]].index)
