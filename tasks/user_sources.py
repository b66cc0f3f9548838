"""Source files of the user's: finding a module's without importing it, and all files that one depends on."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import symtable
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

#: The folder that a task's submissions may be in instead of beside it.
SUBMISSIONS = "submissions"
#: The file of a gpu-mode task that its reference and its submissions import.
TASK_TYPES = "task.py"


def locate_module_source(module: str, root: str) -> Path | None:
    """The source file of a module ("pkg.kernels", or a path ending in .py), looked up in ``root`` and in sys.path.

    A path is not checked to exist. Nothing is imported, except by an editable install's own finder.
    """
    if module.endswith(".py"):
        return Path(root, module)
    found = find_module_file(module, [Path(root)])
    if found:
        return found
    spec: ModuleSpec | None = None
    where: Sequence[str] | None = None
    words = module.split(".")
    for count in range(1, len(words) + 1):
        try:
            spec = PathFinder.find_spec(".".join(words[:count]), where)
        except KeyError:  # a folder without __init__.py: where it lies is asked of its package, which is not imported
            where = [str(path) for base in where or () if (path := Path(base, words[count - 1])).is_dir()]
            spec = None
            continue
        if spec is None:
            try:
                spec = importlib.util.find_spec(module)
            except (ImportError, ValueError):
                return None
            break
        where = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def list_public_functions(file: Path) -> list[str]:
    """The public functions that a file defines at its top, read from its source. Raises SyntaxError, OSError."""
    body = ast.parse(file.read_bytes(), str(file)).body
    return [x.name for x in body if isinstance(x, ast.FunctionDef) and not x.name.startswith("_")]


#: What may give a module names that its source does not show.
_HIDDEN = {"globals", "locals", "vars", "exec", "eval", "setattr", "__getattr__", "__dict__", "modules"}


def list_names_at_top(file: Path) -> set[str] | None:
    """The names that a file has at its top once it was imported, read from its source; None where the source does not
    show them all (from … import *, globals(), a package's submodules). Raises SyntaxError, OSError."""
    source = file.read_bytes()
    tree = ast.parse(source, str(file))
    used = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)} | {
        x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)
    }
    imported = [a.name for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) for a in x.names]
    top = symtable.symtable(importlib.util.decode_source(source), str(file), "exec")
    names = {x.get_name() for x in top.get_symbols() if x.is_assigned() or x.is_imported()}
    names |= {name for x in ast.walk(tree) if isinstance(x, ast.Global) for name in x.names}
    if file.name == "__init__.py" or "*" in imported or _HIDDEN & (used | names):
        return None
    return names


def find_first_lacking_import(file: Path, root: str) -> tuple[int, str] | None:
    """Line and name of the package that ends a file's import: imported by its first statements, before anything of the
    user's has run that could change what is found, and not there. None where there is none."""
    folders = list_import_folders(file, root)
    for x in ast.parse(file.read_bytes(), str(file)).body:
        if isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant):
            continue
        if isinstance(x, ast.Import):
            modules = [a.name for a in x.names]
        elif isinstance(x, ast.ImportFrom) and not x.level:
            modules = [x.module or ""]
        else:
            return None
        for package in (name.partition(".")[0] for name in modules):
            if is_package_beside(package, folders):
                return None
            try:
                spec = importlib.util.find_spec(package)
            except (ImportError, ValueError):
                return None
            if spec is None:
                return None if find_module_file(package, list_last_folders(file, root)) else (x.lineno, package)
    return None


def is_package_beside(package: str, folders: Iterable[Path]) -> bool:
    """Whether a package or module of that name lies in one of the folders."""
    return any((folder / package).is_dir() or (folder / f"{package}.py").is_file() for folder in folders if package)


def find_module_file(module: str, folders: Iterable[Path]) -> Path | None:
    """The file of a module or package in the first of the folders that has it."""
    for folder in folders:
        base = folder.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def list_import_folders(file: Path, root: str) -> list[Path]:
    """Where the imports of a file are looked up, before what is installed: in its own folder, and in ``root``."""
    return list(dict.fromkeys([file.parent, Path(root).resolve()]))


def list_last_folders(file: Path, root: str) -> list[Path]:
    """Where the imports of a file are looked up that are found nowhere else: of a submission's its task's folder, where
    that is below ``root``. Not in every folder between: kernels lie in packages called as what they are written in."""
    apart = next((x for x in file.resolve().parents if x.name == SUBMISSIONS), None)
    return [apart.parent] if apart and Path(root).resolve() in apart.parent.parents else []


def list_imported_files(file: Path, root: str, others: Collection[Path] = (), late: bool = True) -> list[Path]:
    """``file`` and every file that it imports, directly or not, from its `list_import_folders` and, with ``late``, its
    `list_last_folders`; sorted. others: files that no import means.

    Read from the source: imports made by other means are not seen. A file that is missing or is no Python is a leaf.
    """
    found: set[Path] = set()
    left = [file.resolve()]
    while left:
        path = left.pop()
        if path not in found and path not in others:
            found.add(path)
            left += find_source_imports(path, root, late)
    return sorted(found)


def sign_source_files(files: Iterable[Path]) -> tuple[object, ...]:
    """What the file system says of files and of the folders that they lie in: as long as it says the same, none has
    changed, and no other has come beside one. It takes a hundredth of the time that reading them does."""

    def describe(path: Path) -> object:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    folders = dict.fromkeys(file.parent for file in files)
    return tuple(map(describe, (*files, *folders)))


def find_source_imports(file: Path, root: str, late: bool = True) -> list[Path]:
    try:
        stat = file.stat()
    except OSError:
        return []
    return list(_find_imports_cached(str(file), root, late, stat.st_mtime_ns, stat.st_size))


#: CPython 3.11 counts the depth of the trees of all threads in one place: two at a time end in a SystemError.
_parsing = threading.Lock()


def list_imports_outside(file: Path, root: str) -> set[str]:
    """The first words of the modules that ``file`` imports and that are in none of its `list_import_folders`."""
    tree = _parse_source_file(file)
    folders = list_import_folders(file, root)
    names = _iterate_source_imports(tree, file) if tree else ()
    return {name.partition(".")[0] for name, base in names if base is None and not find_module_file(name, folders)}


def _parse_source_file(path: Path) -> ast.AST | None:
    try:
        with _parsing:
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=4096)
def _find_imports_cached(file: str, root: str, late: bool, mtime: int, size: int) -> tuple[Path, ...]:
    path = Path(file)
    if (tree := _parse_source_file(path)) is None:
        return ()
    folders = [*list_import_folders(path, root), *(list_last_folders(path, root) if late else ())]
    return tuple(
        found
        for name, base in _iterate_source_imports(tree, path)
        if (found := find_module_file(name, base or folders)) and found != path
    )


def _iterate_source_imports(tree: ast.AST, path: Path) -> Iterator[tuple[str, list[Path] | None]]:
    """(module, where it is looked up; None for the usual places) of every import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = [path.parents[node.level - 1]] if 0 < node.level <= len(path.parents) else None
            if node.module:
                yield node.module, base
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if node.module else alias.name, base


def digest_source_files(files: Iterable[Path]) -> str:
    """Digest of the names and contents of files; a missing one counts as such."""
    total = hashlib.sha256()
    for file in files:
        try:
            content = hashlib.sha256(file.read_bytes()).digest()
        except OSError:
            content = b"missing"
        total.update(str(file).encode() + b"\0" + content)
    return total.hexdigest()[:32]
