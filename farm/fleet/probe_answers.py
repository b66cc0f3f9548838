"""What backends have answered before, by their version: whether they work here, and which cases they do not implement.

Both are forgotten as soon as anything that decides the answer changes: the backend's options, a version in its
environment, the code of backends and forms, the farm's own and that of plugins. That it works counts in one
surroundings only: variables, and what was found on the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farm.fleet import envs
from tasks import backends, plugins, sources, wire
from tasks.backends import BackendSpec
from tasks.model import BackendInfo, RuntimeInfo

#: Variables that decide what a backend finds, besides those named after its runtime: where programs and libraries are
#: looked for, compilers, drivers of Vulkan and OpenCL, and which devices may be seen.
DECIDING = re.compile(r"PATH|CC|CXX|(LD|DYLD|VK|OCL|OPENCL|POCL|XLA|CUDA|HIP|ROCR)_.*|XDG_DATA_.*|.*_VISIBLE_DEVICES")
#: Columns of an `unsupported` row that are the backend's own words.
WORDS = ("kind", "stage", "error_type", "error")
#: Seconds for which a refusal counts.
KEPT_S = 7 * 24 * 3600.0


def digest_backend_identity(spec: BackendSpec, cache: Path) -> str:
    """Digest of everything that decides what a backend answers on this machine, but its devices."""
    environment = envs.find_environment(spec)
    if environment is None:
        versions = _digest_own_packages()
    else:
        versions = str((environment.record(cache) or {}).get("digest", "not built"))
    part = backends.list_backends()[spec.runtime]
    # What decides an answer: all of the farm's code in the backend's process, and packages of plugins.
    code = sources.digest_sources("tasks", *plugins.list_plugin_packages())
    parts = [asdict(spec), versions, part.value, part.origin, code, platform.machine(), socket.gethostname()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


@functools.cache
def _digest_own_packages() -> str:
    """Digest of the packages of the farm's own environment."""
    folders = [path for path in map(Path, sys.path) if path.is_dir()]
    # Their folders are called NAME-VERSION; to parse the metadata of each would take half a second.
    names = sorted(
        one.name for path in folders for ending in ("dist-info", "egg-info") for one in path.glob(f"*.{ending}")
    )
    return hashlib.sha256("\n".join([sys.version, *names]).encode()).hexdigest()


def _write_probe_answer(path: Path, data: bytes) -> bool:
    """Write data aside and rename; whether that could be done. What cannot be written is asked again another time."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(data)
        aside.replace(path)
        return True
    return False


def read_probe_answer(spec: BackendSpec, cache: Path) -> BackendInfo | None:
    """A backend's answer to hello of an earlier run; None if it has to be asked.

    Only of backends that need no device, and only that they work: devices come and go, and what is missing may have
    been installed. It counts where the variables are the same and what the backend found is as it was. Its child
    answers again when it is started.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = wire.decode_wire_message(_find_probe_answer_path(spec, cache).read_bytes())
        answer = kept["answer"]
        if isinstance(answer, BackendInfo) and kept["stamps"] == _stat_found_files(answer):
            return answer
    return None


def keep_probe_answer(spec: BackendSpec, answer: BackendInfo, cache: Path) -> None:
    """Keep a backend's answer to hello if it may be taken for granted the next time (see `read_probe_answer`): that of a
    process of its own, whose start is what the next one takes."""
    if answer.resource == "CPU":
        kept = {"answer": answer, "stamps": _stat_found_files(answer), "backend": asdict(spec), "at": time.time()}
        _write_probe_answer(_find_probe_answer_path(spec, cache), wire.encode_wire_message(kept))


def _find_probe_answer_path(spec: BackendSpec, cache: Path) -> Path:
    own = re.compile(rf"{re.escape(spec.runtime.upper())}_.*")
    variables = {k: v for k, v in os.environ.items() if DECIDING.fullmatch(k) or own.match(k)}
    # Whether the farm's own environment is activated decides nothing.
    bin_folder = os.path.dirname(sys.executable)
    path = [x for x in variables.get("PATH", "").split(os.pathsep) if x and x != bin_folder]
    parts = json.dumps([digest_backend_identity(spec, cache), variables | {"PATH": path}], sort_keys=True)
    return cache / "probes" / f"{hashlib.sha256(parts.encode(errors='replace')).hexdigest()[:32]}.json"


def _stat_found_files(answer: BackendInfo) -> dict[str, list[int]]:
    """Size and time of the files that a backend found what it needs in."""
    found = {}
    for where in answer.found.values():
        with contextlib.suppress(OSError):
            stat = os.stat(where)
            found[where] = [stat.st_size, stat.st_mtime_ns]
    return found


@dataclass
class ProbedSupport:
    """Which cases a backend of one version has said that it does not implement.

    A reason may be one that passes: memory that was short, a compiler that was not there. So a refusal counts once two
    runs were given the same words, and for `KEPT_S`; then the backend is asked again.

    cases: "<content key of the prepared case or exported form>:<sample>" → its words, the run they are from, the last
    one that was told them "again", and when ("at", seconds). learned: those of this run that are not yet written;
    since: seconds since 1970 from which on what others have written counts.
    """

    path: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    learned: set[str] = field(default_factory=set)
    since: float = 0.0

    @classmethod
    def load(cls, spec: BackendSpec, info: RuntimeInfo, cache: Path) -> ProbedSupport:
        """What is known of a backend. ``info``: what it says of itself; its versions and device count as well."""
        own = [digest_backend_identity(spec, cache), info.runtime_version, info.driver_version, info.device]
        path = cache / "support" / f"{hashlib.sha256(json.dumps(own).encode()).hexdigest()[:32]}.json"
        return cls(path, _read_unsupported_cases(path))

    def find_unsupported(self, key: str, sample: int) -> dict[str, str] | None:
        """Words of a row and "run", if the case is known to be unsupported."""
        known = self.cases.get(f"{key}:{sample}", {})
        if not known.get("again") or time.time() - known["at"] > KEPT_S:
            return None
        return {name: known[name] for name in (*WORDS, "run")}

    def learn(self, key: str, sample: int, row: Mapping[str, Any], run_id: str) -> None:
        """Remember a row whose status is "unsupported"."""
        name, words = f"{key}:{sample}", {k: str(row.get(k) or "") for k in WORDS}
        known = self.cases.get(name, {})
        again = words.items() <= known.items() and run_id != known["run"]
        self.cases[name] = words | {
            "run": known["run"] if again else run_id,
            "again": run_id * again,
            "at": time.time(),
        }
        self.learned.add(name)

    def forget(self) -> None:
        """Ask anew: what was known counts no more, in later runs either."""
        self.cases.clear()
        self.learned.clear()
        self.since = time.time()

    def save(self) -> None:
        """Write what was learned beside what another run has learned meanwhile: of a case, the newer answer. What cannot
        be written is left for the next time."""
        if not self.learned and not self.since:
            return
        with _lock_probe_file(self.path):
            kept = {
                name: known for name, known in _read_unsupported_cases(self.path).items() if known["at"] >= self.since
            }
            for name in self.learned:
                kept[name] = max(self.cases[name], kept.get(name, self.cases[name]), key=lambda known: known["at"])
            if _write_probe_answer(self.path, json.dumps(kept).encode()):
                self.cases, self.since = kept, 0.0
                self.learned.clear()


def _read_unsupported_cases(path: Path) -> dict[str, dict[str, Any]]:
    """What a file has that is whole: it may be another version's."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {
            name: known
            for name, known in json.loads(path.read_text()).items()
            if isinstance(known, dict) and known.keys() >= {*WORDS, "run", "again", "at"}
        }
    return {}


@contextlib.contextmanager
def _lock_probe_file(path: Path) -> Iterator[None]:
    """No other process reads and writes the file meanwhile, where its file system has locks."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(path.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield
