"""How a process of the farm keeps the memory of its arrays."""

from __future__ import annotations

import ctypes
import sys

#: Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: What glibc settles at by itself after it has freed an array of this size: DEFAULT_MMAP_THRESHOLD_MAX, and twice that.
_LARGE = 32 << 20


def keep_freed_memory() -> None:
    """Give freed arrays of up to 32 MiB back to the system only when 64 MiB lie free, from the start; nothing where
    libc has no mallopt.

    Until glibc has settled, each temporary of a verdict over 65,536 numbers is returned and faulted in again, page by
    page, which takes longer than the numbers (`python -m tests.bench inputs`).
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE)
