"""One child process as its owner sees it: starting, commands and answers, deadlines, memory, and its last words."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm import ONE_THREAD
from farm.fleet import scratch_folders
from farm.fleet.channel import LAUNCHER, Channel, InheritedChannel, Interpreter, LaunchedChild, describe_child_exit
from tasks import variables, wire
from tasks.backends import needs
from tasks.backends.shared.artefacts import FOLDER, name_inductor_cache
from tasks.devices import VISIBLE
from tasks.model import RACE_S, Status
from tasks.relay import STAGES, CaseInFlight, measure_machine_memory, remove_folder
from tasks.wire import ToRun

#: SIGKILLs in a row with the same work in flight after which the work is to blame: anybody may send one, the kernel's
#: memory killer for another process's sake.
KILLS = 3
#: What of its machine's memory a child may take at most, whatever its limit: beyond it the kernel ends processes that did
#: nothing.
NODE_SHARE = 0.9
#: Seconds between two looks at the deadline and the memory of a child.
TICK = 0.05
#: Of a deadline, the most that a process may take on a machine that does not let it run.
STARVED = 10.0
#: Bytes that a child may say before it is forgotten: a runtime that floods its output must not fill a disk.
WORDS_LIMIT = 32 << 20
#: Variables of every child. A plugin of torch that is installed but broken must not break torch; OpInfo takes samples
#: from sets of strings (meshgrid's indexing), and no key of what is prepared has the seed of their hashes.
ALIKE = ONE_THREAD | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONHASHSEED": "0"}
#: Characters of stderr kept in an error text.
LAST_WORDS = 600
#: Where `tasks` is importable from: the child needs nothing else of this installation.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Limits:
    """deadline_s: seconds one case may take; memory_gib: resident size at which a child is stopped, if its
    machine has so much (NODE_SHARE); recycle_bytes: how much it may have grown since its start, after a batch, before
    it is quietly replaced; pool_bytes: that of a worker's children that wait for further batches, above which those
    that were not used lately are ended; localise_s: seconds that the search for the culprit of a failing model may
    take, 0 for none; race_s: those of a race between a program and its baseline."""

    deadline_s: float = 60.0
    memory_gib: float = 6.0
    recycle_bytes: int = 2 << 30
    pool_bytes: int = 1 << 30
    localise_s: float = 60.0
    race_s: float = RACE_S


@dataclass(frozen=True)
class ChildDeath:
    """How a child ended. status: "crash", "timeout" or "oom"; kind: the signal or exit code; text: the story.

    number, stage, together, sample: what was in flight (`tasks.relay.CaseInFlight`); number −1 when nothing was.
    """

    status: str
    kind: str
    text: str
    number: int
    stage: str
    together: int
    sample: int

    @property
    def was_killed(self) -> bool:
        """Whether somebody else may have ended the process."""
        return self.kind in (signal.SIGKILL.name, LAUNCHER)


class ChildProcess:
    """A process running `tasks.child`; not thread-safe. ``python``: the interpreter of the backend's environment, or
    all that it is started with; imports: what it may have imported before its first command: it is forked, if it can
    be, from a process that has. None: it is started plainly."""

    def __init__(
        self,
        python: str | Interpreter,
        limits: Limits,
        env: dict[str, str] | None = None,
        imports: tuple[str, ...] | None = None,
    ) -> None:
        self.limits = limits
        self._stderr = tempfile.TemporaryFile(mode="w+b", buffering=0)
        # Appending, so that a flood can be cut off at any time: what is written next starts at the new end.
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, fcntl.fcntl(self._stderr, fcntl.F_GETFL) | os.O_APPEND)
        #: What runtimes leave in their temporary folder when they die goes with the process.
        self._folder = tempfile.mkdtemp(prefix="child-", dir=scratch_folders.make_scratch_folder())
        words, with_ = self._stderr.fileno(), python if isinstance(python, Interpreter) else Interpreter(python)
        self.channel: Channel
        if with_.launcher:
            self.channel = LaunchedChild(with_, make_launched_environment(env), words)
        else:
            own = with_.python in ("", find_default_python())
            given = make_child_environment(env, with_.python, with_.folders) | {"TMPDIR": self._folder}
            here = NODE_SHARE * measure_machine_memory() / (1 << 30)
            self.limits = limits = replace(limits, memory_gib=min(limits.memory_gib, here))
            given[variables.MEMORY] = str(int(limits.memory_gib * (1 << 30)))
            given[variables.DEADLINE] = str(limits.deadline_s)
            self.channel = InheritedChannel(with_.python, given, imports if own else None, words)
        self.process = self.channel.process
        self.answering = False
        #: Its memory in bytes at the last look; how many processes had been ended for want of it when the case in flight
        #: began, and which that is.
        self._resident, self._memory_kills, self._counted_for = 0, 0, -1
        #: How many cases it has run, and the last of them: what they left behind may be what kills it.
        self.served, self.before = 0, list[tuple[ToRun, int]]()

    def close(self) -> None:
        """End the process and everything it started."""
        self.channel.end()
        self.channel.close()
        self._stderr.close()
        remove_folder(self._folder)

    def kill(self) -> None:
        """From another thread: kill the process; whoever waits for its answer sees its death."""
        self.channel.kill()

    def call(self, command: Any, deadline_s: float | None = None) -> Iterator[Any]:
        """Send a command of `tasks.wire`; yield its messages. The last item is an Answer or a Death (the process is
        gone).

        ``deadline_s`` bounds one step of the command instead of the limits' own deadline.
        """
        deadline = deadline_s if deadline_s is not None else self.limits.deadline_s
        self.answering = True  # until its last item: whoever stops before that leaves the rest in the pipe
        self._forget_old_words()
        self._memory_kills, self._counted_for = self.channel.memory_kills(), -1
        try:
            self.channel.send(wire.encode_wire_message(command))
        except BrokenPipeError:
            yield self._death("", "")
            return
        looked, begun = time.monotonic(), time.monotonic()
        while True:
            ready, _, _ = select.select([self.channel.answers], [], [], TICK)
            if ready:
                lines = self.channel.receive()
                if lines is None:
                    yield self._death("", "")
                    return
                for line in lines:
                    message = wire.decode_wire_message(line)
                    self.answering = not isinstance(message, wire.Answer)
                    yield message
                    if not self.answering:
                        return
            elif self.process.poll() is not None and not select.select([self.channel.answers], [], [], 0)[0]:
                # Gone, and yet its pipe is open: a process that it forked holds it.
                yield self._death("", "")
                return
            now = time.monotonic()
            if now - looked < TICK:
                continue
            looked = now
            if os.fstat(self._stderr.fileno()).st_size > WORDS_LIMIT:
                self._forget_old_words()
            if self.channel.silent():
                yield self._stop(LAUNCHER, "nothing is heard of its launcher any more")
                return
            flying = self.channel.flying()
            if flying.number != self._counted_for:
                self._memory_kills, self._counted_for = self.channel.memory_kills(), flying.number
            steps = max(flying.together, 1) if flying.number >= 0 else 1
            since, bound = max(flying.since, begun), deadline * steps
            flown = now - since
            if is_child_overdue(flown, bound, functools.partial(self.channel.starved_s, since)):
                fix = "" if deadline_s is not None else "; deadline_s of the config sets it"
                yield self._stop(Status.TIMEOUT.value, f"exceeded its {bound:g} s deadline{fix}")
                return
            self.cpu_s()  # a dead process can no longer be asked
            self._resident = self.resident()
            if self._resident > (most := self.limits.memory_gib) * (1 << 30):
                yield self._stop(Status.OOM.value, f"the process grew past {most:.3g} GiB")
                return

    def ask(self, command: Any, deadline_s: float | None = None) -> Any:
        """Send a command that has no messages but its answer; that, or the Death of the process."""
        return list(self.call(command, deadline_s))[-1]

    @classmethod
    def start_and_ask(
        cls,
        python: str | Interpreter,
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
            if not (left and isinstance(answer, ChildDeath) and answer.was_killed):
                break
            child.close()
        return child, answer

    def alive(self) -> bool:
        return self.process.poll() is None

    def resident(self) -> int:
        """Resident memory in bytes; 0 when it cannot be read."""
        self._listen()
        return self.channel.resident()

    def cpu_s(self) -> float:
        """CPU seconds of the process and of those it started and waited for, when it was last alive to be asked; and
        what was imported for it before it was forked."""
        self._listen()
        return self.channel.cpu_s()

    def _listen(self) -> None:
        if not self.answering:
            self.channel.listen()

    def _stop(self, why: str, story: str) -> ChildDeath:
        """End the process. why: the status of that, or LAUNCHER."""
        flying = self.channel.flying()
        self.channel.end()
        return self._death(why, story, flying)

    def _death(self, why: str, story: str, flying: CaseInFlight | None = None) -> ChildDeath:
        self._drain()
        flying = flying or self.channel.flying()
        self.channel.end()
        status, kind = why, why
        if why in ("", LAUNCHER):
            status = Status.CRASH.value
        if not why:
            code, story = self.channel.fate()
            if story:
                kind = LAUNCHER
            elif code is None:
                kind, story = "unkillable", "the process closed its pipe and hangs, most likely in a driver call"
            elif code < 0:
                kind = describe_child_exit(code)
                story = f"the process died of {kind}"
                if code == -signal.SIGKILL and self.channel.memory_kills() > self._memory_kills:
                    status = Status.OOM.value
                    story += f", as this machine had no memory left ({self._resident / (1 << 30):.3g} GiB were its own)"
            else:
                kind = describe_child_exit(code)
                story = f"the process ended with {kind}"
        words = self._last_words()
        stage = STAGES[flying.stage]
        text = f"{story} at stage {stage}" + (f"\n{words}" if words else "")
        return ChildDeath(status, kind, text, flying.number, stage, flying.together, flying.sample)

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
            self._stderr.seek(max(self.channel.output_start, size - LAST_WORDS))
            return self._stderr.read().decode(errors="replace").strip()
        except (OSError, ValueError):
            return ""

    def _forget_old_words(self) -> None:
        self._stderr.seek(0)
        self._stderr.truncate()
        self.channel.forget_words()


def is_child_overdue(passed_s: float, bound_s: float, starved_s: Callable[[], float]) -> bool:
    """Whether a process has had the seconds that it may take. starved_s: those in which the machine did not let it run,
    to be asked from time to time (`tasks.relay.StarvedTime`)."""
    return passed_s > bound_s / 10 and passed_s - min(starved_s(), (STARVED - 1) * bound_s) > bound_s


def make_child_environment(
    extra: dict[str, str] | None = None, python: str = "", folders: Sequence[str] = ()
) -> dict[str, str]:
    """Environment of a child: this one's, one thread everywhere, `tasks` importable, compilers' caches shared.

    The child of another environment's ``python`` sees nothing of this one but `tasks` and what is laid over it:
    ``folders``.
    """
    env = variables.drop_overriding_variables({k: v for k, v in os.environ.items() if not k.startswith("RAY_")}) | ALIKE
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    if torch := importlib.util.find_spec("torch"):
        env.setdefault(needs.LENT, str(Path(torch.origin or "").parent / "lib"))
    path = env.get("PYTHONPATH", "")
    own = python in ("", find_default_python())
    if not own:
        # Its folder is the farm's own: modules compiled once (TensorFlow's take ten seconds) stay compiled.
        for name in ("VIRTUAL_ENV", "PYTHONHOME", "__PYVENV_LAUNCHER__", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        # Ray's own additions for its workers (its job's working directory, this installation) are of this Python.
        path = drop_farm_folders(path)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT if own else link_tasks_folder()), *folders, path]))
    return env | (extra or {})


def make_launched_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Variables of a child behind a launcher, beside those that it has there: what makes its results comparable, the
    devices that it is given, and the farm's own. Paths of this machine and of this interpreter say nothing there."""
    own = {k: v for k, v in os.environ.items() if k.startswith("FARM_") or k in VISIBLE}
    return own | ALIKE | (extra or {})


def name_compiler_caches(cache: Path) -> dict[str, str]:
    """Variables that tell compilers where to keep what they make."""
    return {"TORCHINDUCTOR_CACHE_DIR": name_inductor_cache(cache), FOLDER: str(cache / "artefacts")}


def drop_farm_folders(path: str) -> str:
    """The folders of a PYTHONPATH, but for this installation's own."""
    return os.pathsep.join(p for p in path.split(os.pathsep) if p and Path(p).resolve() != ROOT)


def link_tasks_folder() -> Path:
    """A folder that holds `tasks` and nothing else: beside an installed farm stand packages of another Python."""
    folder = scratch_folders.make_scratch_folder() / "alone"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "tasks").symlink_to(ROOT / "tasks")
    return folder


def find_default_python() -> str:
    return sys.executable
