"""Processes that need not import what takes seconds: forks of one that has, each with the command line, variables and folder of its own."""

from __future__ import annotations

import atexit
import functools
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

#: Libraries that a command of the farm's may import, and none of its own modules: what those do when imported stays.
#: Nor ONNX Runtime: it starts a thread and opens a database, which no fork should share. Nor torch's list of ops: it
#: takes longer than all of these, and few commands need it where the lists of catalogs are in the cache.
LIBRARIES = (
    "numpy",
    "ml_dtypes",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pydantic.dataclasses",
    "pydantic.json_schema",  # pydantic itself imports none of its own modules
    "packaging.requirements",
    "jinja2",
    "rich.live",
    "rich.table",
    "yaml",
    "torch",
    "onnx.reference",
)


@functools.cache
def _prepared() -> ForkServerContext:
    """Starts with the first process that is asked for; ends with this one."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([*LIBRARIES])
    return made


def run(
    command: Sequence[object],
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    input: str = "",
    **asked: Any,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does it with captured text, for a command of this Python: [sys.executable, "-I", "-m" NAME or
    "-c" CODE or FILE, arguments …]. asked: of subprocess.run's, check, errors and timeout; the others are as here
    anyway.

    Raises CalledProcessError, TimeoutExpired. Such a process costs its parent no CPU time that getrusage would tell.
    """
    python, *words = map(str, command)
    assert python == sys.executable, python
    with tempfile.TemporaryDirectory(prefix="farm-prepared-") as folder:
        files = [str(Path(folder) / name) for name in ("in", "out", "err")]
        Path(files[0]).write_text(input)
        told = dict(os.environ if env is None else env), str(cwd or os.getcwd()), files
        process = _prepared().Process(target=_be, args=(words, *told))
        process.start()
        process.join(asked.get("timeout"))
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, asked["timeout"])
        out, err = (
            Path(name).read_text(errors=asked.get("errors")) if Path(name).exists() else "" for name in files[1:]
        )
    done = subprocess.CompletedProcess([python, *words], process.exitcode, out, err)
    if asked.get("check"):
        done.check_returncode()
    return done


class Popen:
    """As `subprocess.Popen` starts one that reads nothing and whose words nobody reads: a session of its own."""

    def __init__(self, command: Sequence[object], env: Mapping[str, str], cwd: str, **silent: Any) -> None:
        python, *words = map(str, command)
        assert python == sys.executable, python
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        assert silent == streams | {"start_new_session": True}, silent
        self._process = _prepared().Process(target=_be, args=(words, dict(env), cwd, [os.devnull] * 3, True))
        self._process.start()
        self.pid: int = self._process.pid  # type: ignore[assignment]

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self.returncode


#: The module subprocess for code that is to start such processes; for code that starts silent ones and waits for them.
SUBPROCESS = types.SimpleNamespace(**vars(subprocess) | {"run": run})
SILENT = types.SimpleNamespace(**vars(subprocess) | {"Popen": Popen})


def _be(words: list[str], env: Mapping[str, str], cwd: str, files: Sequence[str], leads: bool = False) -> None:
    """Body of the fork: from here on it is what Python would be with this command line. leads: a session of its own."""
    if leads:
        os.setsid()
    for number, name in enumerate(files):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if ignored := env.get("PYTHONWARNINGS"):
        warnings.simplefilter(ignored)  # type: ignore[arg-type]
    isolated = words[0] == "-I"
    _, name, *rest = words = words[isolated:] if words[isolated] in ("-m", "-c") else ["", *words[isolated:]]
    first = {"-m": cwd, "-c": ""}.get(words[0], os.path.dirname(os.path.abspath(name)))
    given = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = _own_path() if isolated else [*given, *_own_path()]
    for module in [m for m in sys.modules if m.partition(".")[0] in ("tests", "farm", "tasks")]:
        del sys.modules[module]  # this one's, and what stands for the parent's main module
    importlib.invalidate_caches()
    sys.argv = ["-c" if words[0] == "-c" else name, *rest]
    try:
        if words[0] == "-m":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(name, "<string>", "exec"), main.__dict__)
        else:
            runpy.run_path(name, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing leave them out


def _own_path() -> list[str]:
    """The path of this Python alone: its library and its installed packages."""
    roots = tuple({os.path.realpath(x) for x in (sys.prefix, sys.base_prefix)})
    return [x for x in sys.path if os.path.realpath(x).startswith(roots) or "__editable__" in x]
