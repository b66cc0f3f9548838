"""The process that runs cells: commands come in over one pipe, rows go out over another, one at a time.

Started as ``python -m tasks.child IN OUT PROGRESS``: three inherited file descriptors. A command and an answer
are each one line of JSON. PROGRESS is a shared page that says what is in flight, written before every step
with at most one system call, so that whoever finds this process dead knows whom to blame.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
import warnings
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.arrays.pack import PackError
from tasks.model import Group, Unavailable

#: The progress page: number of the case in flight, stage, span, and when it started (CLOCK_MONOTONIC seconds).
PAGE = struct.Struct("<iiid")
#: Behind it: size of the file that stderr goes to when the case in flight began, in bytes.
SAID = struct.Struct("<q")
PAGE_SIZE = mmap.PAGESIZE
PR_SET_PDEATHSIG = 1

#: Errors of the cache's disk (full, read-only, emptied under a run) rather than of a case.
STORAGE = (errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

#: Messages of a command, then its answer.
Steps = Generator[dict[str, Any], None, dict[str, Any]]


class Page:
    """The shared progress page; the child writes, the supervisor reads."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_SIZE)
        self._number = -1

    def write(self, number: int, stage: int, span: int) -> None:
        if number != self._number:
            self._number, self.said = number, os.fstat(2).st_size
        PAGE.pack_into(self._map, 0, number, stage, span, time.monotonic())

    def read(self) -> tuple[int, int, int, float]:
        """(number, stage, span, monotonic start); stage 0 means that nothing is in flight."""
        number, stage, span, since = PAGE.unpack_from(self._map, 0)
        return number, stage, span, since

    @property
    def said(self) -> int:
        """Bytes that stderr held before the case in flight: another case's words."""
        return int(SAID.unpack_from(self._map, PAGE.size)[0])

    @said.setter
    def said(self, size: int) -> None:
        SAID.pack_into(self._map, PAGE.size, size)


class Child:
    """Serves commands: hello, list, prepare, export, batch (see the methods of those names).

    `steps` yields a command's messages as they come; the last one is {"end": answer}.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.runner: Any = None

    def steps(self, command: dict[str, Any]) -> Iterator[dict[str, Any]]:
        arguments = {k: v for k, v in command.items() if k != "do"}
        try:
            answer = yield from getattr(self, "do_" + command["do"])(**arguments)
        except OSError as error:
            if error.errno not in STORAGE:
                raise
            # No case is to blame for a full disk: whoever gave the command must stop.
            answer = {"stop": f"{error.strerror}: {error.filename or arguments.get('cache', '')}"}
        except PackError as error:
            answer = {"stop": str(error)}
        self.page.write(-1, 0, 0)
        yield {"end": answer}

    @property
    def broken(self) -> bool:
        """True when the device is unusable in this process."""
        return self.runner is not None and self.runner.broken

    def do_hello(self, backend: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> Steps:
        """Import the backend's runtime and find its device; answers RuntimeInfo's fields or why not."""
        from tasks.backends import BackendSpec
        from tasks.judge import verdict
        from tasks.runner import Runner

        yield from ()
        if backend is None:
            return {}
        self.page.write(-1, 1, 1)
        try:
            made = BackendSpec(**backend).create()
            info = made.probe()
        except Unavailable as error:
            return {"unavailable": str(error)}
        except Exception as error:
            return {"unavailable": f"{type(error).__name__}: {error}"}
        rules = verdict.from_json(policy) if policy else verdict.load("error_units")
        self.runner = Runner(made, info, rules, self.page.write)
        return asdict(info) | {
            "vendor": made.vendor,
            "device_vendor": made.device_vendor,
            "resource": made.resource,
            "joint": made.joint,
            "forms": list(made.forms),
            "emulated": made.emulated,
        }

    def do_list(self, catalog: str) -> Steps:
        """Every entry of a catalog, or {"error", "key"} of one that is configured wrongly."""
        import tasks.catalogs as catalogs

        yield from ()
        made = catalogs.get(catalog)
        try:
            entries = made.entries()
        except catalogs.CatalogError as error:
            return {"error": str(error), "key": list(error.key)}
        return {
            "entries": [[e.op, e.variant, list(e.dtypes), list(e.checks), list(e.distributions)] for e in entries],
            "forms": list(made.forms),
            "exports": list(made.exports),
        }

    def do_prepare(self, items: list[dict[str, Any]], cache: str, skip: list[int]) -> Steps:
        """Prepare groups; one message per group: its number, content key, and the indices of its samples."""
        from tasks.catalogs.base import Failure
        from tasks.prepare.cases import prepare

        for number, item in enumerate(items):
            if number in skip:
                continue
            bad = {int(k): Failure(**v) for k, v in item.get("bad", {}).items()}

            def started(place: int, number: int = number) -> None:
                self.page.write(number, 1, place)

            name, made = prepare(Group(**item["group"]), Path(cache), bad=bad or None, started=started)
            path, indices = str(made.pack.path), [s.index for s in made.samples]
            yield {"number": number, "key": name, "path": path, "samples": indices}
        return {}

    def do_export(self, items: list[dict[str, Any]], cache: str, skip: list[int]) -> Steps:
        """Export forms of prepared groups; one message per group: its number and the path of the forms."""
        from tasks.prepare.forms import export

        for number, item in enumerate(items):
            if number in skip:
                continue

            def started(place: int, number: int = number) -> None:
                self.page.write(number, 1, place)

            bad = {int(k): str(v) for k, v in item.get("bad", {}).items()}
            path = export(Path(item["pack"]), Path(cache), item["form"], item["count"], bad, started)
            yield {"number": number, "path": str(path)}
        return {}

    def do_batch(self, items: list[dict[str, Any]], skip: list[int], solo: list[int]) -> Steps:
        """Run cases; one message per row."""
        from tasks.runner import Item

        self.page.write(-1, 1, 1)
        made = [
            Item(i["pack"], i["places"], i.get("form"), i.get("label", ""), i.get("check") or "", i.get("keep") or "")
            for i in items
        ]
        for done in self.runner.run(made, set(skip), set(solo)):
            yield {"number": done.number, "row": done.row.__dict__}
        return {}


def main() -> None:
    """Entry point; see the module's docstring for the arguments."""
    read_fd, write_fd, page_fd = map(int, sys.argv[1:4])
    if sys.platform == "linux":
        # Die with the supervisor, however it ends: an orphan would hold the device.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    page = Page(page_fd)

    encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

    def send(message: dict[str, Any]) -> None:
        data = encode(message).encode() + b"\n"
        while data:
            data = data[os.write(write_fd, data) :]

    with os.fdopen(read_fd, "r", encoding="utf-8") as commands:
        child = Child(page)
        for line in commands:
            for message in child.steps(json.loads(line)):
                send(message)
            if child.broken:
                break
    # Leave without the runtimes' exit handlers: they have nothing to save and some hang.
    os._exit(0)


if __name__ == "__main__":
    main()
