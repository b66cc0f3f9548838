"""Work that is done beside, each piece in a process that is forked for it."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tasks import heap, variables
from tasks.confine import end_with_parent
from tasks.relay import count_usable_processors, measure_cpu_s, measure_machine_memory

#: Bytes that are read at a time; what a process says first; bytes of an answer's length, which comes before it.
_READ, _BEGUN, _LENGTH = 1 << 16, b"\1", 8
#: Bytes before an answer.
_HEAD = len(_BEGUN) + _LENGTH
#: Seconds between two looks at what a process does, and after how many looks at which it has used no processor time it
#: is ended: a lock that another thread held at the fork, or a thread that is not there, is waited for for ever.
LOOK_S, LOOKS = 1.0, 20

Work = Callable[[], Any]
Take = Callable[[Any], None]
Forget = Callable[[], None]


def _forget_nothing() -> None:
    """What most work asks for."""


@dataclass
class _Fork:
    """A process that works. pipe: the end of its pipe that is read; work: the same in this process; take: gets what it
    returns; got: what has been read; cpu_s: its processor time at the last look; idle: looks since that has changed."""

    pid: int
    pipe: int
    work: Work
    take: Take
    got: bytearray = field(default_factory=bytearray)
    cpu_s: float = -1.0
    idle: int = 0

    def read(self) -> bool:
        """Read what has come; whether no more will. A process that it has started may hold its pipe, which then does
        not end."""
        data = os.read(self.pipe, _READ)
        self.got += data
        return not data or self._is_whole()

    def look(self) -> bool:
        """Look at what it does; whether it has done nothing for long, as one that is gone."""
        now = measure_cpu_s(self.pid)
        known = os.path.exists("/proc/self/stat")  # elsewhere nobody knows its time
        self.idle = self.idle + 1 if known and now == self.cpu_s else 0
        self.cpu_s = now
        return self.idle >= LOOKS

    def answer(self) -> dict[str, Any]:
        """What it has answered, {} without a whole answer."""
        return dict(pickle.loads(self.got[_HEAD:])) if self._is_whole() else {}  # of this very process

    def end(self) -> int:
        """End it, if it has not ended; its status (waitpid(2)), 0 where it cannot be waited for: nobody may, or somebody has."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # SIGCHLD is ignored
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                os.kill(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
            return status
        return 0

    def _is_whole(self) -> bool:
        return len(self.got) >= _HEAD and len(self.got) == _HEAD + int.from_bytes(self.got[len(_BEGUN) : _HEAD], "big")


class _HeldSignals:
    """Signals that Python handles, held back while a process is forked: what a handler raised in a hook of the fork would
    be lost, and raised after it would leave a process that nobody knows. To block them does not do: they would be given
    to another thread, and be handled in the main one all the same. What C code has set of such a signal
    (`signal.siginterrupt`, `faulthandler.register`) does not come back."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        self._held = True

    def hold(self) -> None:
        """Note what comes from now on. Raises what a handler raises until then."""
        if threading.current_thread() is not threading.main_thread():  # no other handles any
            return
        try:
            for number in range(1, signal.NSIG):
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Put the handlers back and have them handle what has come: all of it, whatever one raises."""
        try:
            self._held = False
            for number, handler in self._handlers.items():
                if signal.getsignal(number) == self._handle:  # nobody has set another
                    signal.signal(number, handler)
            while self._came:
                number = self._came[0]
                del self._came[0]  # a signal that came after a call of pop would lose it
                self._handlers[number](number, sys._getframe())
        except BaseException:
            self.release()
            raise

    def release_in_copy(self) -> None:
        """In the forked process: what has come is its parent's to handle."""
        self._came.clear()
        self.release()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._came.append(number)
        else:
            self._handlers[number](number, frame)


class Forks:
    """Processes that are forked from this one, no more at once than it has processors and memory for. failure: why
    work was done in this process, of the first that was; "" where none was. closes: whether they hold no file open that
    is open here, which their work does not read then: whoever waits for its end would wait for them as well."""

    def __init__(self, closes: bool = False) -> None:
        self.failure = ""
        self._closes = closes
        self._running: list[_Fork] = []
        self._largest = 0
        self._in_vain = False

    def do(self, work: Work, take: Take, forget: Forget = _forget_nothing) -> None:
        """Have ``work`` done on this process's state as it is now, and what it returns (pickled) given to ``take`` in
        this process, at the latest in `finish`. Returns when there is a processor free to go on. forget:
        lets go, in the other process, of what is large and not asked for: whoever writes to it here copies it else.

        Where no process can be forked, or one ends without an answer (the kernel has ended it for want of memory, the
        work has raised an error) or does nothing any more, the work is done here: what it raises is raised, and what
        ends a process ends this one. It is then done on a later state, and changes it: ``failure`` says so. None is
        forked any more after a failure that others would have as well: all but a kill and a want of processes."""
        self._largest = max(self._largest, heap.measure_own_memory())
        if self._in_vain or not self._fork(work, take, forget):
            return take(work())
        while len(self._running) >= count_processes_at_once(self._largest):
            self.take_next()

    def finish(self) -> None:
        """Take what is not yet done."""
        while self.take_next():
            pass

    def end(self) -> None:
        """End what is not yet done."""
        while self._running:
            self._end(self._running[-1])

    def _fork(self, work: Work, take: Take, forget: Forget) -> bool:
        """Whether a process that does it could be had."""
        pipe: tuple[int, ...] = ()
        parent, signals = os.getpid(), _HeldSignals()
        signals.hold()
        try:
            ours, theirs = pipe = os.pipe()
            pid = os.fork()
            if pid == 0:
                _answer_and_end(parent, work, forget, theirs, signals, self._closes)
            self._running.append(_Fork(pid, ours, work, take))
            os.close(theirs)
        except (AttributeError, OSError) as error:  # a system without it; no more descriptors, processes or memory
            for end in pipe:
                os.close(end)
            self._tell(f"no process could be forked: {error}")
            return False
        finally:
            signals.release()
        # Whoever writes first to memory that both have copies it: what lies free there is given back before.
        begun = select.poll()
        begun.register(ours, select.POLLIN)
        begun.poll(LOOK_S * 1e3)
        return True

    def take_next(self) -> bool:
        """Wait for one that is done, or will never be, and take it; whether there was one."""
        if not self._running:
            return False
        poll = select.poll()
        for one in self._running:
            poll.register(one.pipe, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(LOOK_S * 1e3)}
            for one in self._running:
                if one.read() if one.pipe in ready else not ready and one.look():
                    self._take(one)
                    return True

    def _take(self, one: _Fork) -> None:
        """Take what one has answered, or do it here."""
        status, answer = self._end(one), one.answer()
        if "done" in answer:
            return one.take(answer["done"])
        code, idle = os.waitstatus_to_exitcode(status), one.idle >= LOOKS
        if idle:
            self._tell("a forked process did nothing any more")
        else:
            self._tell(answer.get("error") or f"a forked process ended with status {code}")
        killed = not idle and not answer and code == -signal.SIGKILL  # mostly for want of memory
        self._in_vain = self._in_vain or not killed
        one.take(one.work())

    def _end(self, one: _Fork) -> int:
        """End one; its status. Known until it has ended: an interrupt may come in between."""
        status = one.end()
        if one in self._running:  # a handler may have ended them
            self._running.remove(one)
            os.close(one.pipe)
        return status

    def _tell(self, failure: str) -> None:
        self.failure = self.failure or failure


@contextlib.contextmanager
def fork_beside() -> Iterator[Forks]:
    """In here work is done beside; all of it is at the end, and none goes on where an error is raised."""
    forks = Forks()
    try:
        yield forks
        forks.finish()
    finally:
        forks.end()


def count_processes_at_once(largest: int) -> int:
    """How many of ``largest`` bytes of memory may work at once, this one among them: one or more. Of processors all that
    this process may use are counted, whatever the run or Ray (``num_cpus``) has given it."""
    machine = measure_machine_memory()
    memory = min(machine, int(os.environ.get(variables.MEMORY) or machine))
    return max(1, int(min(count_usable_processors(), memory // max(largest, 1))))


def _answer_and_end(parent: int, work: Work, forget: Forget, pipe: int, signals: _HeldSignals, closes: bool) -> None:
    """In the forked process."""
    try:
        gc.freeze()  # what is garbage here is garbage there, and its finalisers run there
        signals.release_in_copy()
        end_with_parent(parent)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # under want of memory this one is ended, not its parent, whose work would all be lost
        if closes:
            _close_files(pipe)
        try:
            try:
                forget()
                heap.give_freed_memory_back()
            finally:
                os.write(pipe, _BEGUN)
            answer = pickle.dumps({"done": work()})
        except BaseException as error:  # as the parent will find out
            answer = pickle.dumps({"error": f"{type(error).__name__}: {error}"})
        answer = len(answer).to_bytes(_LENGTH, "big") + answer
        while answer:
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(0)  # nothing of the parent's is tidied up here


def _close_files(but: int) -> None:
    """Close all files but one and the standard ones."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != but:
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(int(name))
