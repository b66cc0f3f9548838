"""What a fork server may be told to import, to see what comes of it: each function is called in the server itself."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np

from tasks import wire
from tasks.child import Child, Steps


def tell() -> None:
    """Children answer `wire.List` with what they see of themselves; of some names they do that instead."""

    def answer(self: Child, command: wire.List) -> Steps:
        yield from ()
        self.page.write(3, 3)
        match command.catalog.split():
            case ["signal", number]:
                os.kill(os.getpid(), int(number))
            case ["exit", code]:
                os._exit(int(code))
            case ["leave", code]:
                sys.exit(int(code))
            case ["raise"]:
                raise RuntimeError("planted")
            case ["sleep"]:
                time.sleep(600)
            case ["grow"]:
                grown.append(np.ones(1 << 28))
                time.sleep(600)
            case ["parent"]:
                os.kill(os.getppid(), 9)
                time.sleep(600)
        files = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the folder itself
                files.append(os.readlink(f"/proc/self/fd/{fd}"))
        told: dict[str, Any] = {
            "environment": dict(os.environ),
            "files": files,
            "folder": os.getcwd(),
            "path": sys.path,
            "random": float(np.random.rand()),
            "session": os.getsid(0),
        }
        return wire.Stopped(json.dumps(told))

    Child._list = answer  # type: ignore[method-assign]


grown: list[np.ndarray] = []


def impatient() -> None:
    """The server ends soon after it has no children."""
    tell()
    sys.modules["__main__"].IDLE_S = 0.05  # type: ignore[attr-defined]


def thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def crash() -> None:
    ctypes.string_at(0)


def fail() -> None:
    raise ImportError("planted")
