"""Arrays that lie against a page of memory that nobody may touch: what reads or writes beside them kills its process.

A process does so for the inputs of kernels that compute on the CPU where its variable `GUARD` says how.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from dataclasses import dataclass

import numpy as np

#: Variable of a process: "PLACE:ACCESS" (`PageGuard`).
GUARD = "FARM_GUARD"
_PAGE = mmap.PAGESIZE
_ACCESS = {"none": 0, "read": mmap.PROT_READ, "write": mmap.PROT_READ | mmap.PROT_WRITE}


@dataclass(frozen=True)
class PageGuard:
    """place: "end" of an array, or its "start", is where the page begins or ends; access: what is allowed there:
    "none", "read", or "write", which is both."""

    place: str = "end"
    access: str = "none"

    def __str__(self) -> str:
        return f"{self.place}:{self.access}"

    @classmethod
    @functools.cache  # asked of every case, and said when the process is started
    def of_process(cls) -> PageGuard | None:
        """What this process is told."""
        told = os.environ.get(GUARD)
        return cls(*told.split(":")) if told else None

    def copy(self, array: np.ndarray) -> np.ndarray:
        """A copy of an array that is contiguous, in memory of its own between two such pages."""
        if not array.size:
            return array.copy()
        size = array.nbytes
        pages = -(-size // _PAGE)
        memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        begin = (1 + pages) * _PAGE - size if self.place == "end" else _PAGE
        made = np.frombuffer(memory, np.uint8, size, begin).view(array.dtype).reshape(array.shape)
        made[...] = array
        base = made.ctypes.data - begin
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (0, pages + 1):
            if libc.mprotect(ctypes.c_void_p(base + page * _PAGE), ctypes.c_size_t(_PAGE), _ACCESS[self.access]):
                raise OSError(ctypes.get_errno(), "mprotect")
        return made
