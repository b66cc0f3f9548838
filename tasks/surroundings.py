"""What of a process a case must not take from those that come after it."""

from __future__ import annotations

import os
import signal
from typing import Any


class Surroundings:
    """The variables and the handler of SIGTERM of this process.

    A variable that is set while a module is loaded or a program built stays, since that is done once. What running sets
    is undone.
    """

    def __init__(self) -> None:
        # The names and values as bytes, behind os.environ: to decode them all would cost as much as a small case.
        self._now: dict[Any, Any] = vars(os.environ)["_data"]
        self._first = self._kept = self._now.copy()
        self._ran = False
        self._on_term = signal.getsignal(signal.SIGTERM)

    def runs(self) -> None:
        """The case is about to run."""
        self._kept, self._ran = self._first | self._now, True

    def put_back(self) -> None:
        """After a case: as it was, at next to no cost if it still is."""
        if not self._ran:
            self.runs()
        self._ran = False
        if self._now != self._kept:
            for name in self._now.keys() - self._kept.keys():
                del os.environ[os.fsdecode(name)]
            for name, value in self._kept.items():
                if self._now.get(name) != value:
                    os.environ[os.fsdecode(name)] = os.fsdecode(value)
        if signal.getsignal(signal.SIGTERM) != self._on_term:
            signal.signal(signal.SIGTERM, self._on_term)
