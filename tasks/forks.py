"""Work that is done beside, each piece in a process that is forked for it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tasks import heap, variables
from tasks.confine import end_with_parent
from tasks.relay import count_usable_processors, measure_machine_memory

#: Bytes that are read at a time.
_READ = 1 << 16

Work = Callable[[], Any]
Take = Callable[[Any], None]


@dataclass(frozen=True)
class _Fork:
    """A process that works. answer: the end of its pipe that is read; work: the same in this process; take: gets what it
    returns."""

    pid: int
    answer: int
    work: Work
    take: Take


class Forks:
    """Processes that are forked from this one, no more at once than it has processors and memory for."""

    def __init__(self) -> None:
        self._running: list[_Fork] = []

    def do(self, work: Work, take: Take) -> None:
        """Have ``work`` done on this process's state as it is now, and what it returns, plain data (JSON's), given to
        ``take`` in this process, at the latest in `finish`. Returns when there is a processor free to go on.

        Where no process can be forked, or one ends without an answer (the kernel has ended it for want of memory, the
        work has raised an error), the work is done here: what it raises is raised, and what ends a process ends this
        one."""
        heap.give_freed_memory_back()
        try:
            ours, theirs = os.pipe()
        except OSError:  # no more descriptors
            return take(work())
        parent = os.getpid()
        try:
            pid = os.fork()
        except (AttributeError, OSError):  # a system without it; no more processes, no memory for its pages
            os.close(ours)
            os.close(theirs)
            return take(work())
        if pid == 0:
            _answer_and_end(parent, work, theirs)
        os.close(theirs)
        self._running.append(_Fork(pid, ours, work, take))
        while len(self._running) >= count_processes_at_once():
            self._take_next()

    def finish(self) -> None:
        """Take what is not yet done."""
        while self._running:
            self._take_next()

    def end(self) -> None:
        """End what is not yet done."""
        while self._running:
            one = self._running.pop()
            os.close(one.answer)
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)

    def _take_next(self) -> None:
        """Wait for one that is done."""
        poll = select.poll()
        for one in self._running:
            poll.register(one.answer, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        one = next(x for x in self._running if x.answer in ready)
        parts = []
        while part := os.read(one.answer, _READ):
            parts.append(part)
        self._running.remove(one)
        os.close(one.answer)
        _, status = os.waitpid(one.pid, 0)
        one.take(one.work() if status else json.loads(b"".join(parts)))


@contextlib.contextmanager
def fork_beside() -> Iterator[Forks]:
    """In here work is done beside; all of it is at the end, and none goes on where an error is raised."""
    forks = Forks()
    try:
        yield forks
        forks.finish()
    finally:
        forks.end()


def count_processes_at_once() -> int:
    """How many that are as large as this one was at most may work at once, this one among them: one or more."""
    memory = min(measure_machine_memory(), int(os.environ.get(variables.MEMORY) or measure_machine_memory()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return max(1, int(min(count_usable_processors(), memory // max(peak, 1))))


def _answer_and_end(parent: int, work: Work, pipe: int) -> None:
    """In the forked process."""
    code = 1
    try:
        end_with_parent(parent)
        answer = json.dumps(work()).encode()
        while answer:
            answer = answer[os.write(pipe, answer) :]
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is tidied up here
