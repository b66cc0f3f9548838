"""How a process of the farm keeps the memory of its arrays."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import resource
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
#: Of madvise(2): the memory will be needed, or is not; it may lie in huge pages; it is to lie in them now.
_NEEDED, _UNNEEDED, _HUGE_PAGES, _COLLAPSE = 3, 4, 14, 25
#: What glibc settles at by itself after it has freed an array of this size: DEFAULT_MMAP_THRESHOLD_MAX, and twice that.
_LARGE = 32 << 20
#: How many arrays glibc maps by themselves (DEFAULT_MMAP_MAX), and what has it give nothing back to the system.
_MAPS, _NEVER = 65536, -1
#: Bytes of a huge page, on processors that have some.
_HUGE_PAGE = 2 << 20
#: Bytes that `keep_freed_arrays` keeps in huge pages.
_kept = 0


@functools.cache
def _find_libc_function(name: str) -> Any:
    """A function of libc; None where it is not there."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Give freed arrays of up to 32 MiB back to the system only when 64 MiB lie free, from the start; nothing where
    libc has no mallopt.

    Until glibc has settled, each temporary of a verdict over 65,536 numbers is returned and faulted in again, page by
    page, which takes longer than the numbers (`python -m tests.bench inputs`).
    """
    if (mallopt := _find_libc_function("mallopt")) is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE)


@contextlib.contextmanager
def keep_freed_arrays(size: int) -> Iterator[None]:
    """In here freed arrays of any size are kept for the next ones, as `keep_freed_memory` keeps smaller ones;
    `give_freed_memory_back` at the end. So many bytes of them lie in huge pages where the system has some: with small
    ones a processor under a hypervisor spends more time on finding an array of a large network than on computing with
    it (`python -m tests.bench large_training`)."""
    global _kept
    if (mallopt := _find_libc_function("mallopt")) is None:
        yield
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _NEVER)
    _kept = size
    _reserve_huge_pages()
    try:
        yield
    finally:
        _kept = 0
        mallopt(_MMAP_MAX, _MAPS)
        keep_freed_memory()
        give_freed_memory_back()


def give_freed_memory_back() -> None:
    """Give back all that lies free; in `keep_freed_arrays`, to get as much anew when it is asked for."""
    if (trim := _find_libc_function("malloc_trim")) is not None:
        trim(0)
        if _kept:
            _reserve_huge_pages()


def use_huge_pages(array: np.ndarray) -> None:
    """Have a contiguous array lie in huge pages, as far as it fills some."""
    for advice in (_HUGE_PAGES, _COLLAPSE):
        _advise(array.ctypes.data, array.nbytes, advice, _HUGE_PAGE)


def drop_values(array: np.ndarray) -> None:
    """Let go of what a contiguous array holds, that of parts of pages excepted: whatever is read there next is
    anything."""
    _advise(array.ctypes.data, array.nbytes, _UNNEEDED, resource.getpagesize())


def read_ahead(array: np.ndarray) -> None:
    """Have the system read what a contiguous array holds, where that is a file's, while this process does something
    else."""
    _advise(array.ctypes.data, array.nbytes, _NEEDED, resource.getpagesize())


def _reserve_huge_pages() -> None:
    """Have malloc's next ``_kept`` bytes lie in huge pages; none is taken before it is written to. Nothing where the
    system has none, or refuses so much memory."""
    malloc, free = map(_find_libc_function, ("malloc", "free"))
    malloc.restype = ctypes.c_void_p
    if begin := malloc(ctypes.c_size_t(_kept)):
        _advise(begin, _kept, _HUGE_PAGES, _HUGE_PAGE)
        free(ctypes.c_void_p(begin))


def _advise(begin: int, size: int, advice: int, page: int) -> None:
    """madvise(2) of the whole pages of some memory; nothing where it is not there, or refuses."""
    first, last = -(-begin // page) * page, (begin + size) // page * page
    if last > first and (madvise := _find_libc_function("madvise")) is not None:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def measure_own_memory() -> int:
    """Bytes of memory of this process that are of no file: the pages of a spool can be given back. Where the system does
    not say, the most that was ever resident."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10
