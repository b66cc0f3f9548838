"""Whose code it is: a user's, or the farm's and its libraries'."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_TASKS = Path(__file__).resolve().parents[2]
#: Folders of code that is not a user's.
_LIBRARIES = (
    str(_TASKS),
    str(_TASKS.parent / "farm"),
    *sorted({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}),
)
#: Its kernels stand for users'.
_ZOO = str(_TASKS / "zoo")
_known: dict[str, bool] = {}


def is_foreign(file: str) -> bool:
    """Whether code of a file is neither the farm's nor a library's."""
    if file not in _known:
        _known[file] = file.startswith(_ZOO) or not file.startswith((*_LIBRARIES, "<"))
    return _known[file]
