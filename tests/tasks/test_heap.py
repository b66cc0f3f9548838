"""A child keeps the memory of its temporaries."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from tasks import heap

FAULTS = """
import resource
import numpy as np
from tasks import heap
{keep}
def some():
    for _ in range(50):
        a = np.ones(1 << 16)
        b = np.sqrt(a) + (a * 2 - a / 3)
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = some()
print(some() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_temporaries_of_a_verdict_are_not_returned_and_faulted_in_again() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], check=True, capture_output=True).stdout)
        for keep in ("", "heap.keep_freed_memory()")
    ]
    assert faults[1] < 50 and faults[1] * 5 < faults[0], faults
    heap.keep_freed_memory()  # again, and in a process that has arrays, it does no harm


PAGES = """
import mmap, resource, sys, tempfile
from tasks import heap
before = heap.measure_own_memory()
with tempfile.TemporaryFile() as file:
    file.truncate(64 << 20)
    spool = mmap.mmap(file.fileno(), 64 << 20)
    spool.write(bytes(64 << 20))
    del spool
given_back = heap.measure_own_memory() - before
kept = bytearray(b"1") * (64 << 20)
print(given_back >> 20, heap.measure_own_memory() - before >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_pages_of_files_and_what_was_before_exec_are_no_memory_of_a_process() -> None:
    here = bytearray(b"1") * (256 << 20)
    run = subprocess.run([sys.executable, "-c", PAGES], check=True, capture_output=True, text=True)
    del here
    given_back, kept = map(int, run.stdout.split())
    assert given_back < 16 and 60 <= kept < 80


@pytest.mark.parametrize(("platform", "right"), [("linux", 3 << 10), ("darwin", 3)])
def test_memory_where_no_proc_tells(platform: str, right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(heap, "open", refuse, raising=False)
    monkeypatch.setattr(heap.resource, "getrusage", lambda _: types.SimpleNamespace(ru_maxrss=3))
    monkeypatch.setattr(heap.sys, "platform", platform)
    assert heap.measure_own_memory() == right
