"""The models that a Python file defines, read from its source: nothing is imported, which would take seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.catalogs.models.of_file import INIT

#: The class that is the model of a file with several, as KernelBench has it.
MODEL = "Model"
#: Where classes are modules, whatever they define themselves; a class of any other package is one if it has a forward.
_MODULES = ("torch.nn.",)
_OTHERS = ("torch.autograd.", "object")


@dataclass(frozen=True)
class DefinedModel:
    """What a file defines. whole: names of the classes that are torch modules and can be made as they are; lacking: of
    those that need arguments, with these."""

    whole: tuple[str, ...]
    lacking: dict[str, tuple[str, ...]]

    @property
    def model(self) -> str:
        """The one that is meant where only the file is named; "" where none is, or several are."""
        return MODEL if MODEL in self.whole else self.whole[0] if len(self.whole) == 1 else ""

    def refusal(self, file: str) -> str:
        """Why no model follows from the file alone, and what to name."""
        if self.whole:
            named = ", ".join(f"{file}:{name}" for name in self.whole)
            return f"{file} has {len(self.whole)} models; name one: {named}"
        needs = [f"{name}({', '.join(given)})" for name, given in self.lacking.items()]
        why = f"{' and '.join(needs)}: let {INIT}() in it return these arguments, or " if needs else ""
        none = "only models that need arguments, " if needs else "no class of torch.nn.Module; "
        return (
            f"{file} has {none}{why}name what makes the model, {file}:NAME (a module, or a function without arguments)"
        )


def find_model_classes(file: Path) -> DefinedModel:
    """The models that a file defines at its top. Raises SyntaxError, OSError."""
    tree = ast.parse(file.read_bytes(), str(file))
    classes = {x.name: x for x in tree.body if isinstance(x, ast.ClassDef)}
    names = dict(_list_imports_of_file(tree))
    given = any(isinstance(x, ast.FunctionDef) and x.name == INIT for x in tree.body)
    whole, lacking = list[str](), dict[str, tuple[str, ...]]()
    for name in classes:
        if _is_module_class(name, classes, names):
            arguments = () if given else _list_required_arguments(name, classes)
            if arguments:
                lacking[name] = arguments
            else:
                whole.append(name)
    return DefinedModel(tuple(whole), lacking)


@dataclass(frozen=True)
class ForwardArguments:
    """What a class's forward takes. names: its arguments in order; needed: those without a default; more: it takes
    others as well."""

    names: tuple[str, ...]
    needed: tuple[str, ...]
    more: bool


def read_forward_arguments(file: Path, name: str) -> ForwardArguments | None:
    """What the forward of a class takes that the file defines at its top; None where the source does not show it (it is
    decorated, or assigned). Raises SyntaxError, OSError."""
    tree = ast.parse(file.read_bytes(), str(file))
    classes = {x.name: x for x in tree.body if isinstance(x, ast.ClassDef)}
    chain = _list_base_classes(name, classes)
    method = "forward"
    own = next((x for one in chain for x in one.body if isinstance(x, ast.FunctionDef) and x.name == method), None)
    assigned = any(
        isinstance(x, (ast.Name, ast.Attribute))
        and isinstance(x.ctx, ast.Store)
        and method in ast.unparse(x).split(".")
        for x in ast.walk(tree)
    )
    if own is None or own.decorator_list or assigned or any(x.decorator_list for x in chain):
        return None
    if not _is_module_class(name, classes, dict(_list_imports_of_file(tree))):
        return None
    more = bool(own.args.vararg or own.args.kwonlyargs)
    return ForwardArguments(
        tuple(x.arg for x in _list_positional_arguments(own)), _list_arguments_without_default(own), more
    )


def _list_positional_arguments(method: ast.FunctionDef) -> list[ast.arg]:
    return [*method.args.posonlyargs, *method.args.args][1:]


def _list_arguments_without_default(method: ast.FunctionDef) -> tuple[str, ...]:
    taken = _list_positional_arguments(method)
    return tuple(x.arg for x in taken[: max(0, len(taken) - len(method.args.defaults))])


def _list_imports_of_file(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What names of the file stand for, with their packages."""
    for x in ast.walk(tree):
        if isinstance(x, ast.Import):
            yield from ((a.asname, a.name) if a.asname else (a.name.partition(".")[0],) * 2 for a in x.names)
        elif isinstance(x, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{x.module or ''}.{a.name}") for a in x.names)


def _list_base_classes(name: str, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class and those of the file that it is derived from."""
    found: list[ast.ClassDef] = []
    left = [name]
    while left:
        one = classes.get(left.pop(0))
        if one is not None and one not in found:
            found.append(one)
            left += [x.id for x in one.bases if isinstance(x, ast.Name)]
    return found


def _is_module_class(name: str, classes: dict[str, ast.ClassDef], names: dict[str, str]) -> bool:
    chain = _list_base_classes(name, classes)
    bases = [ast.unparse(x) for one in chain for x in one.bases if ast.unparse(x) not in classes]
    full = [".".join([names.get(first, first), *rest]) for first, *rest in (x.split(".") for x in bases)]
    if any(x.startswith(_MODULES) for x in full):
        return True
    return any(not x.startswith(_OTHERS) for x in full) and _find_called_method("forward", chain) is not None


def _find_called_method(name: str, chain: list[ast.ClassDef]) -> ast.FunctionDef | None:
    """The first method of that name that is called on an object."""
    for one in chain:
        for x in one.body:
            if isinstance(x, ast.FunctionDef) and x.name == name and not x.decorator_list:
                return x
    return None


def _list_required_arguments(name: str, classes: dict[str, ast.ClassDef]) -> tuple[str, ...]:
    """The arguments that the class cannot be made without."""
    init = _find_called_method("__init__", _list_base_classes(name, classes))
    if init is None:
        return ()
    named = (x.arg for x, default in zip(init.args.kwonlyargs, init.args.kw_defaults) if default is None)
    return *_list_arguments_without_default(init), *named
