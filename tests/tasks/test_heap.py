"""A child keeps the memory of its temporaries."""

from __future__ import annotations

import subprocess
import sys

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
