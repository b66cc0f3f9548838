"""The fork servers of this process (`tasks.fork_server`): what a child is forked from, and how its owner sees it.

They form trees: from one that has imported what every child does is forked one that has torch as well, and from that
one with torch's list of ops. They end with this process, or when nothing was asked of them for a while.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from farm.exits import starting
from tasks.backends import BackendSpec
from tasks.fork_request import BEGUN, ENDED, IDLE, ask_fork_server, list_late_variables
from tasks.importing import make_module_command

#: Variable that says 0 where every child is to be started plainly.
FORK = "FARM_FORK"
#: Trees of servers that are kept, one an environment; the one used longest ago makes room.
TREES = 4
#: Seconds for which the number of a new process is waited for: an import of a server's may be in between.
BEGIN_S = 300.0


class ForkedChild:
    """A process that a server has forked, with what `subprocess.Popen` has of one of its own: pid, returncode, poll,
    wait.

    shared_s: CPU seconds that its server used since it last forked: for imports, mostly.
    """

    def __init__(self, server: _ForkServer, lease: socket.socket, told: bytes) -> None:
        self._server, self._lease = server, lease
        self.pid, self.shared_s = BEGUN.unpack(told)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait_for_exit(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if (code := self._wait_for_exit(timeout)) is None:
            raise subprocess.TimeoutExpired("tasks.child", timeout or 0.0)
        return code

    def _wait_for_exit(self, timeout: float | None) -> int | None:
        if self.returncode is None and _is_socket_readable(self._lease, timeout):
            told = _receive_bytes(self._lease, ENDED.size)
            # A server that is killed takes all with it that it has forked.
            self.returncode = ENDED.unpack(told)[0] if told else -signal.SIGKILL
            self._lease.close()
        return self.returncode


class _ForkServer:
    """A server as its owner sees it: started with an environment, or forked from ``base`` with one thing more."""

    def __init__(self, env: Mapping[str, str], base: _ForkServer | None = None, what: str = "") -> None:
        """Raises OSError, RuntimeError (no thread can be started)."""
        self.hangs = False
        self._base = base  # which ends what it has forked once nobody holds its lease
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            if base is None:
                _start_fork_server(its, env)
            else:
                self._lease = base.ask([its.fileno()], {}, what)

    def ask(self, fds: Sequence[int], variables: Mapping[str, str], what: str = "") -> socket.socket:
        """Have it fork (`tasks.fork_request.ask_fork_server`); our end of the lease. Raises OSError."""
        ours, its = socket.socketpair()
        with its:
            try:
                ask_fork_server(self._control, [its.fileno(), *fds], variables, what)
            except OSError:
                ours.close()
                raise
        return ours

    @property
    def end_message(self) -> bytes | None:
        """None while it lives, IDLE if it has ended for want of work; b"" if it failed."""
        if self.hangs:
            return b""
        return (
            _receive_bytes(self._control, len(IDLE), socket.MSG_PEEK)
            if _is_socket_readable(self._control, 0.0)
            else None
        )

    def close(self) -> None:
        """Ask for no more: it ends when all has that it has forked."""
        self._control.close()


def list_early_imports(spec: BackendSpec) -> tuple[str, ...] | None:
    """What may be imported before a backend's process is forked; None where it is to be started plainly: on a device,
    whose driver may do what it likes when its runtime is imported."""
    made = spec.create_if_there()
    return None if made is None or made.device_vendor else made.imports


def _start_fork_server(control: socket.socket, env: Mapping[str, str]) -> None:
    """Start a server by a thread that lives as long as this process: it ends with that (PR_SET_PDEATHSIG). Raises
    OSError."""
    started = queue.SimpleQueue[OSError | None]()

    def keep() -> None:
        try:
            process = subprocess.Popen(
                [*make_module_command(sys.executable, "tasks.fork_server"), str(control.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # why something cannot be imported, a child says that is started plainly
                pass_fds=[control.fileno()],
                env=dict(env),
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        started.put(None)
        process.wait()

    threading.Thread(target=keep, daemon=True, name="fork server").start()
    if (error := started.get()) is not None:
        raise error


#: The servers by what they have loaded, a tree for each environment (and working directory that has a module of
#: theirs). None: it failed.
_Tree = dict[tuple[str, ...], _ForkServer | None]
_trees: OrderedDict[tuple[object, ...], _Tree] = OrderedDict()


def fork_child(env: Mapping[str, str], imports: tuple[str, ...], fds: Sequence[int]) -> ForkedChild | None:
    """A child (`tasks.child`) of this interpreter, forked from a server that has loaded ``imports`` in this
    environment.

    fds: its commands, answers and progress page, and what its stdout and stderr go to. None where it cannot be had:
    it is to be started plainly.
    """
    if sys.platform != "linux" or os.environ.get(FORK) == "0":
        return None
    for _ in range(2):  # a server may end for want of work just then
        with starting:
            server = _find_fork_server(env, imports)
            if server is None:
                return None
            try:
                lease = server.ask(fds, list_late_variables(env))
            except OSError:
                continue
        if not _is_socket_readable(lease, BEGIN_S):
            server.hangs = True
        elif told := _receive_bytes(lease, BEGUN.size):
            return ForkedChild(server, lease, told)
        lease.close()
    return None


def _find_fork_server(env: Mapping[str, str], imports: tuple[str, ...]) -> _ForkServer | None:
    """The server that has loaded ``imports``, and those before it; None if one of them has failed before."""
    try:
        key = (_find_imports_folder(imports), *sorted(env.items() - list_late_variables(env).items()))
    except OSError:
        return None
    tree = _trees.setdefault(key, {})
    _trees.move_to_end(key)
    while len(_trees) > TREES:
        for old in _trees.popitem(last=False)[1].values():
            if old is not None:
                old.close()
    server: _ForkServer | None = None
    for number in range(len(imports) + 1):
        loaded = imports[:number]
        if (there := tree.get(loaded)) is not None and (why := there.end_message) is not None:
            there.close()
            if why == IDLE:
                del tree[loaded]
            else:
                tree[loaded] = None
        if loaded not in tree:
            try:
                tree[loaded] = _ForkServer(env, server, *imports[number - 1 : number])
            except (OSError, RuntimeError):
                tree[loaded] = None
        server = tree[loaded]
        if server is None:
            return None
    return server


def _find_imports_folder(imports: Sequence[str]) -> str:
    """The working directory where Python finds one of ``imports`` there, "" elsewhere. Raises OSError."""
    folder = os.getcwd()
    names = {one.partition(":")[0].partition(".")[0] for one in imports} - {"tasks"}
    return (
        folder if any(os.path.exists(os.path.join(folder, name + end)) for name in names for end in ("", ".py")) else ""
    )


def _is_socket_readable(one: socket.socket, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(one, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1e3))


def _receive_bytes(one: socket.socket, size: int, flags: int = 0) -> bytes:
    """What can be read of a socket; b"" if its other end is gone."""
    with contextlib.suppress(OSError):
        return one.recv(size, flags)
    return b""


#: A fork of this process has no servers: another's may not be asked by two.
os.register_at_fork(after_in_child=_trees.clear)
