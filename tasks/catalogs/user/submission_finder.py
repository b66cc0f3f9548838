"""Python's finder of files, for which the submissions that a process was told of are not there.

A submission is no module: neither other submissions, the reference beside it nor a library that looks for an optional
package of its name (mpmath for gmpy2, torch for triton) is to run code that nobody vouches for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import ClassVar


class FinderWithoutSubmissions(PathFinder):
    """Python's finder of files, for which submissions are not there. hidden: these by the name that a module of theirs
    would have; replaced as a whole, as other threads may be importing."""

    hidden: ClassVar[Mapping[str, set[Path]]] = {}

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        word = fullname.rpartition(".")[2]
        if word in cls.hidden:
            path = [x for x in (sys.path if path is None else path) if not is_hidden_submission(Path(x), word)]
        return PathFinder.find_spec(fullname, path, target)


def hide_submissions_from_imports(submissions: Iterable[str]) -> None:
    """From now on no import of this process finds these files and folders; what was hidden before is found again."""
    found: dict[str, set[Path]] = {}
    for path in map(Path, submissions):
        found.setdefault(path.parent.name if path.name == "__init__.py" else path.stem, set()).add(path)
    FinderWithoutSubmissions.hidden = found
    if found and PathFinder in sys.meta_path:
        sys.meta_path[sys.meta_path.index(PathFinder)] = FinderWithoutSubmissions


def is_hidden_submission(folder: Path, name: str) -> bool:
    """Whether what a folder has under the name of a module is a submission."""
    there = FinderWithoutSubmissions.hidden.get(name, ())
    return any(Path(os.path.realpath(folder / x)) in there for x in (f"{name}.py", name, f"{name}/__init__.py"))
