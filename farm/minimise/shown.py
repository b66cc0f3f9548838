"""Whether a script of few lines shows a failure: it is run by itself before anybody sees it."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.reproduce import trial
from tasks.model import Status
from tasks.model.errors import masked

#: Of the words of an error, the share that a script's own must have.
_ALIKE = 0.5
#: Lines at the end of what a script said that tell its error.
_LAST = 30


@contextlib.contextmanager
def written(text: str) -> Iterator[Path]:
    """A script in a file that goes at the end."""
    with tempfile.TemporaryDirectory(prefix="farm-script-") as folder:
        path = Path(folder) / "minimal.py"
        path.write_text(text, encoding="utf-8")
        yield path


def shows(text: str, row: Mapping[str, Any], deadline_s: float, python: str) -> tuple[bool, str]:
    """(whether the script fails as ``row`` says, what it did) with the interpreter ``python``."""
    status = Status(row["status"])
    with written(text) as path:
        done = trial.alone(path, 2 * deadline_s if status is Status.TIMEOUT else 4 * deadline_s, python)
    if done is None:
        return status is Status.TIMEOUT, "does not end"
    said = "\n".join((done.stdout + "\n" + done.stderr).splitlines()[-_LAST:])
    if done.returncode < 0 or re.search(r"code -\d+|died with <Signals", said):
        return status is Status.CRASH, f"dies ({row['kind'] if status is Status.CRASH else done.returncode})"
    if status is Status.CRASH and row["kind"] == f"exit code {done.returncode}" and "Traceback" not in said:
        return True, f"ends with exit code {done.returncode}"
    last = (done.stderr.strip().splitlines() or [""])[-1].strip()
    if status in (Status.WRONG, Status.IMPRECISE):
        return (done.returncode, last) == (1, "wrong"), "gives the wrong result" if last == "wrong" else _other(last)
    if status is Status.ERROR and done.returncode == 1:
        return _alike(row, said), "raises the same error" if _alike(
            row, said
        ) else f"raises another error: {last[:200]}"
    return False, _other(last)


def _other(last: str) -> str:
    return f"does not show it: {last[:200]}" if last else "does not show it: it ends without a word"


def _alike(row: Mapping[str, Any], said: str) -> bool:
    """Whether a script raised what the row says, by its words."""
    words = set(re.findall(r"[a-z]{3,}", masked(row["error"] or "")))
    found = set(re.findall(r"[a-z]{3,}", said.lower()))
    return len(words & found) >= _ALIKE * len(words) and "Traceback" in said
