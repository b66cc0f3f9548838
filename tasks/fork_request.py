"""How a fork server (`tasks.fork_server`) is asked for a process, and what it says of it: what its owner and it have in common."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Mapping, Sequence

#: Variables that are read when something is done, not when a module is imported: they may differ from the server's.
LATE = re.compile(r"TMPDIR|PYTEST_CURRENT_TEST|TORCHINDUCTOR_CACHE_DIR|FARM_\w+")
#: Of a lease: the number of the process and the CPU seconds that the server has used since it last told; then the exit
#: status.
BEGUN, ENDED = struct.Struct("<id"), struct.Struct("<i")
#: Bytes of a request at most, and how many descriptors come with it.
REQUEST, FDS = 1 << 16, 5
#: What a server says over its control that ends because nothing was asked of it.
IDLE = b"idle"


def list_late_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that a server need not share with what it forks."""
    return {name: value for name, value in env.items() if LATE.fullmatch(name)}


def ask_fork_server(control: socket.socket, fds: Sequence[int], variables: Mapping[str, str], what: str = "") -> None:
    """Have a server fork.

    A child of ``fds`` (its lease, commands, answers, progress page, and what its stdout and stderr go to; see
    `tasks.child`); or a further server of ``fds`` (its lease and control) that has loaded ``what``
    (`tasks.importing.import_by_name`). Either begins in the working directory of this process. Raises OSError.
    """
    request = json.dumps({"variables": dict(variables), "load": what, "folder": os.getcwd()}).encode()
    if len(request) > REQUEST:
        raise OSError("the variables are too many for a request")
    socket.send_fds(control, [request], list(fds))
