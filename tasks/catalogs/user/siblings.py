"""Modules beside a kernel's file: each file is given those of its own folder, whatever else has the same name.

Two folders with a `utils.py` each, or a `tasks.py` of the user's, are usual. Python keeps one module of a name a
process, the first that was imported; the second folder's kernel, or its reference, would compute with the first one's.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tasks import user_sources
from tasks.catalogs.user.submission_finder import FinderWithoutSubmissions, is_hidden_submission

#: Begins the names of packages that stand for folders.
_PREFIX = "beside_"
#: Modules of Python itself; 3.9 tells the built-in ones only.
_OF_PYTHON: Collection[str] = getattr(sys, "stdlib_module_names", sys.builtin_module_names)


class _SiblingFinder(MetaPathFinder):
    """The folders in which a file's modules are looked up, as a package whose modules they are. last: those for what is
    found nowhere else."""

    def __init__(self, first: Sequence[str], last: Sequence[str]) -> None:
        self._first, self._last = [Path(x) for x in first], [Path(x) for x in last]
        folders = [*first, *last]
        self.name = _PREFIX + hashlib.sha256("\0".join(folders).encode()).hexdigest()[:10]
        self.builtins = vars(builtins) | {"__import__": self._import}
        package = ModuleType(self.name)
        package.__path__ = folders
        sys.modules[self.name] = package
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.name}."):
            return None
        spec = FinderWithoutSubmissions.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SiblingLoader(self.builtins, spec.loader.name, spec.loader.path)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        first = name.partition(".")[0]
        if level or not self._has_namesake(first):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = importlib.import_module(f"{self.name}.{name}")
        if fromlist:  # which may name submodules
            return builtins.__import__(found.__name__, globals, locals, fromlist, 0)
        return sys.modules[f"{self.name}.{first}"]

    def _has_namesake(self, first: str) -> bool:
        """Whether a module of this name lies here and the usual way leads to another one. The standard library's come
        first, as everywhere in the process that has imported them."""
        own, late = (
            user_sources.find_module_file(first, [x for x in folders if not is_hidden_submission(x, first)])
            for folders in (self._first, self._last)
        )
        if not (own or late) or first in _OF_PYTHON:
            return False
        if f"{self.name}.{first}" in sys.modules:
            return True
        there = sys.modules.get(first)
        try:
            spec = there.__spec__ if there is not None else importlib.util.find_spec(first)
        except (ImportError, ValueError, AttributeError):
            return own is not None
        if own is None:
            return there is None and spec is None
        return spec is None or spec.origin is None or not _is_same_module(spec.origin, own)


class _SiblingLoader(SourceFileLoader):
    """Loads a module that looks up its own imports where it lies."""

    def __init__(self, given: dict[str, Any], fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._builtins = given

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        super().exec_module(module)


def make_sibling_loader(name: str, file: Path, root: str) -> SourceFileLoader:
    """The loader of a file whose modules are looked up in its folders, of which ``root`` is one."""
    first, last = (user_sources.list_import_folders(file, root), user_sources.list_last_folders(file, root))
    return _SiblingLoader(_make_sibling_finder(tuple(map(str, first)), tuple(map(str, last))).builtins, name, str(file))


@functools.cache
def _make_sibling_finder(first: tuple[str, ...], last: tuple[str, ...]) -> _SiblingFinder:
    return _SiblingFinder(first, last)


def _is_same_module(origin: str, own: Path) -> bool:
    try:
        return Path(origin).samefile(own)
    except OSError:
        return False
