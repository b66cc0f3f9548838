"""A search in one child process and what it wants run in another talk through this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from farm.fleet import envs
from farm.fleet.child_process import Death
from farm.work.child_pool import Children
from farm.work.job import Job
from tasks import wire


@dataclass(frozen=True)
class Ended:
    """A search that came to no end of its own; the text says why."""

    text: str


def conversation(
    seeker: Job, said: Any, step_s: float, children: Children, run: Callable[[wire.Wants], wire.Tried]
) -> Iterator[Any]:
    """Begin a search with the command ``said`` in the child of ``seeker``, and run what it wants.

    Yields Spent after each step, and at the end its answer, or Ended. step_s: seconds that a step of the search may take.
    run: may raise EnvError.
    """
    try:
        while True:
            got = children.get(seeker)
            if isinstance(got, Death):
                yield Ended(f"the search could not be started: {got.text}")
                return
            answer = got[0].ask(said, step_s)
            if not isinstance(answer, wire.Wants):
                break
            yield children.spent()
            said = run(answer)
            yield children.spent()
    except envs.EnvError as error:
        yield Ended(str(error))
        return
    if isinstance(answer, Death):
        children.forget(seeker)
        answer = Ended(f"the search died: {answer.text}")
    elif isinstance(answer, wire.Stopped):
        answer = Ended(answer.why)
    children.recycle(seeker)
    yield answer
