"""The process behind a launcher: it starts a child (`tasks.child`) beside itself, passes on what is said, and tells how the child is.

A launcher (a container's command, ssh to a board, a scheduler's) passes on a process's stdin, stdout and stderr; it
passes on no descriptors, signals or exit status, and its own number is not the child's. So the child is started here as
the supervisor starts one on its own machine. Commands come over stdin and answers go to stdout, as lines; between them
stand this process's own lines, which begin with `MARK`: how far the child is and what it uses, and at the end its exit
status and what was in flight. What the child and its libraries print goes to stderr.

The child ends with this process, and this process ends when its stdin does: when the supervisor or the launcher is
gone.

Run by its path, with the standard library alone: `tasks` may need what the supervisor lays over the interpreter.
Nothing here may be newer than Python 3.9.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules are not what their names say

import contextlib
import json
import math
import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

#: Begins a line of this process's own; an answer of the child's begins with "{".
MARK = b"#farm "
#: Stages as the progress page shows them; an error's row names the stage it happened in.
STAGES = ("idle", "load", "build", "run", "judge")
#: Seconds between two looks at the child, and at most between two lines about it.
TICK, BEAT_S = 0.02, 1.0
#: Seconds for which the first line on stdin is waited for.
FIRST_S = 30.0
#: Seconds that a case may take before it is counted how long the machine did not let it run.
COUNTED_S = 1.0
#: Bytes that are read at a time; that a pipe that says so takes without blocking (POSIX's least is 512, Linux's is
#: this); that are kept of what the child does not read before no more is taken.
READ, PIPE, KEPT = 1 << 16, 4096, 1 << 20
#: Seconds between two looks at which processes the child has started: one costs 3 ms.
LISTED_S = 1.0

#: The progress page: the fields of `CaseInFlight`.
PAGE = struct.Struct("<iiiid")
#: Behind it: size of the file that stderr goes to when the case in flight began, in bytes; then the number of the
#: process that the child runs a kernel in, 0 without one.
SAID, OTHER = struct.Struct("<q"), struct.Struct("<i")
PAGE_SIZE = mmap.PAGESIZE


class CaseInFlight(NamedTuple):
    """What is in flight: the number of the case (or of the group), its stage (0: nothing), how many cases a joint step
    is for, which sample of a group is made, and when the step began (CLOCK_MONOTONIC seconds)."""

    number: int
    stage: int
    together: int
    sample: int
    since: float


class ProgressPage:
    """The shared progress page; the child writes, whoever started it reads."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_SIZE)
        self._number = -1

    def write(self, number: int, stage: int, together: int = 1, sample: int = 0) -> None:
        if number != self._number:
            self._number, self.output_start = number, os.fstat(2).st_size
        PAGE.pack_into(self._map, 0, number, stage, together, sample, time.monotonic())

    def close(self) -> None:
        """Forget the page in this process: a fork of the child's is not to write to it."""
        self._map.close()

    def read(self) -> CaseInFlight:
        return CaseInFlight(*PAGE.unpack_from(self._map, 0))

    def name_other(self, pid: int) -> None:
        """The child runs a kernel in another process."""
        OTHER.pack_into(self._map, PAGE.size + SAID.size, pid)

    @property
    def other(self) -> int:
        """The process that the child runs a kernel in; 0 without one."""
        return int(OTHER.unpack_from(self._map, PAGE.size + SAID.size)[0])

    def resident(self, pid: int) -> int:
        """Resident memory of the child, of that process and of all that it has started, in bytes."""
        return measure_resident_memory(pid) + (measure_resident_together(self.other) if self.other else 0)

    def cpu_s(self, pid: int) -> float:
        """CPU seconds of both."""
        return measure_cpu_s(pid) + (measure_cpu_s(self.other) if self.other else 0.0)

    @property
    def output_start(self) -> int:
        """Bytes that stderr held before the case in flight: another case's words."""
        return int(SAID.unpack_from(self._map, PAGE.size)[0])

    @output_start.setter
    def output_start(self, size: int) -> None:
        SAID.pack_into(self._map, PAGE.size, size)


class _Thread(NamedTuple):
    """A thread from one look to the next. ran_s: for how many seconds; state: now, as /proc has it ("R": it runs or
    wants to); processors: those that it may use."""

    ran_s: float
    state: str
    processors: frozenset[int]


class StarvedTime:
    """For how long the machine has kept a process, or one that it waits for (a kernel's, a compiler), from running: its
    slowness is no case's.

    Not the scheduler's own count of waiting alone: a virtual machine whose host takes its processor away has not
    waited. What these processes leave one another too little of is their own doing: a kernel that starts more than
    there are processors is not starved by them.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid, self._proc = pid, proc
        self._since, self._looked, self._kept = -1.0, 0.0, 0.0
        self._ran, self._stalled = dict[str, float](), 0
        self._session, self._listed = list[Path](), -math.inf
        self._processors, self._quota = dict[str, frozenset[int]](), read_cpu_quota()

    def s(self, since: float) -> float:
        """Seconds in which a thread wanted to run and did not, since this was first asked about the case that began at
        ``since``: from look to look the time that passed, less what the thread ran, for that thread which lost most; of
        its processors, no more than all these threads together left of them."""
        now, stalled = time.monotonic(), self._stalls()
        passed, threads = now - self._looked, self._look_at_threads(now)
        lost = 0.0
        # D is a wait that no signal ends: for the disk, where others of this machine wait for it too, or in a driver.
        if stalled > self._stalled:
            lost = max((passed - x.ran_s for x in threads if x.state == "D"), default=0.0)
        waiting = [x for x in threads if x.state == "R"]
        for processors in {x.processors for x in waiting}:
            seconds = max(passed - x.ran_s for x in waiting if x.processors == processors)
            here = sum(x.ran_s * len(processors & x.processors) / len(x.processors) for x in threads)
            left = min(len(processors) * passed - here, self._quota * passed - sum(x.ran_s for x in threads))
            lost = max(lost, min(seconds, left))
        self._kept = self._kept + max(lost, 0.0) if since == self._since else 0.0
        self._since, self._looked, self._stalled = since, now, stalled
        return self._kept

    def _look_at_threads(self, now: float) -> list[_Thread]:
        """Those that were there at the look before as well."""
        if now - self._listed >= LISTED_S:
            self._session, self._listed = self._members(), now
            self._processors.clear()
        ran, found = dict[str, float](), []
        for thread in (x for process in self._session for x in _list_process_threads(process)):
            with contextlib.suppress(OSError, IndexError, ValueError):  # gone, or a kernel without schedstat
                ran[thread.name] = float((thread / "schedstat").read_text().split()[0]) / 1e9
                state = _read_proc_fields(thread)[0]
                if thread.name in self._ran:
                    since = ran[thread.name] - self._ran[thread.name]
                    found.append(_Thread(since, state, self._list_processors(thread.name)))
        self._ran = ran
        return found

    def _list_processors(self, thread: str) -> frozenset[int]:
        """Those that a thread may use."""
        if thread not in self._processors:
            self._processors[thread] = frozenset(os.sched_getaffinity(int(thread)))
        return self._processors[thread]

    def _members(self) -> list[Path]:
        """The process, the others of its session, and all that these have started: a kernel's process has a session of
        its own."""
        above, found = dict[str, str](), {str(self._pid)}
        with contextlib.suppress(OSError):
            for path in self._proc.iterdir():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    if path.name.isdigit():
                        _, above[path.name], _, session, *_ = _read_proc_fields(path)
                        if session == str(self._pid):
                            found.add(path.name)
        while more := {pid for pid, parent in above.items() if parent in found} - found:
            found |= more
        return [self._proc / pid for pid in found]

    def _stalls(self) -> int:
        """Microseconds in which anything on this machine has waited for a disk or for memory; 0 where the kernel does
        not tell."""
        total = 0
        for name in ("io", "memory"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                total += int((self._proc / "pressure" / name).read_text().split()[4].partition("=")[2])
        return total


def _list_process_threads(process: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # gone
        return list((process / "task").iterdir())
    return []


def read_cpu_quota(system: Path = Path("/")) -> float:
    """How many processors' time the control groups of this process allow (a container's, a scheduler's job's);
    infinite without a quota."""
    quotas = [math.inf]
    for group in _list_control_groups("cpu", system):
        of_v1 = " ".join(_read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        shares = [_parse_limit(x) for x in (_read_text(group / "cpu.max") or of_v1).split()]
        if len(shares) == 2 and 0 < shares[0] < math.inf:
            quotas.append(shares[0] / shares[1])
    return min(quotas)


def count_usable_processors() -> int:
    """How many processors this process may use: those that it may run on, within the quota of its control groups; at
    least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(min(allowed, max(read_cpu_quota(), 1.0)))


def measure_machine_memory(system: Path = Path("/")) -> int:
    """Bytes of memory that this machine has, or that the control groups of this process allow."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_parse_limit(_read_text(x / name)) for x in _list_control_groups("memory", system) for name in names]
    return int(min(PAGE_SIZE * os.sysconf("SC_PHYS_PAGES"), *limits))


def _list_control_groups(controller: str, system: Path) -> list[Path]:
    """The folders of the groups that this process is in, with those around them, whose limits hold as well: of cgroup
    v2 and, where a controller is still there, of v1. In a container that has no namespace of its own the groups'
    names are the host's, and of their folders only the first is there; a sandbox may not name its groups at all. A
    folder of v1 is called by all its controllers, and mostly there is a link for each."""
    found = []
    for line in filter(None, ["0::/", *_read_text(system / "proc/self/cgroup").split("\n")]):
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        parts = [x for x in name.split("/") if x]
        for folder in {controllers, controllers and controller}:
            top = system / "sys/fs/cgroup" / folder
            found += [top.joinpath(*parts[:n]) for n in range(len(parts) + 1 if ".." not in parts else 1)]
    return found


def _parse_limit(text: str) -> float:
    """A number of the kernel's; infinite where it says "max", −1 or nothing. No error is raised for those: where one is
    formatted, CPython 3.11 and 3.12 lose what a signal's handler raises, Ctrl-C's too."""
    text = text.strip()
    return int(text) if text.isdecimal() else math.inf


def _read_text(file: Path) -> str:
    """What is in a file of the kernel's; "" where it is not there. A name in it may be any bytes, as `os.fsdecode` has
    them."""
    try:
        return os.fsdecode(file.read_bytes())
    except OSError:
        return ""


def _read_proc_fields(path: Path) -> list[str]:
    """State, parent, group, session … of a process or thread (proc(5))."""
    return (path / "stat").read_text().rpartition(")")[2].split()


def measure_resident_memory(pid: int) -> int:
    """Resident memory of a process in bytes; 0 when it cannot be read."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_SIZE
    except (OSError, IndexError):
        return 0


def count_memory_kills(system: Path = Path("/")) -> int:
    """How many processes of this one's control group the kernel has ended for want of memory; of the whole machine where
    no group is counted; 0 where the kernel does not say."""
    groups = reversed(_list_control_groups("memory", system))  # its own comes first
    files = [group / name for group in groups for name in ("memory.events", "memory.oom_control")]
    for file in (*files, system / "proc/vmstat"):
        for line in _read_text(file).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def measure_resident_together(pid: int) -> int:
    """Resident memory of a kernel's process and of all that it has started, in bytes: what has lost its parent is its
    keeper's, as it is. Of these their shares are counted, as processes that were forked have most of their memory
    together."""
    try:
        keeper = int(_read_proc_fields(Path(f"/proc/{pid}"))[1])
    except (OSError, ValueError, IndexError):
        return 0
    return measure_resident_memory(pid) + sum(
        _measure_resident_share(x) for x in list_descendant_processes(keeper) if x != pid
    )


def _measure_resident_share(pid: int) -> int:
    """Memory of a process in bytes, of what it shares with others its share (proc(5), smaps_rollup), all of it where
    that is hidden; 0 when it cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except PermissionError:  # it has made itself undumpable (prctl(2)): nobody hides memory so
        return measure_resident_memory(pid)
    except (OSError, ValueError, IndexError):
        return 0


def list_descendant_processes(pid: int) -> list[int]:
    """The processes that one has started, those that these have started, and so on."""
    found: list[int] = []
    for child in list_child_processes(pid):
        found += [child, *list_descendant_processes(child)]
    return found


def list_child_processes(pid: int) -> list[int]:
    """The processes that one has started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def measure_cpu_s(pid: int) -> float:
    """CPU seconds of a process and of those it started and waited for; 0 when they cannot be read."""
    try:
        times = _read_proc_fields(Path(f"/proc/{pid}"))[11:15]  # utime, stime, cutime, cstime (proc(5))
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


class Relay:
    """A child, and what passes between it and the supervisor. start: what the supervisor's first line says: variables
    ("env") and folders to be importable ("path") of the child; commands: what came after it."""

    def __init__(self, start: dict[str, Any], commands: bytes = b"") -> None:
        page = os.memfd_create("farm-progress")
        os.ftruncate(page, PAGE_SIZE)
        self.page, self._folder = ProgressPage(page), tempfile.mkdtemp(prefix="farm-child-")
        child_in, self._commands = os.pipe()
        self._answers, child_out = os.pipe()
        os.set_blocking(self._commands, False)
        fds = (child_in, child_out, page)
        path = os.pathsep.join([*start["path"], *filter(None, [os.environ.get("PYTHONPATH", "")])])
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tasks.child", *map(str, (*fds, os.getpid()))],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=fds,
            env={**os.environ, **start["env"], "PYTHONPATH": path, "TMPDIR": self._folder},
            start_new_session=True,
        )
        for fd in fds:
            os.close(fd)
        self._down, self._up = commands, b""  # commands that the child has not read; the beginning of an answer
        self._starved = StarvedTime(self.process.pid)
        self._cpu_s, self._told, self._told_at = 0.0, (-1, 0), -math.inf

    def run(self) -> None:
        """Pass on what comes, until the child has ended or nobody is left to tell. Afterwards there is no child."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        try:
            while True:
                self._watch(poll, 0, select.POLLIN, len(self._down) < KEPT)
                self._watch(poll, self._commands, select.POLLOUT, bool(self._down))
                for fd, _ in poll.poll(TICK * 1e3):
                    if fd == self._answers and not self._forward_answers():
                        self._end()
                        return
                    if fd == self._commands:
                        with contextlib.suppress(BrokenPipeError):
                            self._down = self._down[os.write(fd, self._down) :]
                    if fd == 0:
                        data = os.read(0, READ)
                        if not data:
                            return
                        self._down += data
                if self.process.poll() is not None and not select.select([self._answers], [], [], 0)[0]:
                    self._end()  # gone, and yet its pipe is open: a process that it forked holds it
                    return
                self._beat()
        except BrokenPipeError:
            return
        finally:
            self.close()

    @staticmethod
    def _watch(poll: Any, fd: int, event: int, wanted: bool) -> None:
        if wanted:
            poll.register(fd, event)
        else:
            with contextlib.suppress(KeyError):
                poll.unregister(fd)

    def _forward_answers(self) -> bool:
        """Pass on what the child has said, by whole lines; False where it says no more."""
        data = os.read(self._answers, READ)
        whole, newline, rest = (self._up + data).rpartition(b"\n")
        self._up = rest
        say_to_stdout(whole + newline)
        return bool(data)

    def _state(self) -> dict[str, Any]:
        flying = self.page.read()
        self._cpu_s = max(self._cpu_s, self.page.cpu_s(self.process.pid))
        age = max(time.monotonic() - flying.since, 0.0)
        counted = flying.number >= 0 and age > COUNTED_S
        return {
            "flying": [*flying[:4], age],
            "resident": self.page.resident(self.process.pid),
            "cpu_s": self._cpu_s,
            "starved_s": self._starved.s(flying.since) if counted else 0.0,
            "memory_kills": count_memory_kills(),
        }

    def _beat(self) -> None:
        """Tell how the child is, when that is due and can be told at once: nobody may be listening between two
        commands."""
        flying, now = self.page.read(), time.monotonic()
        if flying[:2] == self._told and now - self._told_at < BEAT_S:
            return
        if select.select([], [1], [], 0)[1]:
            self._told, self._told_at = flying[:2], now
            say_to_stdout(MARK + json.dumps(self._state()).encode() + b"\n")

    def _end(self) -> None:
        """Tell the child's exit status: None of one that closed its pipe and does not end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        say_to_stdout(MARK + json.dumps({**self._state(), "ended": self.process.returncode}).encode() + b"\n")

    def close(self) -> None:
        """Kill the child and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        remove_folder(self._folder)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Remove a folder and all that is in it, however deep, and though its owner may not read it: a kernel leaves what it
    likes. What cannot be removed stays."""
    with contextlib.suppress(RecursionError):  # it calls itself once a level
        shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*command, "--", os.fspath(path)], stderr=subprocess.DEVNULL)


def say_to_stdout(data: bytes) -> None:
    """Write to stdout, in pieces that a pipe takes whole. Raises BrokenPipeError where nobody reads any more."""
    while data:
        select.select([], [1], [])
        data = data[os.write(1, data[:PIPE]) :]


def read_first_line() -> tuple[bytes, bytes]:
    """The first line on stdin, and what came with it of the next; b"" where none comes."""
    found = b""
    while b"\n" not in found:
        data = os.read(0, READ) if select.select([0], [], [], FIRST_S)[0] else b""
        if not data:
            return b"", b""
        found += data
    line, _, rest = found.partition(b"\n")
    return line, rest


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    say_to_stdout(MARK + b"{}\n")
    line, rest = read_first_line()
    if line:
        Relay(json.loads(line), rest).run()


if __name__ == "__main__":
    main()
