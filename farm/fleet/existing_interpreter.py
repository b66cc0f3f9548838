"""An interpreter that is there, on this machine or behind a launcher: what it says of itself, and what is laid over it.

Nothing is installed into it. What `tasks` needs and it lacks lies in folders of the farm's cache, which its child finds on
its path.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from farm.exits import starting
from farm.fleet.channel import describe_child_exit
from tasks import sources
from tasks.interpreter import MARK
from tasks.packages import TORCH_CATALOG

#: What a child needs beside its runtime: `tasks` imports no more than these.
OWN_PACKAGES = ("numpy", "ml_dtypes")
#: What an interpreter is asked for.
_MODULES = (*OWN_PACKAGES, "torch", *TORCH_CATALOG)
#: The oldest Python that `tasks` starts in.
OLDEST = (3, 9)
#: Seconds that an interpreter may take to say what it is; a launcher, which may have to fetch an image or wait for a
#: node.
ASK_S, LAUNCH_S = 60.0, 300.0
#: What is safe on a command line that a remote shell may read once more, as ssh's does.
_PLAIN = re.compile(r"[\w@%+=:,./-]+")
#: Characters of what a launcher said that are told.
_WORDS = 300
#: Where `tasks` is.
_TASKS = Path(__file__).resolve().parents[2] / "tasks"


class EnvError(Exception):
    """An environment that cannot be had; the text has the reason, in the installer's or the launcher's own words, and
    the fix."""


def ask_existing_interpreter(launcher: Sequence[str], python: str, cache: Path) -> dict[str, Any]:
    """What an interpreter says of itself (`tasks.interpreter.main`). Raises EnvError where it is none, is too old for
    `tasks`, or cannot be reached by its launcher as a child must be."""
    return _start_existing_interpreter(tuple(launcher), python, cache)


@functools.cache
def _start_existing_interpreter(launcher: tuple[str, ...], python: str, cache: Path) -> dict[str, Any]:
    who = f"launcher: {shlex.join(launcher)}" if launcher else f"python: {python}"
    if not launcher:
        told = _ask_interpreter_command([python, str(_TASKS / "interpreter.py"), *_MODULES], who, "", ())
    else:
        folder = copy_tasks_sources(cache)
        for path in (python, str(folder)):
            if not _PLAIN.fullmatch(path):
                raise EnvError(
                    f"{who}: {path!r} has a character that a remote shell would read; give it a plain path (FARM_CACHE, python)"
                )
        with tempfile.NamedTemporaryFile(dir=folder.parent, prefix="shared-") as token:
            command = [*launcher, python, str(folder / "tasks" / "interpreter.py"), "-", *_MODULES]
            told = _ask_interpreter_command(command, who, token.name, (str(folder), str(cache)))
        if not told["stdin"]:
            raise EnvError(
                f"{who} gives its process no stdin, over which the farm talks to it: -i of docker, podman and kubectl passes it on, "
                "and so do ssh without -n and srun without --input=none"
            )
        if not told["shared"]:
            raise EnvError(_describe_unshared(who, cache))
        if not told["temporary"]:
            raise EnvError(
                f"{who} leads to where no temporary file can be written: give it a folder for them (--tmpfs /tmp of bwrap, docker and podman), "
                "or name one with TMPDIR (env TMPDIR=FOLDER at the launcher's end)"
            )
    version = tuple(map(int, told["python"].split(".")))
    if version < OLDEST:
        raise EnvError(
            f"{who}{f': {python}' if launcher else ''} is Python {told['python']}, and tasks needs {_name_oldest_python()} or later: name a later one "
            "with the key python"
        )
    return told


def _ask_interpreter_command(command: Sequence[str], who: str, token: str, shared: Sequence[str]) -> dict[str, Any]:
    """The answer of an interpreter that is started with a command. shared: folders that it is to see behind a launcher,
    the one with its program first. Raises EnvError."""
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    limit_s = LAUNCH_S if shared else ASK_S
    try:
        with starting:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if shared else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if shared else env,
                start_new_session=True,
            )
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            fix = (
                "install it, or name its path"
                if shared
                else f"name the path of a Python {_name_oldest_python()} or later"
            )
            raise EnvError(f"{who} cannot be started: there is no {command[0]} on this node; {fix}") from None
        if error.errno == 8:  # ENOEXEC
            raise EnvError(
                f"{who} is no program of this machine ({platform.machine()}): name an interpreter built for it, or a launcher that runs it "
                "(launcher: [qemu-…])"
            ) from None
        fix = "name the interpreter in it" if Path(command[0]).is_dir() else "name a program that this user may run"
        raise EnvError(f"{who} cannot be started ({error.strerror}): {fix}") from None
    try:
        out, err = process.communicate(f"{token}\n".encode() if shared else None, limit_s)
    except subprocess.TimeoutExpired:
        raise EnvError(f"{who} has not answered in {limit_s:g} s; by hand: {shlex.join(command)}") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for line in out.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            told: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return told
    said = (err + b"\n" + out).decode(errors="replace")
    words = [x.strip() for x in said.splitlines() if x.strip()][-1:]
    ending = "; ".join([describe_child_exit(process.returncode), *(word[-_WORDS:] for word in words)])
    if not shared:
        raise EnvError(
            f"{who} is no Python that starts ({ending}): name the path of a Python {_name_oldest_python()} or later, "
            "whose -V prints its version"
        )
    if shared[0] in said:  # the path of the program that we gave it
        raise EnvError(_describe_unshared(who, Path(shared[1])))
    raise EnvError(
        f"{who} ended before a Python answered ({ending}): mend the launcher, or put what it lacks before its command; "
        f"by hand: {shlex.join(command)}"
    )


def _name_oldest_python() -> str:
    return ".".join(map(str, OLDEST))


def _describe_unshared(who: str, cache: Path) -> str:
    return (
        f"{who} leads to where the cache {cache} is not: share it there under the same path (a mount of the container's, "
        f"-v {cache}:{cache}; NFS or sshfs on a board), or set FARM_CACHE to a folder that is"
    )


@functools.cache
def copy_tasks_sources(cache: Path) -> Path:
    """A folder of the cache that holds these sources of `tasks` and nothing else. Raises EnvError."""
    folder = cache / "overlays" / f"tasks-{sources.digest_sources('tasks', without=())[:16]}"

    def fill(aside: Path) -> None:
        shutil.copytree(_TASKS, aside / "tasks", ignore=shutil.ignore_patterns("__pycache__"))

    return _fill_folder_once(folder, fill)


def lay_over_interpreter(
    told: Mapping[str, Any], who: str, cache: Path, install: Callable[[Sequence[str]], object]
) -> tuple[str, ...]:
    """The folders with what an interpreter lacks, as it says (`ask_existing_interpreter`). install: runs uv's `pip install` with these
    arguments. Raises EnvError where a package cannot be had for it."""
    wanted = (*OWN_PACKAGES, *TORCH_CATALOG) if "torch" not in told["lacking"] else OWN_PACKAGES
    lacking = [name for name in wanted if name in told["lacking"]]
    if not lacking:
        return ()
    numpy = told["versions"].get("numpy", "") if "numpy" not in lacking else ""
    where = [told["python"], told["implementation"], told["system"], told["machine"], told["libc"]]
    folder = cache / "overlays" / hashlib.sha256(json.dumps([where, lacking, numpy]).encode()).hexdigest()[:16]

    def fill(aside: Path) -> None:
        options = ["--only-binary", ":all:", "--python", sys.executable, "--python-version", told["python"]]
        if where[2:] != _list_wheel_tags()[2:]:
            options += ["--python-platform", _name_uv_platform(told)]
        # What is installed is to fit the numpy that is there, which is then left out.
        pinned = [f"numpy=={numpy.partition('+')[0]}"] if numpy else []
        try:
            install([*options, "--target", str(aside), *lacking, *pinned])
        except EnvError as error:
            if where != _list_wheel_tags():
                raise EnvError(
                    f"{who} has no {' and no '.join(lacking)}, which the farm lays over it, and no wheel for Python {told['python']} on "
                    f"{told['system']} {told['machine']} can be had: {error}. Put one into a folder (PIP_FIND_LINKS=FOLDER), or install it there"
                ) from None
            for name in lacking:  # this interpreter is of the farm's own kind: what the farm runs with serves there
                _copy_package(name, aside)
        for path in aside.glob("numpy*") if numpy else ():
            shutil.rmtree(path)

    return (str(_fill_folder_once(folder, fill)),)


def _list_wheel_tags() -> list[str]:
    """What tells for which wheels an interpreter is, of this one."""
    own = ".".join(map(str, sys.version_info[:2]))
    return [own, platform.python_implementation(), platform.system(), platform.machine(), platform.libc_ver()[0]]


def _name_uv_platform(told: Mapping[str, Any]) -> str:
    """uv's name of a machine."""
    if told["system"] == "Darwin":
        return f"{'aarch64' if told['machine'] == 'arm64' else told['machine']}-apple-darwin"
    return f"{told['machine']}-unknown-linux-{'gnu' if told['libc'] == 'glibc' else 'musl'}"


def _copy_package(name: str, folder: Path) -> None:
    """Copy an installed package of this interpreter's, with its libraries and metadata."""
    tops = {path.parts[0] for path in metadata.files(name) or () if path.parts[0] not in ("..", "__pycache__")}
    for top in sorted(tops):
        source = Path(str(metadata.distribution(name).locate_file(top)))
        if source.is_dir():
            shutil.copytree(
                source, folder / top, ignore=shutil.ignore_patterns("__pycache__", "tests"), dirs_exist_ok=True
            )
        else:
            shutil.copy2(source, folder / top)


def _fill_folder_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """A folder that is made once: aside, and renamed when it is whole. Raises EnvError."""
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            aside.chmod(0o755)  # a container may run as somebody else
            fill(aside)
            with contextlib.suppress(FileExistsError, OSError):
                aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise EnvError(f"{folder} cannot be written: {error}") from None
    if not folder.exists():
        raise EnvError(f"{folder} cannot be written")
    return folder
