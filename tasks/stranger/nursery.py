"""Where strangers come from: a process that the judge forks before it has read anything, and that forks a stranger for each request.

    judge ─ nursery ─ keeper ─ stranger (and what it starts)

The nursery has what its judge had imported, and no kernel's code; a stranger is there in milliseconds. Each stranger
has a keeper, the first process of a process namespace where the system has them: it tells how the stranger ended and
ends everything that the stranger has started. All of them end with the judge.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tasks import confine, system_calls
from tasks.backends.shared import replaced
from tasks.confine import Rules
from tasks.relay import list_child_processes

#: How a stranger ended: its exit code, or minus the signal.
ENDED = struct.Struct("<i")
#: Bytes that a nursery tells at most.
_TOLD = 1 << 12

#: What a stranger does, in the stranger: is given its end of the connection and what was asked for.
Main = Callable[[socket.socket, dict[str, Any]], None]


class Nursery:
    """The judge's hold of a nursery. Raises OSError where no process can be forked.

    lacks: what cannot be forbidden to its strangers (`confine.LACKS`).
    """

    def __init__(self, main: Main, forget: Callable[[], None] = lambda: None) -> None:
        """main: what a stranger does; forget: lets go of shared memory that is the judge's alone."""
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        judge = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run_as_other_process(lambda: _tend_nursery(its, judge, main, forget))
        its.close()
        told = self._control.recv(_TOLD)
        if not told:
            raise OSError("the process that forks the kernels' processes has ended")
        self.lacks: tuple[str, ...] = tuple(json.loads(told))

    def fork(self, request: dict[str, Any]) -> tuple[socket.socket, socket.socket, int]:
        """A new stranger: this end of its connection and of its lease, and its number. Raises OSError."""
        (ours, its), (lease, other) = socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lease.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with its, other, open(os.memfd_create("farm-request"), "w+b", buffering=0) as text:  # of any length
            text.write(json.dumps(request).encode())
            socket.send_fds(self._control, [b"fork"], [its.fileno(), other.fileno(), text.fileno()])
        # Its number as it is called here: the kernel translates what comes with a message.
        said, ancillary, _, _ = lease.recvmsg(ENDED.size, socket.CMSG_SPACE(12))
        found = [
            struct.unpack("3i", x[:12])[0]
            for level, kind, x in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        if not said or not found:
            raise OSError("no process could be forked for the kernel")
        return ours, lease, found[0]

    def close(self) -> None:
        """End it with all its strangers."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _run_as_other_process(main: Callable[[], None]) -> NoReturn:
    """Be another process than this one's caller."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _keep_only_descriptors(kept: Sequence[int]) -> None:
    """Close every descriptor but standard ones and some: commands, answers and the progress page are the judge's."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)


def _tend_nursery(control: socket.socket, judge: int, main: Main, forget: Callable[[], None]) -> None:
    """The nursery: fork what is asked for until nobody can ask."""
    confine.end_with_parent(judge)
    confine.call_prctl(confine.PR_SET_DUMPABLE, 1)  # else the files of this process in /proc are root's
    forget()
    replaced.describe_replaced_functions()  # its strangers have it from here, and compare
    _keep_only_descriptors([control.fileno()])
    os.close(os.pidfd_open(os.getpid()))  # a system that cannot says so before anybody depends on it
    lacks = [*confine.leave_network_namespace(), *_try_keeper_namespaces()]
    confine.call_prctl(confine.PR_SET_DUMPABLE, 0)
    here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if os.path.exists("/proc/self/ns/pid") else -1
    control.send(json.dumps(lacks).encode())
    keepers = set[int]()
    while True:
        ready, _, _ = select.select([control], [], [], 1.0 if keepers else None)
        for pid in list(keepers):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    keepers.discard(pid)
        if not ready:
            continue
        asked, fds, _, _ = socket.recv_fds(control, _TOLD, 3)
        if not asked:
            return
        with open(fds.pop(), "rb") as text:
            text.seek(0)
            request = json.load(text)
        pid = _fork_stranger_keeper(control, here, fds, request, main)
        if pid > 0:
            keepers.add(pid)
        for fd in fds:
            os.close(fd)


def _fork_stranger_keeper(
    control: socket.socket, here: int, fds: list[int], request: dict[str, Any], main: Main
) -> int:
    """The number of a stranger's keeper; -1 where there is none, which whoever asked sees by the lease."""
    own, nursery = confine.call_unshare(confine.CLONE_NEWPID), os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        control.close()
        os.close(here)
        _run_as_other_process(lambda: _keep_stranger(0 if own else nursery, own, fds, request, main))
    if own:  # of the next child this process's own again
        confine.call_setns(here, confine.CLONE_NEWPID)
    return pid


def try_stranger_confinement() -> tuple[str, ...]:
    """What this machine cannot forbid to a stranger (`confine.LACKS`)."""
    nursery = Nursery(lambda connection, request: None)
    nursery.close()
    had = {"files": bool(confine.find_landlock_version()), "sockets": system_calls.can_deny_calls()}
    return (*nursery.lacks, *(name for name, is_had in had.items() if not is_had))


def _try_keeper_namespaces() -> tuple[str, ...]:
    """What of `confine.LACKS` a keeper cannot forbid: whether processes can be had in a namespace of their own, which
    ends all of them, and shared memory in another."""
    return tuple(
        lack
        for lack, is_had in {
            "processes": lambda: confine.call_unshare(confine.CLONE_NEWPID),
            "shm": lambda: not confine.leave_shared_memory(own_processes=False),
            "metadata": lambda: (
                not (confine.leave_shared_memory(own_processes=False) or confine.make_mounts_read_only(()))
            ),
        }.items()
        if not _does_keeper_hold_in_fork(is_had)
    )


def _does_keeper_hold_in_fork(is_had: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if is_had() else 1)
    return os.waitpid(pid, 0)[1] == 0


def _keep_stranger(nursery: int, own: bool, fds: list[int], request: dict[str, Any], main: Main) -> None:
    """The keeper of one stranger: waits for it, tells how it ended, and ends what it has left. nursery: the number of
    the process above, 0 from within another namespace."""
    confine.end_with_parent(nursery)
    if own:  # else who kills the group of the judge's processes is to reach it: no process of it can lower the priority of others, nor signal them
        os.setsid()
    connection, lease = fds
    lacks = confine.leave_shared_memory(own, request["rules"]["memory"])
    lacks = (*lacks, "metadata") if lacks else confine.make_mounts_read_only(request["rules"]["writable"])
    if not own:
        confine.call_prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        with socket.socket(fileno=lease) as said:
            said.send(ENDED.pack(0))  # with its number
        _run_as_other_process(lambda: _begin_stranger(keeper, connection, request, main, lacks))
    os.close(connection)
    given_up = socket.socket(fileno=lease)
    ended: Any = os.pidfd_open(pid)  # from Linux 5.3 on, as the fork server
    select.select([given_up, ended], [], [])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    _end_rest_of_stranger(own)
    with contextlib.suppress(OSError):
        given_up.send(ENDED.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _end_rest_of_stranger(own: bool) -> None:
    """End all that a stranger has started: of a namespace everything, else what was left to this process."""
    while True:
        if own:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
        else:
            for child in list_child_processes(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def measure_stranger_cpu(pid: int) -> dict[int, float]:
    """CPU seconds of a process and of all that it has started and that still run, by their numbers; of one that is gone
    none."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        found[pid] = time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)
    for child in list_child_processes(pid):
        found |= measure_stranger_cpu(child)
    return found


def find_parent_process(pid: int) -> int:
    """The process above another; that one itself where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return pid


def _begin_stranger(
    keeper: int, connection: int, request: dict[str, Any], main: Main, keeper_lacks: Sequence[str]
) -> None:
    """The stranger, before it serves: what is forbidden, it cannot allow itself any more. keeper_lacks: what its keeper
    could not forbid."""
    confine.end_with_parent(keeper)
    given: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in request.pop("rules").items()}
    rules = Rules(**given)
    os.environ.update(request.pop("variables", {}))
    tempfile.tempdir = None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    lacks = [
        *keeper_lacks,
        *confine.limit_resources(rules),
        *confine.shut_in_process(rules),
        *([] if system_calls.deny_system_calls() else ["sockets"]),
    ]
    confine.drop_capabilities()
    confine.call_prctl(confine.PR_SET_DUMPABLE, 1)
    own = socket.socket(fileno=connection)
    system_calls.note_denied_calls()
    main(own, {**request, "lacks": lacks})
