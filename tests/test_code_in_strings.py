"""Code that stands in a string is seen by no linter: what it imports of the farm has to be there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What a test plants: a plug-in for another version.
PLANTED = ["tests/farm/test_plugins.py: from tasks.checks.base import Stages"]
IMPORT = re.compile(
    r"^[ \t]*from ((?:farm|tasks)(?:\.\w+)*) import (\w+(?: as \w+)?(?:, *\w+(?: as \w+)?)*)[ \t]*$", re.M
)


@cache
def list_names(module: str) -> frozenset[str] | None:
    """What a module of the tree has, submodules included; None where there is no such file, or the module makes names
    when asked."""
    place = ROOT / module.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.is_file():
        return None
    names = {p.stem for p in place.glob("*.py")} | {p.parent.name for p in place.glob("*/__init__.py")}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "__getattr__" in names else frozenset(names)


def find_lacking_imports(source: str) -> Iterator[str]:
    """Imports in strings of a source whose names are nowhere."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and " import " in node.value):
            continue
        for module, said in IMPORT.findall(node.value):
            names = list_names(module)
            asked = {part.split()[0] for part in said.split(",")}
            if names is not None and (lacking := asked - names):
                yield f"from {module} import {', '.join(sorted(lacking))}"


def test_code_in_strings_imports_what_is_there() -> None:
    files = (file for top in ("farm", "tasks", "tests", "docs") for file in sorted((ROOT / top).rglob("*.py")))
    texts = ((file, file.read_text()) for file in files if file != Path(__file__))
    found = [
        f"{file.relative_to(ROOT)}: {x}"
        for file, text in texts
        if re.search(r"^[^\n]*from (?:farm|tasks)[\w.]* import", text, re.M)
        for x in find_lacking_imports(text)
    ]
    assert found == PLANTED


def test_an_import_of_what_is_gone_is_found() -> None:
    planted, sound = (
        "from tasks.runner import Runner, whole",
        "from tasks.runner import Runner, make_item_of_whole_group as whole",
    )
    assert list(find_lacking_imports(f"CODE = {planted!r}")) == ["from tasks.runner import whole"]
    assert not list(find_lacking_imports(f"CODE = {sound!r}"))
