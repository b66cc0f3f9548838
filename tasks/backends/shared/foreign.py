"""Whose code it is: a user's, or the farm's and its libraries'."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import FrozenImporter
from pathlib import Path
from types import CodeType

from tasks.packages import list_library_folders

#: Where `tasks` lies; another environment's process has it by a link (`farm.fleet.child_process`). Folders end with a
#: separator: code beside them whose names begin alike is a user's.
_TASKS = sorted({os.path.join(x.parents[2], "") for x in (Path(__file__), Path(__file__).resolve())})
#: Folders of code that is not a user's.
_LIBRARIES = (
    *_TASKS,
    *(os.path.join(x, "") for x in (Path(__file__).resolve().parents[3] / "farm", *list_library_folders())),
)
#: Its kernels stand for users'.
_ZOO = tuple(os.path.join(x, "zoo", "") for x in _TASKS)
_known: dict[str, bool] = {}


def _list_frozen_code() -> Iterator[CodeType]:
    """The code of Python's own modules that lie in no file; each is equal to none but itself, wherever another one says
    that it comes from."""
    frozen = [name for name in sys.modules.copy() if FrozenImporter.find_spec(name) is not None]
    left: list[object] = [FrozenImporter.get_code(name) for name in frozen]
    for one in left:
        if isinstance(one, CodeType):
            yield one
            left += one.co_consts


_FROZEN = frozenset(_list_frozen_code())


def is_foreign_file(file: str) -> bool:
    """Whether code of a file is neither the farm's nor a library's."""
    if file not in _known:
        _known[file] = file.startswith(_ZOO) or not file.startswith((*_LIBRARIES, "<"))
    return _known[file]


def is_code_of_user(code: CodeType | None) -> bool:
    """Whether code is neither the farm's nor a library's by what it says of itself: also such as was compiled from a
    text, of which nobody knows whose it is."""
    if code is None:
        return False
    file = code.co_filename
    return is_foreign_file(file) or (file.startswith("<") and code not in _FROZEN)
