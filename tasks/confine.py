"""What a stranger may not do, by what the system has to forbid it: each step says what it could not forbid, and none ends a run.

Namespaces (unshare(2)) take away the network and the processes of others, and end with a stranger all that it has
started; Landlock (landlock(7)) takes away files; a filter some system calls (`tasks.system_calls`); resource limits
memory, sizes of files and, where the user is not root, the number of processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
#: mount_setattr(2), the same number on every architecture, and of its arguments the folder that a path begins at, the
#: flag for all that is mounted beneath, and the attribute.
_SET_ATTRIBUTES, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
#: landlock_create_ruleset, landlock_add_rule, landlock_restrict_self: the same numbers on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_DIR, _IOCTL = 1 << 0, 1 << 2, 1 << 3, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
#: Rights that are of files; a rule of a file may name no others.
_OF_FILES = _EXECUTE | 1 << 1 | _READ_FILE | 1 << 14 | _IOCTL
#: Number of file rights by version of Landlock (1: 13; 2 adds REFER, 3 TRUNCATE, 5 IOCTL_DEV).
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
#: Capabilities that a root without others needs to read what it could read before: CAP_DAC_OVERRIDE,
#: CAP_DAC_READ_SEARCH.
_READING = 1 << 1 | 1 << 2
#: Devices that any program may write to.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "shm", "ptmx", "pts", "fd", "stdin", "stdout", "stderr")
#: Largest file that a stranger may make, in bytes; processes and threads that it may have.
FILE_SIZE, PROCESSES = 16 << 30, 512

#: What may be lacking, as rows and the preflight name it, and what that means.
LACKS = {
    "network": "the kernel's process has the network",
    "processes": "what a kernel starts is killed afterwards as far as it is found",
    "shm": "what a kernel leaves in shared memory (/dev/shm) stays for the next one, and it sees the processes of others",
    "files": "the kernel's process can read and write what its user can, prepared cases and the lake too",
    "metadata": "the kernel's process can change permissions, times and attributes of its user's files, and leave notes there",
    "sockets": "the kernel's process reaches the named sockets of others, and may leave keys in the user's keyring",
    "memory": "the memory of a kernel's process is looked at from time to time, and not limited",
}


@dataclass(frozen=True)
class Forbidden:
    """What a stranger may not do. by: what forbids it; but: where it cannot be had, with the name of `LACKS` that says
    so."""

    what: str
    by: str
    but: str = ""


_NO_LANDLOCK = "Linux before 5.13, or without Landlock: `files`"
FORBIDDEN = (
    Forbidden(
        "the network", "a network namespace; TCP also by Landlock", "no user namespaces, and not root: `network`"
    ),
    Forbidden(
        "reading prepared cases, the lake, a task.yaml, references in files of their own, compilers' results for other kernels",
        "Landlock",
        _NO_LANDLOCK,
    ),
    Forbidden(
        "writing anywhere but to a scratch folder and the kernel's own compiler caches", "Landlock", _NO_LANDLOCK
    ),
    Forbidden(
        "changing permissions, owners, times and attributes of files, which Landlock does not cover",
        "read-only mounts in a mount namespace",
        "no user namespaces, and not root; Linux before 5.12: `metadata`",
    ),
    Forbidden(
        "signals to other processes, their priority and memory",
        "Landlock, for signals from Linux 6.12 on; a process namespace and group of its own; processes are not dumpable",
    ),
    Forbidden(
        "named sockets of others (a container engine, a key agent, Ray), a virtual machine's sockets to its host; the user's keyring; "
        "io_uring",
        "a filter of system calls (seccomp)",
        "processors other than x86-64 and ARM64, and systems without seccomp: `sockets`",
    ),
    Forbidden(
        "others' shared memory (`/dev/shm`, System V), the sight of their processes in `/proc`",
        "mount and IPC namespaces, one for each stranger",
        "no user namespaces, and not root: `shm`; some containers allow no `/proc` of one's own",
    ),
    Forbidden(
        "processes that outlive the kernel",
        "a process namespace",
        "without namespaces, what is found is killed: `processes`",
    ),
    Forbidden(f"more than {PROCESSES} processes and threads", "`RLIMIT_NPROC`", "root is not bound by it"),
    Forbidden(
        "more memory than `memory_gib`",
        "`RLIMIT_DATA` of each process; the sum is watched from outside",
        "on a device it is only watched: `memory`",
    ),
    Forbidden(f"files of more than {FILE_SIZE >> 30} GiB, core dumps", "`RLIMIT_FSIZE`, `RLIMIT_CORE`"),
    Forbidden("new privileges", "`NO_NEW_PRIVS`, no capabilities"),
)


@dataclass(frozen=True)
class Rules:
    """What a stranger is held to. hidden: files and folders that it may not read; writable: folders that it may write
    to; memory: bytes of its data (0: not limited); device: whether it opens a device's files."""

    hidden: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    memory: int = 0
    device: bool = False


_libc = ctypes.CDLL(None, use_errno=True)


def call_prctl(option: int, argument: int = 0) -> bool:
    return sys.platform == "linux" and _libc.prctl(option, argument, 0, 0, 0) == 0


def end_with_parent(parent: int, signal: int = 9) -> None:
    """End this process with the one that forked it."""
    call_prctl(PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:
        os._exit(1)


def call_unshare(flags: int) -> bool:
    return sys.platform == "linux" and _libc.unshare(flags) == 0


def leave_network_namespace() -> tuple[str, ...]:
    """In a process of one thread: no network, in a user namespace of its own where the user is not root. What of
    `LACKS` is to be said."""
    if call_unshare(CLONE_NEWNET):
        return ()
    uid, gid = os.getuid(), os.getgid()
    if not call_unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return ("network",)
    for name, text in (("uid_map", f"{uid} {uid} 1"), ("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1")):
        with contextlib.suppress(OSError):  # without a map files are still read as before, by nobody's name
            Path(f"/proc/self/{name}").write_text(text)
    return ()


def leave_shared_memory(own_processes: bool, size: int = 0) -> tuple[str, ...]:
    """No shared memory but its own (POSIX and System V), which ends with the process's last, and of other processes not
    even the names. own_processes: whether this is the first process of a namespace; size: bytes of shared memory, 0 for
    the system's default. What of `LACKS` is to be said."""
    if not call_unshare(CLONE_NEWNS | CLONE_NEWIPC) or not _call_mount("none", "/", "", MS_REC | MS_PRIVATE):
        return ("shm",)
    if own_processes:  # some containers cover parts of theirs, and allow no other then
        _call_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    given = f"mode=1777{f',size={size}' * bool(size)}"
    return () if _call_mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, given) else ("shm",)


def make_mounts_read_only(writable: Sequence[str]) -> tuple[str, ...]:
    """In a mount namespace of its own: nothing of any file outside some folders and shared memory can be changed, be it
    only its times. A folder that cannot be mounted is none of these. What of `LACKS` is to be said."""
    real = {os.path.realpath(x) for x in writable}
    # Of folders in one another the outer one alone: between mounts nothing can be renamed or linked.
    outer = [x for x in sorted(real) if not any(str(y) in real for y in Path(x).parents)]
    kept = [*(x for x in outer if _call_mount(x, x, "", MS_BIND)), "/dev/shm"]
    # First tried with each: where this cannot be done, a stranger could write nowhere in the end.
    can_undo = all(_set_read_only(x, False) for x in kept)
    made = can_undo and _set_read_only("/", True, AT_RECURSIVE) and all([_set_read_only(x, False) for x in kept])
    return () if made else ("metadata",)


def _set_read_only(path: str, value: bool, flags: int = 0) -> bool:
    """Of what is mounted at a path; with AT_RECURSIVE beneath it too."""
    attributes = struct.pack("<QQQQ", MOUNT_ATTR_RDONLY * value, MOUNT_ATTR_RDONLY * (not value), 0, 0)
    return bool(_libc.syscall(_SET_ATTRIBUTES, AT_FDCWD, path.encode(), flags, attributes, len(attributes)) == 0)


def _call_mount(source: str, target: str, kind: str, flags: int, given: str = "") -> bool:
    texts = (x.encode() for x in (source, target, kind))
    return bool(_libc.mount(*texts, ctypes.c_ulong(flags), given.encode()) == 0)


def drop_capabilities() -> None:
    """All but what lets a root read: within a namespace of its own root has them all."""
    call_prctl(PR_SET_NO_NEW_PRIVS, 1)
    call_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    kept = _READING if os.getuid() == 0 else 0
    header = struct.pack("<Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    _libc.capset(header, struct.pack("<6I", kept, kept, 0, 0, 0, 0))


def limit_resources(rules: Rules) -> tuple[str, ...]:
    """Resource limits. What of `LACKS` is to be said."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower_resource_limit(resource.RLIMIT_FSIZE, FILE_SIZE)
    if os.getuid():  # root may start any number
        _lower_resource_limit(resource.RLIMIT_NPROC, PROCESSES)
    if rules.device or not rules.memory:  # a device's driver takes address space as it likes
        return ("memory",) if rules.memory else ()
    _lower_resource_limit(resource.RLIMIT_DATA, rules.memory)
    return ()


def _lower_resource_limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (most, most))


def find_landlock_version() -> int:
    """Of this kernel; 0 where it has none."""
    return max(int(_libc.syscall(_CREATE, None, 0, _VERSION)), 0) if sys.platform == "linux" else 0


def shut_in_process(rules: Rules) -> tuple[str, ...]:
    """Take away files, TCP, and signals to other processes, for good. In a process of one thread. What of `LACKS` is to
    be said."""
    version = find_landlock_version()
    if not version:
        return ("files",)
    rights = (1 << _RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("<QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    ruleset = _libc.syscall(_CREATE, attributes, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    if ruleset < 0:
        return ("files",)
    try:
        hidden = [Path(os.path.realpath(x)) for x in rules.hidden if x]
        # Names may be listed: Python imports nothing from a folder that it cannot list, and a lake may lie beside the
        # kernels.
        _allow_landlock_path(ruleset, Path("/"), _READ_DIR & rights)
        for path in _list_readable_paths(Path("/"), hidden):
            _allow_landlock_path(ruleset, path, _READ & rights)
        writable = [*rules.writable, *(f"/dev/{x}" for x in _DEVICES), *(["/dev"] * rules.device)]
        for name in writable:
            _allow_landlock_path(ruleset, Path(name), rights)
        call_prctl(PR_SET_NO_NEW_PRIVS, 1)
        return () if _libc.syscall(_RESTRICT, ruleset, 0) == 0 else ("files",)
    finally:
        os.close(ruleset)


def _list_readable_paths(path: Path, hidden: Sequence[Path]) -> Iterable[Path]:
    """The fewest paths that are all of a folder but what is hidden: Landlock only allows, and allows all that is
    beneath."""
    if not any(x.is_relative_to(path) for x in hidden):
        yield path
    elif path not in hidden:
        beneath = [x for x in hidden if x.is_relative_to(path)]
        with contextlib.suppress(OSError):
            for entry in os.scandir(path):
                if not entry.is_symlink():  # what it leads to is allowed, or not, in its own place
                    yield from _list_readable_paths(Path(entry.path), beneath)


def _allow_landlock_path(ruleset: int, path: Path, rights: int) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if os.path.isdir(path) else rights & _OF_FILES
            _libc.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("<Qi", allowed, fd), 0)
        finally:
            os.close(fd)


def call_setns(fd: int, kind: int) -> bool:
    return _libc.setns(fd, kind) == 0
