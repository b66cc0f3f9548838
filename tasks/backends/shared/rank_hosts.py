"""Ranks on other nodes: whoever has been lent a device there waits, and starts a rank for each connection that has the token.

A connection begins with a line of JSON: the token, and the arguments of a rank (`tasks.backends.shared.ranks`), which
is given the connection; without arguments it asks whether anybody is there.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.backends.shared import ranks
from tasks.importing import make_module_command

#: Variable of a child whose job has devices of several processes: its `RankHosts`, as JSON.
HOSTS = "FARM_RANK_HOSTS"
#: Seconds for a connection to a node, and for its first line. Longest line, in bytes.
PATIENCE_S, LONGEST = 10.0, 4096
#: What answers a question.
HERE = b"here\n"

#: Host name or address, and port.
Address = tuple[str, int]


@dataclass(frozen=True)
class RankHosts:
    """Where a job's ranks are started: in the process that reads this, and at ``others``. own: by which address those
    reach its node; nodes: on how many all of them are."""

    own: str
    others: tuple[Address, ...]
    token: str
    nodes: int

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of a child."""
        return {HOSTS: json.dumps(asdict(self))}

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RankHosts | None:
        """Those of this process; None where its job has no devices but its own."""
        if HOSTS not in env:
            return None
        found = json.loads(env[HOSTS])
        return cls(**found | {"others": tuple((host, port) for host, port in found["others"])})

    def silent(self) -> list[str]:
        """The others that do not answer: their processes, or their nodes, are gone."""
        return [host for host, port in self.others if not self._answers((host, port))]

    def _answers(self, address: Address) -> bool:
        with contextlib.suppress(OSError), self._connect(address, {}) as connection:
            return connection.recv(len(HERE)) == HERE
        return False

    def start(self, number: int, arguments: Sequence[str]) -> socket.socket:
        """Start a rank at another host; the connection to it. Raises OSError."""
        connection = self._connect(self.others[number], {"arguments": list(arguments)})
        connection.settimeout(None)
        return connection

    def _connect(self, address: Address, said: dict[str, object]) -> socket.socket:
        connection = socket.create_connection(address, PATIENCE_S)
        connection.sendall(json.dumps(said | {"token": self.token}).encode() + b"\n")
        return connection


def start_ranks_here(
    connections: Sequence[socket.socket], arguments: Sequence[str], python: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start ranks of this process, which keeps its ends of their connections. arguments: those of `ranks` from the
    numbers on."""
    given = [connection.fileno() for connection in connections]
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), env.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [*make_module_command(python, ranks.__name__), ",".join(map(str, given)), str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if sys.stderr and hasattr(sys.stderr, "fileno") else None,
        pass_fds=given,
        env=dict(env) | {"PYTHONPATH": path},
    )


class RankHost:
    """Starts ranks for a process of another node. python, env: of the ranks; own: the address of this node."""

    def __init__(self, own: str, token: str, python: str, env: Mapping[str, str]) -> None:
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        self._listener = socket.create_server((own, 0), family=family)
        self.address: Address = own, self._listener.getsockname()[1]
        self._token, self._python, self._env = token, python, env
        self._started: list[subprocess.Popen[bytes]] = []

    def serve(self) -> None:
        """For as long as this process lives; its ranks end with it, and each with its connection."""
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError, ValueError):
                connection.settimeout(PATIENCE_S)
                with connection.makefile("rb", buffering=0) as file:  # not a byte beyond the line: those are the rank's
                    said = json.loads(file.readline(LONGEST))
                if hmac.compare_digest(str(said["token"]), self._token):
                    self._serve(connection, said)

    def _serve(self, connection: socket.socket, said: Mapping[str, object]) -> None:
        self._started = [process for process in self._started if process.poll() is None]
        connection.settimeout(None)
        if isinstance(arguments := said.get("arguments"), list):
            self._started.append(start_ranks_here([connection], list(map(str, arguments)), self._python, self._env))
        else:
            connection.sendall(HERE)
