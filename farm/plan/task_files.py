"""Which files of a task's folder are the host's, and which somebody has sent in."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

from tasks.packages import list_library_folders
from tasks.user_sources import SUBMISSIONS, list_imported_files

#: What a task's declaration is called.
TASK = "task.yaml"
#: What it is called here and in the folders of a gpu-mode task.
ANY_TASK = "task.y*ml"


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task's folder. own: what the task is made of; refused: those of others that are not run, and
    why."""

    own: frozenset[Path] = frozenset()
    refused: dict[Path, str] = field(default_factory=dict)


def find_task_files(folder: Path, known: Iterable[Path], root: str) -> TaskFiles:
    """The files of a task of which some are known to be the host's: these, and what they import from ``root`` or from
    beside them. Where submissions lie beside the reference, a file that has the name of a module of Python's or of an
    installed package is nobody's helper: the import means that package. Such a submission of a package's name is
    refused: a reader would think that the reference uses it."""
    first = {x.resolve() for x in known}
    found = _list_files_of_task(first, root, ())
    if (folder / SUBMISSIONS).is_dir():
        return TaskFiles(found)
    beside = [x for x in sorted(found - first) if x.parent == folder.resolve()]
    refused = {
        x: f"{x}: the reference imports {x.stem}, and means the package of this name, not this file: rename it; if it is "
        f"the task's own, put the submissions into {SUBMISSIONS}/"
        for x in beside
        if _is_installed(x.stem)
    }
    python = {x for x in beside if x.stem in sys.stdlib_module_names}
    return TaskFiles(_list_files_of_task(first, root, {*refused, *python}), refused)


def list_submission_files(folder: Path, own: Collection[Path]) -> list[tuple[str, Path]]:
    """The submissions of a folder by name: its files of Python but those of the task (``own``) and those whose name
    begins with "_" or "."; or what is in its folder for them, where a folder with one file is a submission by the
    folder's name, and any other one is none if a file has its name: that file's data."""
    apart = folder / SUBMISSIONS
    where = apart if apart.is_dir() else folder
    files: list[tuple[str, Path]] = []
    others: list[tuple[str, Path]] = []
    for path in sorted(where.iterdir()):
        if path.name.startswith(("_", ".")):
            continue
        if path.suffix == ".py" and Path(os.path.realpath(path)) not in own:  # of a loop of links too
            files.append((path.stem, path))
        elif path.is_dir() and where is apart:
            inner = sorted(path.glob("*.py"))
            (files if len(inner) == 1 else others).append((path.name, inner[0] if len(inner) == 1 else path))
    names = {name for name, _ in files}
    return files + [(name, path) for name, path in others if name not in names]


def list_task_submissions(folder: Path, own: Collection[Path]) -> list[Path]:
    """The files of Python in a task's folder that are not the task's."""
    if (folder / SUBMISSIONS).is_dir():
        return []
    return [x for x in sorted(Path(os.path.realpath(y)) for y in folder.glob("*.py")) if x not in own]


def _list_files_of_task(files: Iterable[Path], root: str, others: Collection[Path]) -> frozenset[Path]:
    return frozenset(x for file in files for x in list_imported_files(file, root, others))


def _is_installed(name: str) -> bool:
    """Whether a package of this environment has a name, other than Python's own; not what merely lies where the command
    was started."""
    if name in sys.stdlib_module_names:
        return False
    try:  # whose files may lie anywhere
        importlib.metadata.distribution(name)
        return True
    except importlib.metadata.PackageNotFoundError:
        pass
    folders = [str(y) for x in list_library_folders() for y in (x, x.parent)]  # of packages that are built in place
    spec = PathFinder.find_spec(name, folders)
    return spec is not None and spec.origin is not None
