"""One child process as its owner sees it: starting, commands and answers, deadlines, memory, and its last words."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm import ONE_THREAD
from farm.exits import starting
from farm.fleet import fork_server, scratch
from tasks import variables, wire
from tasks.backends import needs
from tasks.backends.shared.artefacts import FOLDER, inductor_cache
from tasks.child import PAGE_SIZE, Flying, Page
from tasks.model import Status
from tasks.runner import STAGES
from tasks.wire import ToRun

#: SIGKILLs in a row with the same work in flight after which the work is to blame: anybody may send one, the kernel's
#: memory killer for another process's sake.
KILLS = 3
#: Seconds between two looks at the deadline and the memory of a child.
TICK = 0.05
#: Of a deadline, the most that a process may take on a machine that does not let it run.
STARVED = 10.0
#: Seconds between two looks at which processes it has started: one costs 3 ms.
LISTED_S = 1.0
#: Bytes that a child may say before it is forgotten: a runtime that floods its output must not fill a disk.
WORDS_LIMIT = 32 << 20
#: Seconds for which a killed process is waited for: one that hangs in a driver's call cannot be killed at all.
UNKILLABLE_S = 30.0
#: Characters of stderr kept in an error text.
LAST_WORDS = 600
#: Where `tasks` is importable from: the child needs nothing else of this installation.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Limits:
    """deadline_s: seconds one case may take; memory_gib: resident size at which a child is stopped;
    recycle_bytes: how much it may have grown since its start, after a batch, before it is quietly replaced; pool_bytes: that of a worker's children
    that wait for further batches, above which those that were not used lately are ended; localise_s: seconds that the
    search for the culprit of a failing model may take, 0 for none."""

    deadline_s: float = 60.0
    memory_gib: float = 6.0
    recycle_bytes: int = 2 << 30
    pool_bytes: int = 1 << 30
    localise_s: float = 60.0


@dataclass(frozen=True)
class Death:
    """How a child ended. status: "crash", "timeout" or "oom"; kind: the signal or exit code; text: the story.

    number, stage, together, sample: what was in flight (`tasks.child.Flying`); number −1 when nothing was.
    """

    status: str
    kind: str
    text: str
    number: int
    stage: str
    together: int
    sample: int

    @property
    def killed(self) -> bool:
        """Whether somebody else may have ended the process."""
        return self.kind == signal.SIGKILL.name


class ChildProcess:
    """A process running `tasks.child`; not thread-safe. ``python``: the interpreter of the backend's environment; imports: what it may have
    imported before its first command: it is forked, if it can be, from a process that has. None: it is started plainly."""

    def __init__(
        self, python: str, limits: Limits, env: dict[str, str] | None = None, imports: tuple[str, ...] | None = None
    ) -> None:
        self.limits = limits
        page_fd = os.memfd_create("farm-progress")
        os.ftruncate(page_fd, PAGE_SIZE)
        self.page = Page(page_fd)
        child_in, self._commands = os.pipe()
        self._answers, child_out = os.pipe()
        self._stderr = tempfile.TemporaryFile(mode="w+b", buffering=0)
        # Appending, so that a flood can be cut off at any time: what is written next starts at the new end.
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, fcntl.fcntl(self._stderr, fcntl.F_GETFL) | os.O_APPEND)
        fds = (child_in, child_out, page_fd)
        #: What runtimes leave in their temporary folder when they die goes with the process.
        self._folder = tempfile.mkdtemp(prefix="child-", dir=scratch.folder())
        given = child_env(env, python) | {"TMPDIR": self._folder}
        forked = None
        if imports is not None and python in ("", default_python()):
            forked = fork_server.fork(given, imports, (*fds, self._stderr.fileno()))
        self.process = forked or _started(python, fds, self._stderr.fileno(), given)
        for fd in fds:
            os.close(fd)
        self._buffer = b""
        self.answering = False
        self._cpu_s = self._shared_s = forked.shared_s if forked else 0.0
        #: How many cases it has run, and the last of them: what they left behind may be what kills it.
        self.served, self.before = 0, list[ToRun]()

    def close(self) -> None:
        """End the process and everything it started."""
        self._kill()
        for fd in (self._commands, self._answers):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """From another thread: kill the process; whoever waits for its answer sees its death."""
        if self.process.returncode is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=UNKILLABLE_S)

    def call(self, command: Any, deadline_s: float | None = None) -> Iterator[Any]:
        """Send a command of `tasks.wire`; yield its messages. The last item is an Answer or a Death (the process is gone).

        ``deadline_s`` bounds one step of the command instead of the limits' own deadline.
        """
        deadline = deadline_s if deadline_s is not None else self.limits.deadline_s
        self.answering = True  # until its last item: whoever stops before that leaves the rest in the pipe
        self._forget_old_words()
        try:
            self._send(wire.encode(command))
        except BrokenPipeError:
            yield self._death("", "")
            return
        looked, begun = time.monotonic(), time.monotonic()
        starved = Starved(self.process.pid)
        while True:
            ready, _, _ = select.select([self._answers], [], [], TICK)
            if ready:
                data = os.read(self._answers, 1 << 20)
                if not data:
                    yield self._death("", "")
                    return
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    message = wire.decode(line)
                    self.answering = not isinstance(message, wire.Answer)
                    yield message
                    if not self.answering:
                        return
            elif self.process.poll() is not None and not select.select([self._answers], [], [], 0)[0]:
                # Gone, and yet its pipe is open: a process that it forked holds it.
                yield self._death("", "")
                return
            now = time.monotonic()
            if now - looked < TICK:
                continue
            looked = now
            if os.fstat(self._stderr.fileno()).st_size > WORDS_LIMIT:
                self._forget_old_words()
            flying = self.page.read()
            steps = max(flying.together, 1) if flying.number >= 0 else 1
            since, bound = max(flying.since, begun), deadline * steps
            flown = now - since
            if flown > bound / 10 and flown - min(starved.s(since), (STARVED - 1) * bound) > bound:
                fix = "" if deadline_s is not None else "; deadline_s of the config sets it"
                yield self._stop(Status.TIMEOUT.value, f"exceeded its {bound:g} s deadline{fix}")
                return
            self.cpu_s()  # a dead process can no longer be asked
            if self.resident() > (most := self.limits.memory_gib) * (1 << 30):
                yield self._stop(Status.OOM.value, f"the process grew past {most:.3g} GiB")
                return

    def ask(self, command: Any, deadline_s: float | None = None) -> Any:
        """Send a command that has no messages but its answer; that, or the Death of the process."""
        return list(self.call(command, deadline_s))[-1]

    @classmethod
    def asked(
        cls,
        python: str,
        limits: Limits,
        env: dict[str, str] | None,
        command: Any,
        deadline_s: float,
        imports: tuple[str, ...] | None = None,
    ) -> tuple[ChildProcess, Any]:
        """A new process and its answer to a first command; one that somebody kills meanwhile is started again."""
        for left in reversed(range(KILLS)):
            child = cls(python, limits, env, imports)
            answer = child.ask(command, deadline_s)
            if not (left and isinstance(answer, Death) and answer.killed):
                break
            child.close()
        return child, answer

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._commands, data) :]

    def alive(self) -> bool:
        return self.process.poll() is None

    def resident(self) -> int:
        """Resident memory in bytes; 0 when it cannot be read."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as file:
                return int(file.read().split()[1]) * PAGE_SIZE
        except (OSError, IndexError):
            return 0

    def cpu_s(self) -> float:
        """CPU seconds of the process and of those it started and waited for, when it was last alive to be asked; and what was
        imported for it before it was forked."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{self.process.pid}/stat") as file:
                times = file.read().rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime (proc(5))
            self._cpu_s = max(self._cpu_s, self._shared_s + sum(map(int, times)) / os.sysconf("SC_CLK_TCK"))
        return self._cpu_s

    def _stop(self, status: str, story: str) -> Death:
        flying = self.page.read()
        self._kill()
        return self._death(status, story, flying)

    def _death(self, status: str, story: str, flying: Flying | None = None) -> Death:
        self._drain()
        flying = flying or self.page.read()
        self._kill()
        code, kind = self.process.returncode, status
        if not status:
            status = Status.CRASH.value
            if code is None:
                kind, story = "unkillable", "the process closed its pipe and hangs, most likely in a driver call"
            elif code < 0:
                kind = signal.Signals(-code).name
                story = f"the process died of {kind}"
            else:
                kind, story = f"exit code {code}", f"the process ended with exit code {code}"
        words = self._last_words()
        stage = STAGES[flying.stage]
        text = f"{story} at stage {stage}" + (f"\n{words}" if words else "")
        return Death(status, kind, text, flying.number, stage, flying.together, flying.sample)

    def _drain(self) -> None:
        """Wait a moment for a process whose pipe closed to be gone, so that its exit status is its own."""
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            pass

    def _last_words(self) -> str:
        """The end of what was written to stdout and stderr since the case in flight began."""
        try:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(self.page.said, size - LAST_WORDS))
            return self._stderr.read().decode(errors="replace").strip()
        except (OSError, ValueError):
            return ""

    def _forget_old_words(self) -> None:
        self._stderr.seek(0)
        self._stderr.truncate()
        self.page.said = 0


def _started(
    python: str, fds: tuple[int, ...], said: int, env: dict[str, str]
) -> subprocess.Popen[bytes] | fork_server.Forked:
    """A child started plainly: it imports all that it needs itself."""
    with starting:
        return subprocess.Popen(
            [python, "-u", "-m", "tasks.child", *map(str, (*fds, os.getpid()))],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=fds,
            env=env,
            start_new_session=True,
        )


class Starved:
    """For how long the machine has kept a process, or one of its session (a compiler that it waits for), from running: its slowness is
    no case's.

    Not the scheduler's own count of waiting alone: a virtual machine whose host takes its processor away has not waited.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid, self._proc = pid, proc
        self._since, self._looked, self._kept = -1.0, 0.0, 0.0
        self._ran, self._stalled = dict[str, float](), 0
        self._session, self._listed = list[Path](), -math.inf

    def s(self, since: float) -> float:
        """Seconds in which a thread wanted to run and did not, since this was first asked about the case that began at
        ``since``: from look to look the time that passed, less what the thread ran, for that thread which lost most."""
        now, stalled = time.monotonic(), self._stalls()
        passed, lost, ran = now - self._looked, 0.0, dict[str, float]()
        if now - self._listed >= LISTED_S:
            self._session, self._listed = self._members(), now
        for process in self._session:
            with contextlib.suppress(OSError, IndexError, ValueError):  # gone, or a kernel without schedstat
                for thread in (process / "task").iterdir():
                    ran[thread.name] = float((thread / "schedstat").read_text().split()[0]) / 1e9
                    state = _fields(thread)[0]
                    # D is a wait that no signal ends: for the disk, where others of this machine wait for it too, or in a driver.
                    wanted = state == "R" or (state == "D" and stalled > self._stalled)
                    if wanted and thread.name in self._ran:
                        lost = max(lost, passed - (ran[thread.name] - self._ran[thread.name]))
        self._kept = self._kept + lost if since == self._since else 0.0
        self._since, self._looked, self._ran, self._stalled = since, now, ran, stalled
        return self._kept

    def _members(self) -> list[Path]:
        """The process and the others of its session."""
        found = [self._proc / str(self._pid)]
        with contextlib.suppress(OSError):
            for path in self._proc.iterdir():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    if path.name.isdigit() and path != found[0] and int(_fields(path)[3]) == self._pid:
                        found.append(path)
        return found

    def _stalls(self) -> int:
        """Microseconds in which anything on this machine has waited for a disk or for memory; 0 where the kernel does not tell."""
        total = 0
        for name in ("io", "memory"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                total += int((self._proc / "pressure" / name).read_text().split()[4].partition("=")[2])
        return total


def _fields(path: Path) -> list[str]:
    """State, parent, group, session … of a process or thread (proc(5))."""
    return (path / "stat").read_text().rpartition(")")[2].split()


def child_env(extra: dict[str, str] | None = None, python: str = "") -> dict[str, str]:
    """Environment of a child: this one's, one thread everywhere, `tasks` importable, compilers' caches shared.

    The child of another environment's ``python`` sees nothing of this one but `tasks`.
    """
    env = variables.kept({k: v for k, v in os.environ.items() if not k.startswith("RAY_")})
    env |= ONE_THREAD
    # A plugin of torch that is installed but broken must not break torch.
    env.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    # OpInfo takes samples from sets of strings (meshgrid's indexing), and no key of what is prepared has this variable.
    env["PYTHONHASHSEED"] = "0"
    if torch := importlib.util.find_spec("torch"):
        env.setdefault(needs.LENT, str(Path(torch.origin or "").parent / "lib"))
    path = env.get("PYTHONPATH", "")
    own = python in ("", default_python())
    if not own:
        # Its folder is the farm's own: modules compiled once (TensorFlow's take ten seconds) stay compiled.
        for name in ("VIRTUAL_ENV", "PYTHONHOME", "__PYVENV_LAUNCHER__", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        # Ray's own additions for its workers (its job's working directory, this installation) are of this Python.
        path = without_farm(path)
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT if own else tasks_alone()), *([path] if path else [])])
    return env | (extra or {})


def caches(cache: Path) -> dict[str, str]:
    """Variables that tell compilers where to keep what they make."""
    return {"TORCHINDUCTOR_CACHE_DIR": inductor_cache(cache), FOLDER: str(cache / "artefacts")}


def without_farm(path: str) -> str:
    """The folders of a PYTHONPATH, but for this installation's own."""
    return os.pathsep.join(p for p in path.split(os.pathsep) if p and Path(p).resolve() != ROOT)


def tasks_alone() -> Path:
    """A folder that holds `tasks` and nothing else: beside an installed farm stand packages of another Python."""
    folder = scratch.folder() / "alone"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "tasks").symlink_to(ROOT / "tasks")
    return folder


def default_python() -> str:
    return sys.executable
