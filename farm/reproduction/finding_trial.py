"""A finding is tried before anybody is told that it shows a failure: its run.py, by itself, in a process without the farm."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from farm.fleet import scratch_folders
from farm.fleet.channel import Interpreter
from farm.fleet.child_process import TICK, drop_farm_folders, is_child_overdue
from farm.reproduction.finding_folder import RUN
from tasks.model import Status
from tasks.model.errors import mask_error_details
from tasks.relay import StarvedTime

#: Seconds that the imports of a finding may take, which are no part of it.
_IMPORTS_S = 300.0
#: Statuses of results: those that run.py is to end with 1 for, and with 0.
_SHOWN, _HIDDEN = (Status.WRONG, Status.IMPRECISE), (Status.PASS,)
_AFTER = ", after which the device computes no more"

#: Runs a program as `python FILE` does, and writes down how it ended.
_WATCH = """
import json, os, runpy, sys

path, report = sys.argv[1:]
sys.argv = [path]
said = {}
try:
    runpy.run_path(path, run_name="__main__")
    said = {"code": 0}
except SystemExit as end:
    said = {"code": end.code if isinstance(end.code, int) else int(end.code is not None)}
    raise
except BaseException as error:
    said = {"type": type(error).__name__, "text": str(error), "missing": getattr(error, "name", None) or ""}
    said |= {"missing": said["missing"] if isinstance(error, ModuleNotFoundError) else ""}
    said |= {"returncode": getattr(error, "returncode", None)}
    raise
finally:
    with open(report, "w") as file:
        json.dump(said, file)
"""


@dataclass(frozen=True)
class TrialEnd:
    """How a run ended. returncode: of the process; code: that it exited with by itself; type, text: of what it raised;
    missing: the module that it did not find; child: the exit code of a program that it started, where that is what it
    raised."""

    returncode: int
    code: int | None = None
    type: str = ""
    text: str = ""
    missing: str = ""
    child: int | None = None


def run_finding_alone(folder: Path, timeout_s: float, python: str | Interpreter, folders: str = "") -> TrialEnd | None:
    """Run a finding's run.py with an interpreter, in an empty folder, isolated from this installation's paths, with the
    modules in ``folders`` (as PYTHONPATH has them) and in what is laid over the interpreter; None if it did not end in
    time. Behind a launcher it is run from a folder that both sides see."""
    start = python if isinstance(python, Interpreter) else Interpreter(python)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": folders} if folders else {}
    with tempfile.TemporaryDirectory(
        prefix="empty-", dir=scratch_folders.make_folder_for_child(start.shared, start.launcher)
    ) as elsewhere:
        env["TMPDIR"] = elsewhere
        if start.launcher:
            folder = Path(shutil.copytree(folder, Path(elsewhere) / "finding"))
        watch, report = Path(elsewhere) / "watch.py", Path(elsewhere) / "ended.json"
        watch.write_text(f"import sys\n\nsys.path += {list(start.overlays)!r}\n{_WATCH}", encoding="utf-8")
        program = [str(watch), str((folder / RUN).resolve()), str(report)]
        process = subprocess.Popen(
            [*start.command, *([] if folders else ["-I"]), *program],
            cwd=elsewhere,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            if not _wait_for_script(process, timeout_s):
                return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        code = process.returncode
        if start.launcher and 128 < code < 255:  # as shells tell a signal, and containers and schedulers after them
            code = 128 - code
        said: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(report.read_text(encoding="utf-8"))
        child = said.pop("returncode", None)
        return TrialEnd(code, child=child if isinstance(child, int) else None, **said)


def _wait_for_script(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether a process ends in so many seconds in which the machine lets it run."""
    begun, starved = time.monotonic(), StarvedTime(process.pid)
    while not is_child_overdue(time.monotonic() - begun, timeout_s, partial(starved.s, begun)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TICK)
            return True
    return False


@contextlib.contextmanager
def write_trial_script(files: Mapping[str, bytes]) -> Iterator[Path]:
    """The files of a finding in a folder that goes at the end."""
    with tempfile.TemporaryDirectory(prefix="finding-", dir=scratch_folders.make_scratch_folder()) as folder:
        write_finding_files(files, Path(folder))
        yield Path(folder)


def write_finding_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files by their names in a folder, which is made. Raises OSError."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def try_finding(
    folder: Path, row: Mapping[str, Any], timeout_s: float, python: str | Interpreter = sys.executable, times: int = 1
) -> tuple[bool, str]:
    """Run a finding with the interpreter ``python``; timeout_s: of a run; times: how often, of a failure that is not
    always there.

    Returns (whether it shows the row's status, a sentence on what it showed).
    """
    status, folders = Status(row["status"]), ""
    if status is Status.TIMEOUT:
        timeout_s += _measure_import_s(folder, python)  # a first import of torch is no hang
    ended = run_finding_alone(folder, timeout_s, python)
    if ended and ended.missing and (folders := drop_farm_folders(os.environ.get("PYTHONPATH", ""))):
        # As vendors install some of theirs: CANN's set_env.sh names its folders there.
        ended = run_finding_alone(folder, timeout_s, python, folders)
    shown, said = judge_finding_trial(ended, row, timeout_s)
    if times > 1:
        every = [
            (shown, said),
            *(
                judge_finding_trial(run_finding_alone(folder, timeout_s, python, folders), row, timeout_s)
                for _ in range(times - 1)
            ),
        ]
        failed = sum(x for x, _ in every)
        said = next((text for x, text in every if x), said)
        shown, said = (
            failed > 0,
            f"{said}; {'it hung' if status is Status.TIMEOUT else 'it failed'} {failed} of {times} times",
        )
    return shown, said + (", with the $PYTHONPATH of this shell" if folders and shown else "")


def _measure_import_s(folder: Path, python: str | Interpreter) -> float:
    """Seconds that what a finding imports takes, once it has been imported."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))]
    kinds = (ast.Import, ast.ImportFrom)
    found = [ast.unparse(x) for tree in trees for x in ast.walk(tree) if isinstance(x, kinds)]
    lines = [f"try: {line}\nexcept ImportError: pass" for line in dict.fromkeys(found) if "__future__" not in line]
    with write_trial_script({RUN: "\n".join(lines).encode()}) as imports:
        run_finding_alone(imports, _IMPORTS_S, python)
        begun = time.monotonic()
        run_finding_alone(imports, _IMPORTS_S, python)
        return time.monotonic() - begun


def judge_finding_trial(ended: TrialEnd | None, row: Mapping[str, Any], timeout_s: float) -> tuple[bool, str]:
    """(whether a run that ended so shows a row's failure, a sentence on it)."""
    status = Status(row["status"])
    shown, how = _judge_script_ending(ended, row, status, timeout_s)
    return shown, f"{'shows' if shown else 'does NOT show'} the {status}{' result' * (status in _SHOWN)}: {how}"


def _judge_script_ending(
    ended: TrialEnd | None, row: Mapping[str, Any], status: Status, timeout_s: float
) -> tuple[bool, str]:
    if ended is None:
        return status is Status.TIMEOUT, f"it did not end within {timeout_s:g} s"
    if ended.returncode < 0:
        killed = status is Status.OOM and row["kind"] == signal.Signals(-ended.returncode).name  # by the kernel
        return status is Status.CRASH or killed, f"it died of signal {-ended.returncode}"
    if ended.type:
        said = f"it raises {ended.type}: {' '.join(ended.text.split())[:200]}"
        if status is Status.CRASH and row.get("error_type"):
            same = _is_error_of_row(ended, row)
            return same, f"it raises the same{_AFTER}" if same else said
        same = status in (Status.ERROR, Status.OOM, Status.UNSUPPORTED, Status.CRASH) and _is_error_of_row(ended, row)
        return same, "it raises the same" if same else said
    ends = f"it ends with exit code {ended.returncode}"
    if ended.code is None:  # by another way than Python's own
        return status is Status.CRASH and row["kind"] == f"exit code {ended.returncode}", ends
    if status is Status.CRASH:
        return row["kind"] == f"exit code {ended.returncode}" and ended.returncode > 0, ends
    return ended.code == {**dict.fromkeys(_SHOWN, 1), **dict.fromkeys(_HIDDEN, 0)}.get(status), ends


def _is_error_of_row(ended: TrialEnd, row: Mapping[str, Any]) -> bool:
    """Whether what was raised is a row's error: the same type where one says nothing, the same signal of a program that
    was started, else one text within the other, with what is a case's own masked. Of a row's also its first paragraph:
    a runtime may print a part of the program after it, of which its own tools print another one."""
    error = row.get("error") or ""
    if ended.child is not None and ended.child < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-ended.child).name in error
    mine, theirs = (
        mask_error_details(ended.text),
        [x for x in (mask_error_details(error), mask_error_details(error.partition("\n\n")[0])) if x],
    )
    if not mine or not theirs:
        return ended.type == row.get("error_type")
    return any(x in mine or mine in x for x in theirs)
