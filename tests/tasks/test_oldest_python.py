"""`tasks` starts in any Python from 3.9 on: nothing in it asks for what a later one brought, and where 3.9 is there it imports all."""

from __future__ import annotations

import ast
import builtins
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.fleet.existing_interpreter import OLDEST
from tests.conftest import ROOT

FILES = sorted((ROOT / "tasks").rglob("*.py"))
#: What later Pythons brought and is easily written: attributes of modules, keywords of functions.
LATER = {
    "itertools.pairwise",
    "hashlib.file_digest",
    "sys.stdlib_module_names",
    "contextlib.chdir",
    "math.cbrt",
    "math.exp2",
}
LATER_KEYWORDS = {("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only")}


def list_later(text: str) -> list[str]:
    """What a text asks for that the oldest Python does not have, with its line; annotations are never computed."""
    tree = ast.parse(text, feature_version=OLDEST)
    return [f"{node.lineno}: {ast.unparse(node)}" for node in _computed(tree) if _is_later(node)]


def _computed(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions below a node that are computed when it is run in any Python."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, ast.AST):
                yield from _computed(child)


def _is_later(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return any(_is_type(side) for side in (node.left, node.right))
    if isinstance(node, ast.Call):
        return any((ast.unparse(node.func).rpartition(".")[2], key.arg) in LATER_KEYWORDS for key in node.keywords)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in LATER


def _is_type(node: ast.expr) -> bool:
    """Whether `|` with it makes a union of types: None, a built-in type, a parametrised one, a class by its name."""
    if isinstance(node, ast.Subscript):
        return _is_type(node.value)
    if not isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
        return False
    name = ast.unparse(node).rpartition(".")[2]
    return (
        name == "None"
        or isinstance(getattr(builtins, name, None), type)
        or bool(name[:1].isupper() and not name.isupper())
    )


@pytest.mark.parametrize(
    "text, found",
    [
        ("Places = tuple[int | None]", 1),
        ("isinstance(x, int | float)", 1),
        ("Value = list[int] | Tree", 1),
        ("zip(a, b, strict=True)", 1),
        ("import itertools\nitertools.pairwise(a)", 1),
        ("def f(x: int | None) -> A | B: return x | y", 0),
        ("flags = re.I | re.M | OTHER", 0),
        ("if TYPE_CHECKING:\n    A = int | None", 0),
    ],
)
def test_what_is_later_is_seen(text: str, found: int) -> None:
    assert len(list_later(text)) == found


def test_a_later_statement_is_seen() -> None:
    with pytest.raises(SyntaxError):
        list_later("match x:\n    case 1: pass")


def test_nothing_in_tasks_asks_for_a_later_python() -> None:
    found = {str(path.relative_to(ROOT)): list_later(path.read_text()) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_oldest_python_imports_all_of_tasks(tmp_path: Path) -> None:
    from farm.fleet.envs import EnvError, Environment, build_interpreter

    name = f"python{'.'.join(map(str, OLDEST))}"
    found = shutil.which(name)
    if not found or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no {name} here")
    try:
        made = build_interpreter(Environment((), found), tmp_path / "cache")
    except EnvError as error:
        pytest.skip(str(error))
    script = tmp_path / "imports.py"
    script.write_text(f"import sys\nsys.path[:0] = {[str(ROOT), *made.folders]!r}\n" + IMPORT_ALL)
    done = subprocess.run([found, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


#: Modules that need a runtime which is not there are left out.
IMPORT_ALL = """
import importlib, pkgutil, tasks
for module in pkgutil.walk_packages(tasks.__path__, "tasks.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert not (error.name or "").startswith("tasks"), error
"""
