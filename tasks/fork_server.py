"""A process that has imported what children begin with, and forks them: a child is there in milliseconds, not seconds.

Started as ``python -m tasks.fork_server CONTROL OWNER``: an inherited socket over which requests come
(`tasks.fork_request.ask_fork_server`), and the number of the process that started it, with which it ends. It stays a process of one
thread that has touched no device: only such a process may be forked.

Each process that it forks has a *lease*: a socket whose other end the owner holds. There the server tells the number of
the process and, when that has ended, its exit status. Once the owner's end is closed the process is killed and reaped;
until then its number is nobody else's, as that of a process of one's own that was not waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tasks import child
from tasks.fork_request import BEGUN, ENDED, FDS, IDLE, REQUEST, list_late_variables
from tasks.importing import import_by_name, pause_garbage_collector

#: Seconds after which a server without children ends.
IDLE_S = 120.0


@dataclass
class LeasedChild:
    """A forked process. ended: a descriptor that can be read once it has ended (pidfd)."""

    pid: int
    lease: socket.socket
    ended: int
    has_ended: bool = False
    given_up: bool = False


class ForkServer:
    """Forks what is asked for over ``control``, until that is closed and all that it has forked has ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._leased = dict[int, LeasedChild]()  # by both of their descriptors
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._open, self._told_s = True, 0.0

    def serve(self) -> None:
        gc.freeze()  # pages that the collector does not write stay shared
        while self._open or self._leased:
            busy = any(not one.has_ended for one in self._leased.values())
            found = self._poll.poll(None if busy else IDLE_S * 1e3)
            if not found:
                self._control.send(IDLE)
                return
            for fd, _ in found:
                if (one := self._leased.get(fd)) is not None:
                    self._tell(one) if fd == one.ended else self._give_up(one)
            # Last: what it opens may have the number of what was just closed.
            if any(fd == self._control.fileno() for fd, _ in found):
                self._answer_request()

    def _answer_request(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, REQUEST, FDS)
        if not data:  # no more is asked for
            self._open = False
            self._poll.unregister(self._control)
            self._control.close()
            return
        request = json.loads(data)
        lease, server = socket.socket(fileno=fds[0]), os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no more processes: whoever asked starts one itself, and says why that fails
            lease.close()
        else:
            if pid == 0:
                _run_forked_main(lambda: self._begin(server, lease, fds[1:], **request))
            self._lease(LeasedChild(pid, lease, os.pidfd_open(pid)))
        for fd in fds[1:]:
            os.close(fd)

    def _lease(self, one: LeasedChild) -> None:
        for fd in (one.lease.fileno(), one.ended):
            self._leased[fd] = one
            self._poll.register(fd, select.POLLIN)
        used = time.process_time()
        with contextlib.suppress(OSError):  # the owner has gone: its end is closed
            one.lease.send(BEGUN.pack(one.pid, used - self._told_s))
        self._told_s = used

    def _begin(
        self, server: int, lease: socket.socket, fds: list[int], variables: Mapping[str, str], load: str, folder: str
    ) -> None:
        """In the forked process: leave the server's things alone, and begin."""
        child.end_child_with_owner(server)
        os.setsid()
        for one in {id(x): x for x in self._leased.values()}.values():
            one.lease.close()
            os.close(one.ended)
        self._control.close()
        lease.close()
        for name in list_late_variables(os.environ):
            del os.environ[name]
        os.environ.update(variables)
        tempfile.tempdir = None
        _enter_child_folder(folder)
        importlib.invalidate_caches()
        if load:
            run_fork_server(socket.socket(fileno=fds[0]), load)
            return
        commands, answers, page, said = fds
        for fd in (1, 2):
            os.dup2(said, fd)
        os.close(said)
        _rename_process("tasks.child")
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # as in a process of one's own; Python reseeds its own
        child.serve_child_commands(commands, answers, page)

    def _tell(self, one: LeasedChild) -> None:
        """A process has ended: its status goes over the lease. It is reaped when that is closed."""
        self._poll.unregister(one.ended)
        one.has_ended = True
        found = os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with contextlib.suppress(OSError):
            one.lease.send(ENDED.pack(status))
        if one.given_up:
            self._reap(one)

    def _give_up(self, one: LeasedChild) -> None:
        """The owner does not want a process any more, or is gone: it and what it has started are killed."""
        self._poll.unregister(one.lease)
        one.given_up = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, signal.SIGKILL)  # it has no group of its own yet
        if one.has_ended:
            self._reap(one)

    def _reap(self, one: LeasedChild) -> None:
        os.waitpid(one.pid, 0)
        for fd in (one.lease.fileno(), one.ended):
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
            del self._leased[fd]
        one.lease.close()
        os.close(one.ended)


def run_fork_server(control: socket.socket, what: str = "") -> None:
    """Be a server that has loaded ``what`` besides what it was forked with. It ends at once if that has started a
    thread."""
    with pause_garbage_collector():
        if what:
            import_by_name(what)
    os.close(os.pidfd_open(os.getpid()))  # a kernel that cannot says so before anybody depends on it
    if len(os.listdir("/proc/self/task")) == 1:
        ForkServer(control).serve()


def _run_forked_main(main: Callable[[], None]) -> None:
    """Run the main function of this process, and end with its exit code."""
    code: object = 1
    try:
        main()
        code = 0
    except SystemExit as error:
        code = 0 if error.code is None else error.code
    except BaseException:
        traceback.print_exc()
    os._exit(code if isinstance(code, int) else 1)


#: Where this process works, and so where Python found it modules first.
_folder = ""


def _enter_child_folder(folder: str) -> None:
    """Work in ``folder``, and find modules there first, as a process that was started there with ``-m`` does."""
    global _folder
    if _folder in sys.path and not getattr(sys.flags, "safe_path", False):
        sys.path[sys.path.index(_folder)] = folder
    os.chdir(folder)
    _folder = folder


def _rename_process(module: str) -> None:
    """Let ps and /proc name this process by the module that it runs, not by that of the server. Nothing where the
    kernel does not tell where the arguments lie."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end (proc(5))
        with open("/proc/self/cmdline", "rb") as file:
            line = file.read().replace(b"tasks.fork_server", module.encode())
        if 0 < start < end and len(line) <= end - start:
            ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def _import_for_children() -> None:
    """What each child imports at its first command, and at its first result that is off. Not with this module: who asks
    for a child needs none of it."""
    from tasks import canary, runner  # noqa: F401
    from tasks.diagnose import formulas, ignored_attributes, narrow_sums, results  # noqa: F401
    from tasks.prepare import cases  # noqa: F401


def main() -> None:
    """Entry point; see the module's docstring for the arguments."""
    global _folder
    control, owner = map(int, sys.argv[1:3])
    _folder = os.getcwd()
    _import_for_children()
    child.end_child_with_owner(owner)
    child.settle_child_process()
    _run_forked_main(lambda: run_fork_server(socket.socket(fileno=control)))


if __name__ == "__main__":
    main()
