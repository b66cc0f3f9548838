"""A child keeps the memory of its temporaries."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

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


KEPT = """
import pathlib, resource
import numpy as np
from tasks import heap
def count_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def write_arrays():
    before = count_faults()
    for _ in range(3):
        some = [np.ones(1 << 23) for _ in range(4)]
        del some
    return count_faults() - before
with heap.keep_freed_arrays(1 << 29):
    first, again = write_arrays(), write_arrays()
    held = heap.measure_own_memory()
    heap.give_freed_memory_back()
    given = held - heap.measure_own_memory()
    anew = write_arrays()
left = held - heap.measure_own_memory()
with heap.keep_freed_arrays(1 << 62):
    write_arrays()
print(first, again, anew, given >> 20, left >> 20)
"""
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_large_arrays_are_kept_in_huge_pages_until_they_are_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", KEPT], check=True, capture_output=True, text=True)
    first, again, anew, given, left = map(int, run.stdout.split())
    assert again < 100 and given >= 250 and left >= 250
    if THP.exists() and "[never]" not in THP.read_text():
        assert first < 10_000 and anew < 10_000, "256 MiB are 65,536 small pages"


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
