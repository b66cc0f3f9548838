"""Environments of backends: one virtual environment per list of packages, built once per node with uv."""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from farm.exits import starting
from farm.fleet import existing_interpreter
from farm.fleet.channel import Interpreter
from farm.fleet.existing_interpreter import OWN_PACKAGES, EnvError
from farm.fleet.pip_settings import make_uv_environment
from farm.program import name_farm_program
from tasks.backends import BackendSpec, is_interpreter_path
from tasks.packages import INDEX

#: Seconds a build may take; characters of the installer's last words that are kept.
BUILD_S, WORDS = 3600.0, 900
#: Seconds between two looks at whether a build is still waited for.
TICK = 0.1
#: uv's word for an index that does not answer; the group is its URL without the package's own folder.
_UNREACHED = re.compile(
    r"Failed to fetch: `?(\S+?)/[^/\s`]+/?`?(?=\s|$)(?=.*(?:client error|timed out|dns error|error sending request))"
)
#: What uv says first of where it installs.
_WHERE = re.compile(r"^Using Python \S+ environment at: \S+ (?:error: )?")
#: uv's word for a version that there is not: package and version.
_NO_VERSION = re.compile(r"there is no version of ([\w.-]+?)(?:\[[^]]*\])?==([\w.+!*-]*\w)")
#: Versions of a package that are named, the newest first.
NAMED = 12
#: What to do, by what uv says of a package.
_ADVICE = {
    r"matching platform tag": "No wheel for this machine's processor and system: name a version that has one, or an index with such a wheel (--extra-index-url=URL in the backend's packages)",
    r"matching Python (?:ABI|implementation|version)? ?tag": "No wheel for this Python: name another with the key `python`",
    r"there is no version of|was not found in the package registry": "Name an existing version, or the index that has it "
    "(--extra-index-url=URL in the backend's packages; one that answers 404 is skipped)",
}
#: Variable of uv's: nothing is downloaded. What is in its cache, or in folders of wheels, may still be installed.
OFFLINE = "UV_OFFLINE"
#: What rows and lists call the farm's own environment.
OWN = "farm"
#: How a node gets what it lacks.
WAYS = (
    f"an index that can be reached (PIP_INDEX_URL=URL, and {name_farm_program()} doctor envs build), a folder of its wheels (PIP_FIND_LINKS=FOLDER) or an "
    "interpreter that has it (python: /path/to/python in the config) brings it"
)
#: Packages in whose place a system may have its own: parts of CUDA.
_OF_SYSTEM = re.compile(r"(?:nvidia|cuda)-")


class GivenUp(Exception):
    """Nobody waits for a build any more: what it had made is removed."""


@dataclass(frozen=True)
class Patience:
    """How long a build is waited for: until a time (monotonic seconds), or until it is given up."""

    until: float
    given_up: threading.Event = field(default_factory=threading.Event)

    def check(self) -> bool:
        """Whether there is time left. Raises GivenUp."""
        if self.given_up.is_set():
            raise GivenUp
        return time.monotonic() <= self.until


@dataclass(frozen=True)
class Environment:
    """What a backend runs in: pip requirements, and indexes for them alone ("--extra-index-url=…"), and a Python
    version ("" = the farm's own), or an interpreter that is there, by its path or, behind a launcher, by its name: it
    is taken as it is, and nothing is installed into it. launcher: a command in front of the interpreter."""

    packages: tuple[str, ...]
    python: str = ""
    launcher: tuple[str, ...] = ()

    @property
    def requirements(self) -> list[str]:
        return [p for p in self.packages if not p.startswith(INDEX)]

    @property
    def indexes(self) -> list[str]:
        """URLs of its own indexes, beside those of this installation."""
        return [p.removeprefix(INDEX) for p in self.packages if p.startswith(INDEX)]

    @property
    def existing(self) -> bool:
        """Whether it is an interpreter that is there: another one, or the farm's own behind a launcher."""
        if not (self.packages or self.python):
            return bool(self.launcher)
        return is_interpreter_path(self.python)

    @property
    def version(self) -> str:
        """The Python of one that is built; of an interpreter that is there, what names it."""
        return self.python or ".".join(map(str, sys.version_info[:2]))

    def python_version(self, cache: Path) -> str:
        """The version of its Python. Raises EnvError of an interpreter that is there and does not say."""
        if not self.existing:
            return self.version
        return str(
            existing_interpreter.ask_existing_interpreter(self.launcher, str(self.interpreter(cache)), cache)["python"]
        )

    @property
    def key(self) -> str:
        """Content key: equal lists of packages share one environment, whoever asks for them."""
        parts = [
            [*self.launcher, self.python] if self.existing else self.version,
            sorted(p.replace(" ", "") for p in self.packages),
            OWN_PACKAGES,
            platform.system(),
            platform.machine(),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """What rows say of it: the launcher, and the interpreter or the key of what is built."""
        where = (self.python or sys.executable) if self.existing else f"uv {self.key}"
        return shlex.join(self.launcher) + " " * bool(self.launcher) + where

    def path(self, cache: Path) -> Path:
        return cache / "envs" / self.key

    def interpreter(self, cache: Path) -> Path:
        if self.existing:
            return Path(self.python or sys.executable)
        return self.path(cache) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def record(self, cache: Path) -> dict[str, Any] | None:
        """What a finished build wrote: packages, python, versions, built_s, digest; None while there is none. Of an
        interpreter that is there, what it says of itself."""
        if self.existing:
            with contextlib.suppress(EnvError):
                told = existing_interpreter.ask_existing_interpreter(self.launcher, str(self.interpreter(cache)), cache)
                digest = hashlib.sha256(json.dumps([self.key, told], sort_keys=True).encode()).hexdigest()[:16]
                return {"packages": [], **told, "built_s": 0.0, "digest": digest}
            return None
        try:
            record: dict[str, Any] = json.loads((self.path(cache) / "environment.json").read_text())
        except (OSError, ValueError):
            return None
        return record

    def there(self, cache: Path) -> bool:
        """Whether nothing has to be built for it."""
        return self.existing or self.record(cache) is not None

    def is_met_here(self) -> bool:
        """Whether the farm's own environment has all of it, in the versions that it asks for."""
        own = ".".join(map(str, sys.version_info[:2]))
        return self.python in ("", own) and all(map(_is_requirement_met, self.requirements))

    def here(self) -> bool:
        """Whether the farm's own environment has its runtime, in whatever version; parts of CUDA may be the
        system's."""
        wanted = [
            x
            for x in map(_parse_requirement, self.requirements)
            if not x or not (_OF_SYSTEM.match(x.name) or _is_requirement_skipped(x))
        ]
        return bool(wanted) and all(x and _find_package_version(x.name) for x in wanted)


def _parse_requirement(requirement: str) -> Requirement | None:
    try:
        return Requirement(requirement)
    except InvalidRequirement:  # a file's path, or another option of pip's
        return None


def _is_requirement_skipped(wanted: Requirement) -> bool:
    return wanted.marker is not None and not wanted.marker.evaluate()


def _find_package_version(name: str) -> str:
    """Of a package in the farm's own environment, "" for none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def _is_requirement_met(requirement: str) -> bool:
    """Whether a requirement, with its extras, is met in the farm's own environment."""
    wanted = _parse_requirement(requirement)
    if wanted is None or wanted.url:
        return False
    if _is_requirement_skipped(wanted):
        return True
    version = _find_package_version(wanted.name)
    return (
        bool(version)
        and wanted.specifier.contains(version, prereleases=True)
        and all(map(_is_requirement_met, _list_requirements_of_extras(wanted)))
    )


def _list_requirements_of_extras(wanted: Requirement) -> list[str]:
    """What the extras of a package that is installed ask for besides."""
    asked = (
        [x for x in map(_parse_requirement, metadata.requires(wanted.name) or ()) if x and x.marker]
        if wanted.extras
        else []
    )
    found = []
    for x in asked:
        assert x.marker
        if not x.marker.evaluate({"extra": ""}) and any(x.marker.evaluate({"extra": e}) for e in wanted.extras):
            x.marker = None
            found.append(str(x))
    return found


def find_environment(spec: BackendSpec) -> Environment | None:
    """The environment a backend asks for; None for the farm's own (and for one whose file cannot be imported), which
    also serves where it has all that the backend's class asks for. A list of the config's own is always an
    environment."""
    if (made := spec.create_if_there()) is None:
        return None
    packages, python = spec.packages or made.packages, spec.python or made.python
    environment = Environment(tuple(packages), python, spec.launcher)
    own = not (packages or python) or (not spec.packages and environment.is_met_here())
    if own:
        return Environment((), "", spec.launcher) if spec.launcher else None
    return environment


def label_environment(spec: BackendSpec) -> str:
    """What rows say of the environment of a backend."""
    environment = find_environment(spec)
    return environment.label if environment else OWN


def build_interpreter_of_backend(
    backend: Mapping[str, Any] | BackendSpec | None, cache: Path, given_up: threading.Event | None = None
) -> Interpreter:
    """What a backend's child is started with; its environment is built first if need be. Raises EnvError, GivenUp."""
    spec = backend if isinstance(backend, BackendSpec) or backend is None else BackendSpec(**backend)
    environment = find_environment(spec) if spec else None
    if environment is None:
        return Interpreter(sys.executable)
    return build_interpreter(environment, cache, given_up)


def build_interpreter(environment: Environment, cache: Path, given_up: threading.Event | None = None) -> Interpreter:
    """What a child in an environment is started with: that is built first if need be, and what it lacks laid over it.
    Raises EnvError, GivenUp."""
    python, launcher = str(build_environment(environment, cache, given_up=given_up)), environment.launcher
    if not (environment.existing or launcher):
        return Interpreter(python)
    told = existing_interpreter.ask_existing_interpreter(launcher, python, cache)
    patience = Patience(time.monotonic() + BUILD_S, given_up or threading.Event())
    folders = existing_interpreter.lay_over_interpreter(
        told, f"python: {environment.label}", cache, lambda args: _run_uv_command(["pip", "install", *args], patience)
    )
    if not launcher:
        return Interpreter(python, folders)
    tasks = existing_interpreter.copy_tasks_sources(cache)
    return Interpreter(python, (str(tasks), *folders), launcher, str(tasks / "tasks" / "relay.py"), cache)


def find_model_converter(definitions: str, cache: Path) -> dict[str, str]:
    """The variable that names the interpreter with which a SavedModel among the user's own models is converted; its
    environment is built first if need be. None where there is no such model, or it cannot be built: its row says so."""
    from tasks.catalogs.models import own_models  # all that makes a model, for this alone

    if not own_models.has_saved_model(definitions):
        return {}
    try:
        return {own_models.INTERPRETER: str(build_environment(Environment(own_models.CONVERTER), cache))}
    except EnvError:
        return {}


def build_environment(
    environment: Environment, cache: Path, timeout_s: float = BUILD_S, given_up: threading.Event | None = None
) -> Path:
    """The environment's interpreter, building it if it is not there; two builders wait for one another.

    Raises EnvError with the installer's own words, or if it does not end in time, in which no wait for another builder
    counts; GivenUp soon after ``given_up`` is set.
    """
    python = environment.interpreter(cache)
    if environment.existing:
        existing_interpreter.ask_existing_interpreter(environment.launcher, str(python), cache)
        return python
    if environment.record(cache) is not None and python.exists():
        return python
    told = given_up or threading.Event()
    try:
        (cache / "envs").mkdir(parents=True, exist_ok=True)
        with _lock_environment_file(
            cache / "envs" / f"{environment.key}.lock", Patience(time.monotonic() + timeout_s, told)
        ):
            if environment.record(cache) is None or not python.exists():
                _install_environment(environment, cache, Patience(time.monotonic() + timeout_s, told))
    except OSError as error:
        raise EnvError(f"its environment cannot be written: {error}") from None
    return python


@contextlib.contextmanager
def _lock_environment_file(path: Path, patience: Patience) -> Iterator[None]:
    """Hold a file's lock; another holder is waited for."""
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not patience.check():
                    raise EnvError(f"another process has held {path} too long: is its installer stuck?") from None
                time.sleep(TICK)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                    raise
                raise EnvError(
                    f"{path.parent} is on a file system without locks ({error.strerror}), which building environments needs: mount it "
                    "with locks (Lustre: -o flock), or set FARM_CACHE to another place"
                ) from None
        yield


def _install_environment(environment: Environment, cache: Path, patience: Patience) -> None:
    path, began = environment.path(cache), time.monotonic()
    shutil.rmtree(path, ignore_errors=True)
    # Libraries and caches of a build that hangs or dies must not stay: the folder counts once environment.json is
    # there.
    lock = cache / "envs" / f"{environment.key}.txt"
    try:
        _run_uv_command(["venv", "--python", environment.version, str(path)], patience)
        wanted = ["-r", str(lock)] if lock.exists() else [*environment.requirements, *OWN_PACKAGES]
        where = ["--python", str(environment.interpreter(cache))]
        try:
            _run_uv_command(["pip", "install", *where, *wanted], patience, environment.indexes)
        except EnvError:
            if not lock.exists():
                raise
            lock.unlink()  # a version that was withdrawn: resolved anew
            _run_uv_command(
                ["pip", "install", *where, *environment.requirements, *OWN_PACKAGES], patience, environment.indexes
            )
        frozen = _run_uv_command(["pip", "freeze", *where], patience)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    versions = dict(line.split("==", 1) for line in frozen.splitlines() if "==" in line)
    record = {
        "packages": list(environment.packages),
        "python": environment.version,
        "versions": versions,
        "built_s": round(time.monotonic() - began, 2),
        "digest": hashlib.sha256(frozen.encode()).hexdigest()[:16],
    }
    lock.write_text(frozen)
    aside = path / f".environment.{os.getpid()}"
    aside.write_text(json.dumps(record, indent=1))
    aside.replace(path / "environment.json")


def _run_uv_command(arguments: Sequence[str], patience: Patience, indexes: Sequence[str] = ()) -> str:
    """Stdout of uv, with further indexes. Raises EnvError with its last words, or if it does not end in time;
    GivenUp."""
    command = [_find_uv_binary(), "--no-config", "--no-progress", "--color", "never", *arguments]
    env = make_uv_environment(indexes)
    with tempfile.TemporaryFile(mode="w+") as said, tempfile.TemporaryFile(mode="w+") as out:
        with starting:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=said, env=env, start_new_session=True
            )
        try:
            while (code := _wait_exit_code(process)) is None:
                if not patience.check():
                    raise EnvError(f"its environment was not built in time: uv {' '.join(arguments[:2])} hung")
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if code:
            said.seek(0)
            words = " ".join(said.read().split())
            if os.environ.get(OFFLINE):
                raise EnvError(f"not installed here, and nothing is downloaded: {WAYS}")
            told = (
                _describe_unreached(words)
                or _find_missing_version(words, indexes)
                or _add_uv_advice(words)
                or f"uv ended with exit code {code}"
            )
            raise EnvError(f"its environment cannot be built: {told}")
        out.seek(0)
        return out.read()


def _describe_unreached(words: str) -> str:
    """Of uv's words, which index it did not reach, why, and what to do; "" where they say something else."""
    index = _UNREACHED.search(words)
    if index is None:
        return ""
    why = words.rpartition("cause: ")[2]
    return f"the index {index[1]} cannot be reached ({why}): {WAYS}"


def _find_missing_version(words: str, indexes: Sequence[str]) -> str:
    """Of uv's words, which version of a package there is not, and those that there are; "" where they say something
    else, or no index lists the package's versions."""
    found = _NO_VERSION.search(words)
    there = _list_package_versions(found[1], indexes) if found else []
    if found is None or not there:
        return ""
    more = f" and {len(there) - NAMED} older" if len(there) > NAMED else ""
    return (
        f"there is no version {found[2]} of {found[1]} for this Python and machine; there are {', '.join(there[:NAMED])}{more}. "
        "Name one of these, or the index that has it (--extra-index-url=URL in the backend's packages)"
    )


def _list_package_versions(name: str, indexes: Sequence[str]) -> list[str]:
    """The versions of a package that pip finds, the newest first; none where it finds none or cannot be asked."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, *(INDEX + url for url in indexes)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    listed = re.search(r"^Available versions: (.+)$", said, re.MULTILINE)
    return listed[1].split(", ") if listed else []


def _add_uv_advice(words: str) -> str:
    """uv's words, without the folder that is made, and what to do where they have no wheel for this machine."""
    words = _WHERE.sub("", words)[-WORDS:]
    advice = next((what for pattern, what in _ADVICE.items() if re.search(pattern, words)), "")
    return f"{words}{'' if not advice else f' {advice}' if words.endswith('.') else f'. {advice}'}"


def _wait_exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Of a process that ends within a moment; None if it does not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(TICK)
    return None


@functools.cache
def _find_uv_binary() -> str:
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        if found is None:
            raise EnvError("environments are built with uv, which is not installed: pip install uv") from None
        return found


def read_environments(cache: Path) -> dict[str, dict[str, Any]]:
    """Every finished environment's record, by key."""
    found = {}
    for path in sorted((cache / "envs").glob("*/environment.json")):
        with contextlib.suppress(OSError, ValueError):
            found[path.parent.name] = json.loads(path.read_text())
    return found


def measure_environment_size(path: Path) -> tuple[int, int]:
    """(bytes of all files, bytes of those with one name only)."""
    total = alone = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                stat = os.lstat(os.path.join(folder, name))
                total += stat.st_size
                alone += stat.st_size * (stat.st_nlink == 1)
    return total, alone


def remove_environment(cache: Path, key: str) -> None:
    """Remove an environment. Raises EnvError while it is being built."""
    with _lock_environment_file(cache / "envs" / f"{key}.lock", Patience(time.monotonic() + 5)):
        shutil.rmtree(cache / "envs" / key)
        (cache / "envs" / f"{key}.txt").unlink(missing_ok=True)
