"""How a supervisor holds the process of a child, wherever that runs: what it says to it and hears, and what it knows of it.

On this machine the child inherits descriptors (`InheritedChannel`). Behind a launcher (a command in front of the interpreter)
it has a relay beside it (`tasks.relay`), and the launcher's stdin and stdout carry everything (`LaunchedChild`).
docs/decisions/launcher.md has the reasons.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from farm.exits import starting
from farm.fleet import fork_server
from tasks.importing import make_module_command
from tasks.relay import MARK, PAGE_SIZE, CaseInFlight, ProgressPage, StarvedTime, count_memory_kills

#: Bytes that are read at a time.
READ = 1 << 20
#: Seconds without a word from a relay, which tells something every second, after which its launcher hangs.
SILENT_S = 60.0
#: Seconds that a launcher is given to end by itself once its process has no stdin any more.
ENDING_S = 5.0
#: Seconds for which a killed process is waited for: one that hangs in a driver's call cannot be killed at all.
UNKILLABLE_S = 30.0
#: Kind of a death that is the launcher's, or of what it leads to: no case is to blame unless it repeats.
LAUNCHER = "launcher"


@dataclass(frozen=True)
class Interpreter:
    """What a child is started with. python: its path, or its name behind a launcher; folders: what is laid over it, to
    be importable; launcher: the command in front of it; relay: the path of `tasks.relay` where there is one; shared:
    the cache, which both sides of a launcher see.
    """

    python: str
    folders: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    relay: str = ""
    shared: Path = Path()

    @property
    def overlays(self) -> tuple[str, ...]:
        """Of the folders those with packages that the interpreter lacks."""
        return self.folders[bool(self.launcher) :]

    @property
    def command(self) -> tuple[str, ...]:
        """What runs a Python program in it, before the program's own arguments."""
        return (*self.launcher, self.python)


class Channel(Protocol):
    """A child that runs. pid, returncode, wait are those of the process that was started here (`subprocess.Popen`)."""

    process: Any
    #: What can be read once something was said.
    answers: int

    def send(self, data: bytes) -> None:
        """Say a line to it. Raises BrokenPipeError."""

    def receive(self) -> list[bytes] | None:
        """The lines that it has said, when `answers` can be read; None where it says no more."""

    def listen(self) -> None:
        """Hear how it is while it has nothing to answer."""

    def flying(self) -> CaseInFlight:
        """What is in flight, as far as that is known here."""

    @property
    def output_start(self) -> int:
        """Bytes of its words (stdout and stderr) before the case in flight."""

    def forget_words(self) -> None:
        """Its words are counted from 0 again."""

    def resident(self) -> int:
        """Bytes of its memory."""

    def cpu_s(self) -> float:
        """CPU seconds that it has used."""

    def starved_s(self, since: float) -> float:
        """Seconds in which its machine did not let it run, of those since the case in flight began."""

    def memory_kills(self) -> int:
        """How many processes have been ended where it is for want of memory."""

    def silent(self) -> bool:
        """Whether it should have been heard of for long."""

    def fate(self) -> tuple[int | None, str]:
        """Exit status of one that has ended (None: it hangs), and the sentence that says it where that is not the
        child's own."""

    def kill(self) -> None:
        """From another thread: kill it, soon."""

    def end(self) -> None:
        """Kill it and all that it has started."""

    def close(self) -> None:
        """Close what is open of it."""


class InheritedChannel:
    """A child of this machine, which inherits its descriptors. imports: what it may have imported before its first
    command: it is forked, if it can be, from a process that has. None: it is started plainly. words: where its stdout
    and stderr go."""

    def __init__(self, python: str, env: dict[str, str], imports: tuple[str, ...] | None, words: int) -> None:
        page = os.memfd_create("farm-progress")
        os.ftruncate(page, PAGE_SIZE)
        self._page = ProgressPage(page)
        child_in, self._commands = os.pipe()
        self.answers, child_out = os.pipe()
        fds = (child_in, child_out, page)
        forked = fork_server.fork_child(env, imports, (*fds, words)) if imports is not None else None
        self.process = forked or _start_child_plainly(python, fds, words, env)
        for fd in fds:
            os.close(fd)
        self._cpu_s = self._shared_s = forked.shared_s if forked else 0.0
        self._starved, self._rest = StarvedTime(self.process.pid), b""

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._commands, data) :]

    def receive(self) -> list[bytes] | None:
        data = os.read(self.answers, READ)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines if data else None

    def listen(self) -> None:
        return

    def flying(self) -> CaseInFlight:
        return self._page.read()

    @property
    def output_start(self) -> int:
        return self._page.output_start

    def forget_words(self) -> None:
        self._page.output_start = 0

    def resident(self) -> int:
        return self._page.resident(self.process.pid)

    def cpu_s(self) -> float:
        """As when it was last alive to be asked; and what was imported for it before it was forked."""
        self._cpu_s = max(self._cpu_s, self._shared_s + self._page.cpu_s(self.process.pid))
        return self._cpu_s

    def starved_s(self, since: float) -> float:
        return self._starved.s(since)

    def memory_kills(self) -> int:
        return count_memory_kills()

    def silent(self) -> bool:
        return False

    def fate(self) -> tuple[int | None, str]:
        return self.process.returncode, ""

    def kill(self) -> None:
        if self.process.returncode is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=UNKILLABLE_S)

    def close(self) -> None:
        for fd in (self._commands, self.answers):
            with contextlib.suppress(OSError):
                os.close(fd)


class LaunchedChild:
    """A child behind a launcher, which is started here. What is known of the child is what its relay told last; the
    clock is this machine's. env: of the child, beside what it has there; words: where the launcher's stderr goes.
    Raises OSError."""

    def __init__(self, interpreter: Interpreter, env: Mapping[str, str], words: int) -> None:
        with starting:
            self.process = subprocess.Popen(
                [*interpreter.command, interpreter.relay],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
            )
        assert self.process.stdin and self.process.stdout
        self._launcher, self._words = interpreter.launcher, words
        self.answers = self.process.stdout.fileno()
        self._rest, self._said = b"", 0
        self._flying, self._told = CaseInFlight(-1, 0, 0, 0, time.monotonic()), dict[str, Any]()
        self._heard_at, self._begun = time.monotonic(), False
        self._first = json.dumps({"env": dict(env), "path": interpreter.folders}).encode() + b"\n"

    def send(self, data: bytes) -> None:
        # The relay reads the first line by itself, and the rest as it comes: both may go at once.
        self._first, data = b"", self._first + data
        assert self.process.stdin
        self._heard_at = time.monotonic()
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def receive(self) -> list[bytes] | None:
        if "ended" in self._told:
            return None
        data = os.read(self.answers, READ)
        self._heard_at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        answers = []
        for line in lines:
            if line.startswith(MARK):
                self._hear(json.loads(line.removeprefix(MARK)))
            elif line.startswith(b"{"):
                answers.append(line)
            elif line:  # a banner, or the launcher's own words
                os.write(self._words, line + b"\n")
        return answers if data else answers or None

    def _hear(self, told: dict[str, Any]) -> None:
        self._begun, self._told = True, told or self._told
        if told:
            number, stage, together, sample, age = told["flying"]
            if number != self._flying.number:
                self._said = os.fstat(self._words).st_size
            self._flying = CaseInFlight(number, stage, together, sample, time.monotonic() - age)

    def listen(self) -> None:
        while "ended" not in self._told and self._begun and select.select([self.answers], [], [], 0)[0]:
            if self.receive() is None:
                return

    def flying(self) -> CaseInFlight:
        return self._flying

    @property
    def output_start(self) -> int:
        return self._said

    def forget_words(self) -> None:
        self._said = 0

    def resident(self) -> int:
        return int(self._told.get("resident", 0))

    def cpu_s(self) -> float:
        return float(self._told.get("cpu_s", 0.0))

    def starved_s(self, since: float) -> float:
        return float(self._told.get("starved_s", 0.0))

    def memory_kills(self) -> int:
        return int(self._told.get("memory_kills", 0))

    def silent(self) -> bool:
        return self._begun and time.monotonic() - self._heard_at > SILENT_S

    def fate(self) -> tuple[int | None, str]:
        if "ended" in self._told:
            return self._told["ended"], ""
        who, code = f"the launcher {shlex.join(self._launcher)}", self.process.returncode
        what = "does not end" if code is None else f"ended ({describe_child_exit(code)})"
        return code, f"{who} {what}" + (", and its process with it" if self._begun else " before its process began")

    def kill(self) -> None:
        # Its process is to have time to end its own: what a launcher leads to does not die of this machine's signals.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Its relay ends with its stdin; a launcher that does not is killed."""
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        until = time.monotonic() + ENDING_S
        while self.process.poll() is None and (left := until - time.monotonic()) > 0:
            # A relay that has something to say must be rid of it before it looks at its stdin.
            if select.select([self.answers], [], [], min(left, 0.05))[0] and not os.read(self.answers, READ):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=left)
                break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=UNKILLABLE_S)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        for file in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                file.close()


def describe_child_exit(code: int) -> str:
    """An exit status in words."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _start_child_plainly(
    python: str, fds: tuple[int, ...], said: int, env: dict[str, str]
) -> subprocess.Popen[bytes] | fork_server.ForkedChild:
    """A child started plainly: it imports all that it needs itself."""
    with starting:
        return subprocess.Popen(
            [*make_module_command(python, "tasks.child"), *map(str, (*fds, os.getpid()))],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=fds,
            env=env,
            start_new_session=True,
        )
