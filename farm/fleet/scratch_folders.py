"""Temporary folders of this process and of its children: what a killed process leaves is removed by whoever comes next."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.relay import remove_folder

#: Seconds after which nobody needs a folder any more that others see.
LEFT_S = 86400.0


def make_scratch_folder() -> Path:
    """Where this process makes temporary folders. It is removed at the process's end; if that is killed, another one of
    the farm does it. Raises PermissionError where somebody else has taken its place."""
    return _make_process_folder(os.getpid())


def make_folder_for_child(cache: Path, launcher: Sequence[str]) -> Path:
    """Where temporary folders are made that a backend's child reads and writes too: behind a launcher that is in the
    cache, which both see under one path."""
    if not launcher:
        return make_scratch_folder()
    shared = cache / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    for path in shared.iterdir():
        with contextlib.suppress(OSError):  # what was killed has left it; another machine's locks are not seen here
            if time.time() - path.stat().st_mtime > LEFT_S:
                remove_folder(path)
    return shared


@functools.cache
def _make_process_folder(pid: int) -> Path:
    """The folder of this process, locked for as long as it lives; before, those are removed whose process is gone."""
    root = Path(tempfile.gettempdir()) / f"farm-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} is not this user's own: remove it, or set TMPDIR to another folder")
    for path in root.iterdir():
        with contextlib.suppress(OSError):  # another process is at it, or alive
            os.close(_lock_scratch_folder(path, fcntl.LOCK_NB, remove=True))
    while True:
        path = Path(tempfile.mkdtemp(dir=root))
        with contextlib.suppress(OSError):  # removed before it was locked
            _lock_scratch_folder(path, 0)  # held until the process ends, however it does
            atexit.register(remove_folder, path)
            return path


def _lock_scratch_folder(path: Path, how: int, remove: bool = False) -> int:
    """A descriptor that holds a folder's lock. Raises OSError where it cannot be had, or the folder is gone by then."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | how)
        os.stat(path)
        if remove:
            remove_folder(path)
    except OSError:
        os.close(held)
        raise
    return held
