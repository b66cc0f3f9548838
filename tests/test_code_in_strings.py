"""Code that stands in a string is seen by no linter: what it imports and uses of the farm has to be there."""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What tests plant: former names, which answer with a warning, plug-ins for another version, a module that a recipe makes.
PLANTED = [
    "tests/farm/test_doors.py: import farm.fuzz",
    "tests/farm/test_plugins.py: from tasks.checks.base import Stages",
    "tests/farm/test_plugins.py: import tasks.arrays.noises",
    "tests/test_recipes.py: import tasks.checks.bounded",
    "tests/test_stability.py: import farm.minimise",
    "tests/test_stability.py: import farm.reproduce",
]


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


def is_gone(module: str) -> bool:
    """Whether the tree has no such module or package."""
    place = ROOT / module.replace(".", "/")
    return module.partition(".")[0] in ("farm", "tasks") and not (place.is_dir() or place.with_suffix(".py").is_file())


def parse_code(text: str) -> ast.Module:
    """The code in a text; of one that is no whole program, each line that is an import."""
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(textwrap.dedent(text))
    lines, code = text.splitlines(), ast.Module([], [])
    for line in (x.strip() for x in lines if x.strip().startswith(("from farm", "from tasks"))):
        with contextlib.suppress(SyntaxError, ValueError):
            code.body += ast.parse(line).body
    return code


def find_lacking_uses(code: ast.Module) -> Iterator[str]:
    """What code imports of a module of the tree, or takes of one that it has imported, and is not there: "from
    tasks.model import Forms", "tasks.model.Forms"."""
    modules = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if is_gone(node.module):
                yield f"import {node.module}"
            names = list_names(node.module) if node.module.partition(".")[0] in ("farm", "tasks") else None
            if names is not None and (lacking := {alias.name for alias in node.names} - names - {"*"}):
                yield f"from {node.module} import {', '.join(sorted(lacking))}"
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if is_gone(alias.name))
            for alias in node.names:
                modules[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
    for node in ast.walk(code):
        if not isinstance(node, ast.Attribute):
            continue
        words = ast.unparse(node).split(".")
        module = modules.get(words[0], "")
        if module.partition(".")[0] not in ("farm", "tasks"):
            continue
        for word in words[1:]:
            names = list_names(module)
            if names is None or not word.isidentifier():
                break
            if word not in names and not word.startswith("__"):
                yield f"{module}.{word}"
            module = f"{module}.{word}"


def find_lacking_imports(code: ast.Module) -> Iterator[str]:
    """Imports in strings of code whose names are nowhere, and what these strings use that is nowhere; also in a string
    within a string, of a script that writes a script."""
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            inner = parse_code(node.value)
            yield from sorted(set(find_lacking_uses(inner)))
            yield from find_lacking_imports(inner)


def find_lacking_of(source: str) -> list[str]:
    return list(find_lacking_imports(ast.parse(source)))


def test_code_in_strings_imports_what_is_there() -> None:
    files = (file for top in ("farm", "tasks", "tests", "docs") for file in sorted((ROOT / top).rglob("*.py")))
    texts = ((file, file.read_text()) for file in files if file != Path(__file__))
    found = [
        f"{file.relative_to(ROOT)}: {x}"
        for file, text in texts
        if re.search(r"^[^\n]*(?:from|import) (?:farm|tasks)\b", text, re.M)
        for x in find_lacking_imports(ast.parse(text))
    ]
    assert found == PLANTED


def test_an_import_of_what_is_gone_is_found() -> None:
    planted, sound = (
        "from tasks.runner import Runner, whole",
        "from tasks.runner import Runner, make_item_of_whole_group as whole",
    )
    assert find_lacking_of(f"CODE = {planted!r}") == ["from tasks.runner import whole"]
    assert not find_lacking_of(f"CODE = {sound!r}")


def test_a_use_of_what_is_gone_is_found() -> None:
    planted, sound = (f"from tasks import sources; print(sources.{name}())" for name in ("of_cases", "digest_sources"))
    assert find_lacking_of(f"CODE = {planted!r}") == ["tasks.sources.of_cases"]
    assert not find_lacking_of(f"CODE = {sound!r}")


def test_code_in_a_string_of_code_in_a_string_is_read() -> None:
    for name, found in (("Forms", ["from tasks.model import Forms"]), ("Form", [])):
        inner = f"from pathlib import Path\nPath('x.py').write_text({f'from tasks.model import {name}'!r})"
        assert find_lacking_of(f"CODE = {inner!r}") == found


def test_an_import_of_a_module_that_is_gone_is_found() -> None:
    for source in ("from farm.plan.config_models import Config", "import farm.plan.config_models"):
        assert find_lacking_of(f"CODE = {source!r}") == ["import farm.plan.config_models"]
    assert not find_lacking_of(f"CODE = {'from farm.plan import matrix; import farm.plan.matrix'!r}")
