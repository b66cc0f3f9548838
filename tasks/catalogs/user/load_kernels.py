"""The kernels of this process: from the definitions that it was told to callables, with the place of every mistake."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tasks import user_sources
from tasks.arrays import module_state
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import declaration_keys, declaring, functions, kernel_sessions, siblings
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import BASELINES, FUNCTIONS, DeclarationError, UserOp
from tasks.catalogs.user_definitions import get_announced_definitions, list_other_submissions, read_definitions
from tasks.devices import DEVICE_VENDOR
from tasks.model import errors
from tasks.nearest import suggest_nearest_names

#: Seconds a reference script may take where nobody says.
DEADLINE_S = 60.0


@dataclass(frozen=True)
class DeclaredKernel:
    """An op with where it comes from. key: of the config; root: folder that modules are looked up in; file: the
    module of a decorated op ("" for one of the config); line: of the decorated function; lent: a number of its own for
    an op that this process was handed with its functions (`lend_op`): what they compute, no file tells."""

    op: UserOp
    key: tuple[Any, ...]
    root: str
    file: str = ""
    line: int = 0
    lent: int = 0

    def function(self, what: str) -> Callable[..., Any]:
        """One of the op's FUNCTIONS as a callable, a session as a function of all its steps. Raises CatalogError."""
        if what == "kernel" and self.op.steps:
            return kernel_sessions.run_whole_session(self.op, self.session())
        found = self._resolve_name(what)
        if functions.is_torch_module_class(found):
            found = functions.make_kernel_of_module(found, self.op.init)
        if self.op.positions and what != "backward":
            return functions.call_kernel_by_position(found, self.op.positions, self.op.packed)
        return functions.call_kernel_in_order(functions.find_callable_function(found))

    def session(self) -> Callable[[], Any]:
        """The class of a kernel that is a session. Raises CatalogError."""
        found = self._resolve_name("kernel")
        if wrong := kernel_sessions.explain_lacking_kernel_step(found):
            raise self.mistake("kernel", wrong.format(", ".join(kernel_sessions.find_stepped_kernel_inputs(self.op))))
        return found

    def _resolve_name(self, what: str) -> Any:
        given = getattr(self.op, what)
        if callable(given):
            return given
        try:
            found: Any = resolve_user_name(given, self._root)
        except CatalogError as error:
            raise self.mistake(what, str(error), error.lacks) from None
        if not callable(found):
            raise self.mistake(what, f"{given} is not a function but a {type(found).__name__}")
        return found

    @property
    def backward(self) -> Callable[..., Any] | None:
        """The gradient of a kernel of NumPy arrays; None where it has none, or is a submission's. Raises CatalogError."""
        if self.op.framework != "numpy":
            return None
        if self.op.backward:
            return self.function("backward")
        if self.op.is_task:
            return None
        return getattr(self.function("kernel"), "backward", None)

    @property
    def own_baseline(self) -> Callable[..., Any] | None:
        """What it is timed against, where that is a function of its own. Raises CatalogError."""
        given = self.op.baseline
        return None if not given or given in BASELINES else self.function("baseline")

    def mistake(self, what: str, text: str, lacks: str = "") -> CatalogError:
        """The error of one of the op's settings: at its key of the config, or with the decorated function's place."""
        if self.file:
            return CatalogError(f"{_find_declared_place(self)}op {self.op.name}: {what}: {text}", self.key, lacks)
        return CatalogError(text, (*self.key, what), lacks)

    def submitted(self, file: str) -> DeclaredKernel:
        """The same op with the function of a submission's file; as it is where that is ""."""
        return (
            dataclasses.replace(self, op=dataclasses.replace(self.op, kernel=f"{file}:{self.op.function_name}"))
            if file
            else self
        )

    @property
    def script(self) -> Path | None:
        """The reference's script, where it is one."""
        given = self.op.reference
        return Path(self._root, given) if isinstance(given, str) and given.endswith(".py") else None

    @property
    def _root(self) -> str:
        """Folder that the op's own paths are relative to: the module's for a decorated op."""
        return str(Path(self.file).parent) if self.file else self.root

    def digest(self) -> str:
        """Digest of the definition and of every source file that kernel and reference are made of."""
        if self.lent:
            return f"lent {os.getpid()} {self.lent} {format_declaration(self.op)}"
        files = user_sources.digest_source_files(sorted(self._files(*FUNCTIONS)))
        return hashlib.sha256(f"{format_declaration(self.op)} {files}".encode()).hexdigest()[:32]

    def outside(self) -> set[str]:
        """Modules that the kernel is of, or that its files import, and that are not among these files."""
        files, given = self._files("kernel"), self.op.kernel
        if callable(given) and (file := inspect.getsourcefile(inspect.unwrap(given))):
            files |= set(user_sources.list_imported_files(Path(file), self._root))
        module = given.rpartition(":")[0] if isinstance(given, str) and not self.file else ""
        own = {module.partition(".")[0]} if module and not module.endswith(".py") else set()
        return own | {name for file in files for name in user_sources.list_imports_outside(file, self._root)}

    def _files(self, *what: str) -> set[Path]:
        """The source files that the op's functions are made of, as far as they are found."""
        files: set[Path] = set(user_sources.list_imported_files(Path(self.file), self.root)) if self.file else set()
        for given in (getattr(self.op, x) for x in what):
            module = "" if not isinstance(given, str) else given if given.endswith(".py") else given.rpartition(":")[0]
            if module:
                found = user_sources.locate_module_source(module, self._root)
                files |= set(user_sources.list_imported_files(found, self._root)) if found else set()
        return files


def format_declaration(op: UserOp) -> str:
    """A declaration as JSON, functions by name."""
    plain = {
        k: getattr(v, "__qualname__", None) or v if callable(v) else v for k, v in _list_declared_fields(op).items()
    }
    return json.dumps(plain, sort_keys=True, default=repr)


def _list_declared_fields(op: UserOp) -> dict[str, Any]:
    given = {what: getattr(op, what) for what in FUNCTIONS}
    return asdict(op.with_functions(lambda what, function: "")) | given


def find_script_deadline_s() -> float:
    """Seconds that a reference script may take."""
    return float(read_definitions().get("deadline_s", DEADLINE_S))


def digest_user_listing() -> str:
    """Digest of all definitions and of the files they name; nothing is imported."""
    handed = [one.digest() for one in _lent.values()]
    return f"{_digest_user_sources(get_announced_definitions())} {' '.join(handed)}".rstrip()


def _digest_user_sources(text: str) -> str:
    """Of an announcement, that of its definitions and their files: read again only where a file has changed."""
    if (kept := _digested.get(text)) is None or user_sources.sign_source_files(kept.files) != kept.signature:
        files: set[Path] = set()
        told = read_definitions().get("sources", [])
        for source in told:
            given = [
                k[what]
                for k in source["kernels"]
                for what in FUNCTIONS
                if ":" in k.get(what, "") or k.get(what, "").endswith(".py")
            ]
            for name in (*source["modules"], *given):
                module = name if name.endswith(".py") else name.rpartition(":")[0] or name
                found = user_sources.locate_module_source(module, source["root"])
                files |= set(user_sources.list_imported_files(found, source["root"])) if found else set()
        ordered = sorted(files)
        signature = user_sources.sign_source_files(
            ordered
        )  # before they are read: what changes meanwhile is seen next time
        digest = f"{json.dumps(told, sort_keys=True)} {user_sources.digest_source_files(ordered)}"
        _digested.clear()
        _digested[text] = kept = LoadedDeclarations(tuple(ordered), signature, digest)
    return str(kept.made)


@dataclass(frozen=True)
class LoadedDeclarations:
    """What was made of files: it holds while their signature is the same."""

    files: tuple[Path, ...]
    signature: tuple[object, ...]
    made: Any


#: The digest of the sources that were announced last, by the announcement.
_digested: dict[str, LoadedDeclarations] = {}
#: Modules that were loaded from a file, by its name and root.
_modules: dict[tuple[str, str], LoadedDeclarations] = {}


def load_user_ops() -> dict[str, DeclaredKernel]:
    """Every op by name. Raises CatalogError for a module that cannot be imported, a mistaken declaration, a name
    twice."""
    found, lacking = _collect_user_ops()
    if lacking:
        raise lacking[0].with_traceback(None)  # it is kept: each raise would add its frames, with all that they hold
    return found


def find_user_op(name: str) -> DeclaredKernel | None:
    """One op, None if there is no such. Raises CatalogError where it may be of a module that imports what this
    environment lacks; such a module does not keep those of others from being found."""
    found, lacking = _collect_user_ops()
    if name not in found and lacking:
        raise lacking[0].with_traceback(None)
    one = found.get(name)
    return one and one.submitted(read_definitions().get("kernel", ""))


def _collect_user_ops() -> tuple[dict[str, DeclaredKernel], list[CatalogError]]:
    """The ops of all modules that can be imported here, and why others lack what they import."""
    return (_lent, []) if _lent else _load_declared_kernels(get_announced_definitions(), digest_user_listing())


#: The ops that this process was handed with their functions, by name; while there are any, no other is known.
_lent: dict[str, DeclaredKernel] = {}
_lents = itertools.count(1)


@contextlib.contextmanager
def lend_op(op: UserOp, root: str) -> Iterator[DeclaredKernel]:
    """While this lasts, ``op`` is the catalog's: its kernel and reference are functions of this process, or are
    named."""
    before = dict(_lent)
    _lent.clear()
    made = _lent[op.name] = DeclaredKernel(op, (), root, lent=next(_lents))
    try:
        yield made
    finally:
        _lent.clear()
        _lent.update(before)


@functools.lru_cache(maxsize=4)
def _load_declared_kernels(text: str, digest: str) -> tuple[dict[str, DeclaredKernel], list[CatalogError]]:
    found: dict[str, DeclaredKernel] = {}
    lacking: list[CatalogError] = []
    for source in read_definitions().get("sources", []):
        for one in _load_declared_source(source, lacking):
            other = found.get(one.op.name)
            if other is None:
                found[one.op.name] = one
            elif (other.op, other.root) != (one.op, one.root):  # a module, or a kernel, may be listed twice
                raise CatalogError(
                    f"{_find_declared_place(one)}the name {one.op.name!r} is given twice; the other is {_describe_declared_origin(other)}",
                    one.key if one.file else (*one.key, "name"),
                )
    return found, lacking


def _load_declared_source(source: Mapping[str, Any], lacking: list[CatalogError]) -> Iterator[DeclaredKernel]:
    at, root = source["at"], source["root"]
    for i, name in enumerate(source["modules"]):
        key = ("catalogs", at, "modules", i)
        try:
            module = load_user_module(name, root, key)
        except CatalogError as error:
            if not error.lacks:
                raise
            lacking.append(error)
            continue
        ops = _list_declared_in_module(module)
        if not ops:
            raise CatalogError(f"{name}: there is no function with @farm.op in it", key)
        for op in ops:
            code = getattr(op.kernel, "__code__", None)
            made = DeclaredKernel(op, key, root, str(module.__file__), getattr(code, "co_firstlineno", 0))
            for inner, text in list_declaration_mistakes(op):
                raise CatalogError(
                    f"{_find_declared_place(made)}op {op.name}: {'.'.join(map(str, inner))}: {text}", key
                )
            yield made
    for i, given in enumerate(source["kernels"]):
        yield DeclaredKernel(declaration_keys.make_declaration(UserOp, given), ("catalogs", at, "kernels", i), root)


def _list_declared_in_module(module: ModuleType) -> list[UserOp]:
    """The declarations of a module, of functions and of other objects that can be called; what it imports is its own
    module's."""
    ops: list[UserOp] = list(vars(module).get("__farm_declared__", ()))
    for value in list(vars(module).values()):
        own = getattr(value, "__farm_ops__", ()) if getattr(value, "__module__", None) == module.__name__ else ()
        ops += [op for op in own if not any(op is other for other in ops)]
    return ops


def _find_declared_place(one: DeclaredKernel) -> str:
    return f"{one.file}:{one.line}: " if one.file else ""


def _describe_declared_origin(one: DeclaredKernel) -> str:
    return f"in {one.file}:{one.line}" if one.file else ".".join(map(str, one.key))


def resolve_user_name(given: str, root: str) -> Any:
    """What "module:name" or "file.py:name" stands for; the name may have dots, also before the place in a list. Raises
    CatalogError."""
    module, _, name = given.rpartition(":")
    found: Any = load_user_module(module, root, ())
    for word in name.split("."):
        if word.isdigit():
            try:
                found = found[int(word)]
            except (LookupError, TypeError) as error:
                raise CatalogError(f"{given}: there is no place {word} in it ({error})") from None
            continue
        if not hasattr(found, word):
            there = {k: v for k, v in getattr(found, "__dict__", {}).items() if callable(v) and not k.startswith("_")}
            own = [k for k, v in there.items() if getattr(v, "__module__", "") == getattr(found, "__name__", None)]
            raise CatalogError(f"{given}: there is no {word!r} in it{suggest_nearest_names(word, own or there)}")
        found = getattr(found, word)
    return found


def load_user_module(name: str, root: str, key: tuple[Any, ...]) -> ModuleType:
    """Import a module by its name or path. Raises CatalogError with the file and line of what went wrong.

    A file is imported anew when its content has changed, under a name that no other module has.
    """
    kept = _modules.get((name, root))
    if kept is not None and user_sources.sign_source_files(kept.files) == kept.signature:
        return kept.made
    file = user_sources.locate_module_source(name, root)
    if file is None or not file.is_file():
        raise CatalogError(
            f"no module {name!r} in {root} or on Python's path" if file is None else f"no such file {file}",
            key,
            name.partition(".")[0] if file is None else "",
        )
    _switch_triton_to_interpreter()
    declaring.stand_in_for_farm()
    # What lies beside the config or the kernel can be imported too, after everything else; of a folder in which others'
    # submissions lie, only by the imports of its own files.
    others = {Path(x).parent for x in list_other_submissions(read_definitions())} - {Path(root)}
    folders = [root, *([] if file.parent in others else [str(file.parent)])]
    sys.path += [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    files = tuple(user_sources.list_imported_files(file, root))
    signature = user_sources.sign_source_files(files)
    try:
        with module_state.seed_rng():  # what a module draws when it is imported is the same in every process
            module = _load_module_from_file(file, root) if name.endswith(".py") else importlib.import_module(name)
        _loaded[str(file)] = user_sources.digest_source_files(files)
        if name.endswith(".py"):
            _modules[name, root] = LoadedDeclarations(files, signature, module)
        return module
    except DeclarationError as error:
        raise CatalogError(f"{errors.find_error_place(error) or file}: {error}", key) from None
    except (Exception, SystemExit) as error:
        where = errors.find_error_place(error) or file
        told = f"{where}: cannot be imported: {errors.format_error_essence(error)}"
        raise CatalogError(
            f"{told}{_explain_package_part(file, error)}", key, _find_lacking_package(error, root, file)
        ) from None


def _find_lacking_package(error: BaseException, root: str, file: Path) -> str:
    """The package whose lack, or whose version, failed an import; "" where it was something else, or lies beside the
    kernels."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    beside = user_sources.is_package_beside(package, user_sources.list_import_folders(file, root))
    found = package and user_sources.find_module_file(package, user_sources.list_last_folders(file, root))
    return "" if beside or found else package


def _explain_package_part(file: Path, error: BaseException) -> str:
    """How to name a file that is a part of a package, where it failed for being loaded by its path; "" where it did
    not."""
    if not isinstance(error, ImportError) or "no known parent package" not in str(error):
        return ""
    packages = list(itertools.takewhile(lambda x: (x / "__init__.py").is_file(), file.parents))
    name = ".".join([*(x.name for x in reversed(packages)), file.stem])
    within = f", run in {packages[-1].parent}" if packages else ""
    return f": it is part of a package: write it as {name}:NAME{within}"


#: Files that are being executed for the functions in them: the farm is not called by these.
EXECUTED: list[Path] = []
#: What this process has loaded: module → digest of the files that it is made of.
_loaded: dict[str, str] = {}


def digest_loaded_kernels() -> str:
    """Digest of all that this process has loaded, "" for nothing: it may have changed a compiler (a decomposition, a
    lowering)."""
    return hashlib.sha256(json.dumps(sorted(_loaded.items())).encode()).hexdigest()[:16] if _loaded else ""


def _load_module_from_file(file: Path, root: str) -> ModuleType:
    content = hashlib.sha256(
        str(file).encode()
        + b"\0"
        + user_sources.digest_source_files(user_sources.list_imported_files(file, str(file.parent))).encode()
    )
    name = f"{file.stem}_{content.hexdigest()[:10]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, loader=siblings.make_sibling_loader(name, file, root))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    EXECUTED.append(file)
    _let_spawned_import(name, file, root)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        EXECUTED.pop()
    return module


#: What a process that a kernel spawns (multiprocessing) finds under the name of a module that was loaded by its path.
_STAND_IN = "from tasks.catalogs.user import load_kernels as load\n\nload.take_place_of_stand_in(__name__, {file!r}, {root!r})\n"


def _let_spawned_import(name: str, file: Path, root: str) -> None:
    """Let processes that are spawned from this one, which have its path and none of its modules, import a module by its
    name: without it they would die of the first function that they are given, and be started for ever."""
    with contextlib.suppress(OSError):  # a process that may write nowhere spawns none that need it
        folder = _make_stand_ins(tempfile.gettempdir())
        (folder / f"{name}.py").write_text(_STAND_IN.format(file=str(file), root=root))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


@functools.cache
def _make_stand_ins(within: str) -> Path:
    """A folder that ends with this process, or with the folder that it is in."""
    made = Path(tempfile.mkdtemp(prefix="farm-modules-", dir=within))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def take_place_of_stand_in(name: str, file: str, root: str) -> None:
    """Load a file in the place of the module that stands in for it. Raises ImportError where it is another one by
    now."""
    del sys.modules[name]
    if name != (made := _load_module_from_file(Path(file), root)).__name__:
        raise ImportError(f"{file} has changed since it was loaded as {name}: it is {made.__name__} now")


def _switch_triton_to_interpreter() -> None:
    """Let Triton interpret its kernels where the backend computes on the CPU: it looks at the variable when it is
    imported, by whatever the user's module imports.

    Whose device a child computes on, its owner says in `DEVICE_VENDOR`; without an owner, whether there is one at all.
    """
    if "TRITON_INTERPRET" in os.environ or "triton" in sys.modules or importlib.util.find_spec("triton") is None:
        return
    vendor = os.environ.get(DEVICE_VENDOR)
    if vendor is None:
        import torch

        vendor = str(torch.accelerator.current_accelerator() or "") if torch.accelerator.is_available() else ""
    if not vendor:
        os.environ["TRITON_INTERPRET"] = "1"


def check_kernel_call(one: DeclaredKernel, what: str) -> None:
    """Raise CatalogError unless one of the op's FUNCTIONS takes its inputs and kwargs by name, a backward after the
    gradient."""
    own = {"backward": lambda: one.backward, "baseline": lambda: one.own_baseline}
    function = own.get(what, lambda: one.function(what))()
    if function is None:
        if what == "backward" and one.op.gradient and one.op.framework == "numpy" and not one.op.is_task:
            text = "a kernel of NumPy arrays has no gradient of its own: give backward, a function of it, or use @farm.autograd"
            raise one.mistake("gradient", text)
        return
    first = [None] if what == "backward" else []
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin does not say
    names, called = [*one.op.inputs, *one.op.kwargs], getattr(function, "__qualname__", type(function).__qualname__)
    try:
        signature.bind(*first, **dict.fromkeys(names))
    except TypeError as error:
        raise one.mistake(
            what, f"{called}{signature} is called with {', '.join([*['a gradient' for _ in first], *names])}: {error}"
        ) from None
