"""What a native library prints: many a converter tells why it failed nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def capture_native_output(said: list[str]) -> Iterator[None]:
    """Append what the process writes to its stdout and stderr meanwhile (Python's and C's) to ``said``, as one text."""
    _flush_native_output()
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(1), os.dup(2)]
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            _flush_native_output()
            for descriptor, real in zip((1, 2), kept):
                os.dup2(real, descriptor)
                os.close(real)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def _flush_native_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # none, or closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)
