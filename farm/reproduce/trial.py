"""A script is tried before anybody is told that it shows a failure."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.fleet import scratch
from farm.fleet.channel import Interpreter
from farm.fleet.child_process import without_farm
from tasks.model import Status
from tasks.model.errors import masked

#: How a script prints the metrics of a row.
LABELS = {
    "error_units": "error units",
    "max_diff": "max abs diff",
    "max_rel": "max rel diff",
    "max_ulp": "max ulp",
    "rmse": "rms diff",
}
#: Of the words of an error, the share that a short script's own must have; lines at the end of what it said that tell its error.
_ALIKE, _LAST = 0.5, 30
_AFTER = ", after which the device computes no more"
#: Seconds that the imports of a script may take, which are no part of it.
_IMPORTS_S = 300.0
#: Of the error of a row: a program that the runtime started died.
_DIED = re.compile(r"\bdied of SIG")
#: What is said of a program that a script starts, and that a signal ended: other negative codes are a runtime's own.
_ENDED_BY = ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV")
_KILLED = re.compile(
    rf"code:? -(?:{'|'.join(str(signal.Signals[name].value) for name in _ENDED_BY)})\b|died with <Signals"
)
_MISSING = re.compile(r"No module named '(\w+)")
#: What a script prints that runs itself again.
_OFTEN = re.compile(r"^(?:failed|hung) \d+ of \d+ times$", re.M)
_PRINTED = re.compile(rf"^(verdict|raised|{'|'.join(LABELS.values())}) +(.*)$", re.M)


#: A script with folders of modules before it.
_LAID = """import runpy, sys
sys.path += {folders!r}
runpy.run_path({script!r}, run_name="__main__")
"""


def alone(
    path: Path, timeout_s: float, python: str | Interpreter, folders: str = ""
) -> subprocess.CompletedProcess[str] | None:
    """A script run by itself with an interpreter, in an empty folder, isolated from this installation's paths, with the modules
    in ``folders`` (as PYTHONPATH has them) and in what is laid over the interpreter; None if it did not end in time. Behind a launcher
    it is run from a folder that both see."""
    start = python if isinstance(python, Interpreter) else Interpreter(python)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": folders} if folders else {}
    with tempfile.TemporaryDirectory(prefix="empty-", dir=scratch.beside(start.shared, start.launcher)) as elsewhere:
        env["TMPDIR"] = elsewhere
        program = path.resolve()
        if start.launcher or start.overlays:
            program = Path(elsewhere) / "laid_over.py"
            script = shutil.copy(path, Path(elsewhere) / "script.py")
            program.write_text(_LAID.format(folders=list(start.overlays), script=str(script)), encoding="utf-8")
        process = subprocess.Popen(
            [*start.command, *([] if folders else ["-I"]), str(program)],
            cwd=elsewhere,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        code = process.returncode
        if start.launcher and 128 < code < 255:  # as shells tell a signal, and containers and schedulers after them
            code = 128 - code
        return subprocess.CompletedProcess(process.args, code, out, err)


@contextlib.contextmanager
def written(text: str) -> Iterator[Path]:
    """A script in a file that goes at the end."""
    with tempfile.TemporaryDirectory(prefix="script-", dir=scratch.folder()) as folder:
        path = Path(folder) / "minimal.py"
        path.write_text(text, encoding="utf-8")
        yield path


def check(
    path: Path,
    row: Mapping[str, Any],
    timeout_s: float,
    python: str | Interpreter = sys.executable,
    short: bool = False,
    times: int = 1,
) -> tuple[bool, str]:
    """Run the script by itself with the interpreter ``python``, isolated from this installation's paths; timeout_s: of a run; short: one
    of few lines (`farm.minimise.script`), which prints no verdict; times: how often it runs itself again.

    Returns (whether it shows the row's status, a sentence on what it showed).
    """
    timeout_s *= times
    if Status(row["status"]) is Status.TIMEOUT:
        # A first import of torch is no hang. Of one that runs itself again each run has them, and as long as the first took besides.
        timeout_s += _imported_s(path, python) * (1 if times == 1 else 2 * times + 1)
    shown, text = _checked(alone(path, timeout_s, python), row, timeout_s, short, times)
    if (missing := _MISSING.search(text)) and (folders := without_farm(os.environ.get("PYTHONPATH", ""))):
        # As vendors install some of theirs: CANN's set_env.sh names its folders there.
        there, said = _checked(alone(path, timeout_s, python, folders), row, timeout_s, short, times)
        if there:
            return there, f"{said}, with the $PYTHONPATH of this shell, which has {missing[1]}"
    return shown, text


def _imported_s(path: Path, python: str | Interpreter) -> float:
    """Seconds that what a script imports takes, once it has been imported."""
    kinds = (ast.Import, ast.ImportFrom)
    top = ast.parse(path.read_text(encoding="utf-8")).body
    found = [x for node in top for x in (node.body if isinstance(node, ast.Try) else [node]) if isinstance(x, kinds)]
    with written("\n".join(map(ast.unparse, found))) as imports:
        alone(imports, _IMPORTS_S, python)
        begun = time.monotonic()
        alone(imports, _IMPORTS_S, python)
        return time.monotonic() - begun


def _checked(
    done: subprocess.CompletedProcess[str] | None, row: Mapping[str, Any], timeout_s: float, short: bool, times: int
) -> tuple[bool, str]:
    status = Status(row["status"])
    if done is None:
        shown = status is Status.TIMEOUT and times == 1
        return shown, f"{'shows' if shown else 'does NOT show'} the {status}: it did not end within {timeout_s:g} s"
    died = _KILLED.search(done.stderr) if short else None
    if done.returncode < 0 or died:
        shown = status is Status.CRASH or (died is not None and bool(_DIED.search(row["error"] or "")))
        which = f"signal {-done.returncode}" if done.returncode < 0 else "a signal, in a program that it starts"
        return shown, f"{'shows' if shown else 'does NOT show'} the {status}: it died of {which}"
    if status is Status.CRASH and row["kind"] == f"exit code {done.returncode}" and "Traceback" not in done.stderr:
        return True, f"shows the crash: it ended with exit code {done.returncode}"
    return _ended(done, row) if short else _verdict(done, row)


def _ended(done: subprocess.CompletedProcess[str], row: Mapping[str, Any]) -> tuple[bool, str]:
    """Of a script of few lines: its last word is "wrong", or it raises what the row says."""
    status, often = Status(row["status"]), _OFTEN.search(done.stdout)
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].strip()
    if status in (Status.WRONG, Status.IMPRECISE) and (done.returncode, last) == (1, "wrong"):
        return True, f"shows the {status} result" + (f": it {often[0]}" if often else "")
    if status is Status.TIMEOUT and often and (done.returncode, last) == (1, "hung"):
        return True, f"shows the {status}: it {often[0]}"
    # Of a device that computes nothing after an error, in this process: the error is what a script shows.
    after = status is Status.CRASH and bool(row.get("error_type"))
    if (status in (Status.ERROR, Status.OOM) or after) and done.returncode == 1:
        lines = (done.stdout + "\n" + done.stderr).splitlines()
        said = "\n".join(lines[-_LAST:])
        found = set(re.findall(r"[a-z]{3,}", said.lower()))
        error = row["error"] or ""
        # What follows a first paragraph may be a part of the program, of which a runtime's own tools print another one.
        told = (error, error.partition("\n\n")[0])
        alike = any(_shared(x, found) for x in told) if _words(error) else last.startswith(row.get("error_type") or "?")
        if alike and any(x.startswith("Traceback") for x in lines):
            return True, f"shows the {status}: it raises the same{_AFTER * after}" + (
                f"; it {often[0]}" if often else ""
            )
    return False, f"does NOT show the {status}: exit code {done.returncode}, {last[:200]}"


def _words(error: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", masked(error)))


def _shared(error: str, found: set[str]) -> bool:
    """Whether so many words of an error are among those ``found`` that it is the same."""
    words = _words(error)
    return bool(words) and len(words & found) >= _ALIKE * len(words)


def _verdict(done: subprocess.CompletedProcess[str], row: Mapping[str, Any]) -> tuple[bool, str]:
    """Of a script with the judge in it: what it prints is the row's."""
    status = Status(row["status"])
    said = {m[1]: m[2] for m in _PRINTED.finditer(done.stdout)}
    verdict = said.get("verdict")
    if verdict is None:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return False, f"does NOT show the {status}: exit code {done.returncode}, {words[:200]}"
    if status is Status.UNSUPPORTED and verdict == Status.ERROR:
        same = said.get("raised", "?").partition(": ")[2][:40] in row["error"].replace("\n", " ")
        return same, "raises what the runtime says" if same else f"raises something else: {said.get('raised')}"
    if status in (Status.CRASH, Status.OOM) and verdict == Status.ERROR and row["error_type"]:
        # Of a device that computes nothing after an error, in this process: the error is what a script shows.
        if (said.get("raised", "?").partition(": ")[2] or "?")[:40] in " ".join(row["error"].split()):
            return True, f"shows the {status}: it raises the same{_AFTER * (status is Status.CRASH)}"
    if verdict != status or done.returncode != int(status.failed):
        raised = f", raised {said['raised'][:200]}" if said.get("raised") else ""
        return False, f"does NOT show the {status}: it says {verdict}{raised}"
    other = [
        f"{name} {said.get(label, '–')}, not {row[name]!r}"
        for name, label in LABELS.items()
        if row.get(name) is not None and row[name] == row[name] and float(said.get(label, "nan")) != row[name]
    ]
    failure = "failure" if status.failed else "outcome"
    if other:
        return True, f"shows the {failure} ({status}) with other numbers: {'; '.join(other)}"
    return True, f"shows the {failure} ({status}) with the same numbers (exit code {done.returncode})"
