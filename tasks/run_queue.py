"""How long a thread was ready to run and did not, since others had the processors: the part of the wall clock that a busy machine adds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

#: Bound once: a kernel may replace those of the module.
_pread = os.pread


class RunQueueClock:
    """Seconds that a thread has waited for a processor since it began, by the system's count (schedstat in proc(5)).

    It is that of the thread that makes it, or of the first thread of a process."""

    def __init__(self, pid: int | None = None) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # a system that does not count, a process that has ended
            self._file = os.open(f"/proc/{pid or 'thread-self'}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> float | None:
        """Seconds; None where the system does not say."""
        try:
            return int(_pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return None

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def sum_run_queue_seconds(clocks: Sequence[RunQueueClock]) -> float | None:
    """Seconds that some threads have waited; None where the system does not say it of one of them."""
    found = [x.read() for x in clocks]
    return None if None in found or not found else sum(x for x in found if x is not None)


def subtract_run_queue_seconds(end: float | None, begin: float | None) -> float | None:
    """Seconds between two readings; None where one of them is."""
    return None if end is None or begin is None else max(end - begin, 0.0)
