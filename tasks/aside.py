"""Asks code that nobody vouches for a question, in a process that can do nothing but answer it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from tasks import confine, system_calls
from tasks.confine import Rules

#: What such a process ends with that has no answer.
_NONE = 2


def ask_aside(question: Callable[[], bool]) -> bool:
    """The answer of a process that is forked for it and held to what a kernel's process is (docs/isolation.md). It has
    no folder that it may write to, and ends with whoever asks. Raises RuntimeError where it gives no answer."""
    asking = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = _NONE
        try:
            confine.end_with_parent(asking)
            _close_descriptors_aside()
            confine.leave_network_namespace()
            confine.limit_resources(Rules())
            confine.shut_in_process(Rules())
            system_calls.deny_system_calls()
            confine.drop_capabilities()
            code = int(bool(question()))
        except BaseException:
            code = _NONE
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in (0, 1):
        raise RuntimeError(f"a process that was asked aside ended with {code}, and no answer")
    return code == 1


def _close_descriptors_aside() -> None:
    """Close every descriptor but standard ones: commands and answers are its parent's."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)
