"""Every key of a cache holds the digest of the sources that made what is kept: an edit of any of them changes it."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import sources

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = "from tasks import sources; print(sources.digest_case_sources('tasks.catalogs.torch'), sources.digest_sources('tasks'), sources.digest_artefact_sources())"


def digests(root: Path) -> list[str]:
    """Of prepared cases, of a backend's answers and of artefacts, in a tree of its own."""
    done = subprocess.run([sys.executable, "-c", DIGESTS], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("edited", "changes"),
    [
        ("catalogs/torch/generated.py", [True, True, False]),
        ("arrays/inputs.py", [True, True, True]),
        ("gradients/autograd.py", [True, True, True]),
        ("model/dtypes.py", [True, True, True]),
        ("judge/policies/error_units.json", [True, True, False]),
        ("backends/torch.py", [False, True, True]),
        ("backends/shared/onnx_form.py", [False, True, True]),
        ("runner.py", [False, True, False]),
        ("wire.py", [False, True, False]),
        ("counterparts/by_torch.py", [True, True, True]),  # the second oracle of graphs, which their packs hold
        ("zoo/steep.py", [False, False, False]),
    ],
)
def test_an_edit_is_another_key(tmp_path: Path, edited: str, changes: list[bool]) -> None:
    shutil.copytree(ROOT / "tasks", tmp_path / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    before = digests(tmp_path)
    path = tmp_path / "tasks" / edited
    path.write_text(path.read_text() + "\n")
    assert [a != b for a, b in zip(before, digests(tmp_path))] == changes


#: Modules that run cases though their names are not in `sources.RUNNING`; constants of rows that preparing writes as
#: well, and what only refuses.
RUN_CASES = ("tasks.canary", "tasks.screen", "tasks.twin")
CONSTANTS = (
    "tasks.model.row.INTERPRETED",
    "tasks.model.row.Row",
    "tasks.model.row.YOUR_OWN",
    "tasks.model.row.declare_row_column",
    "tasks.relay.measure_cpu_s",
    "tasks.relay.measure_machine_memory",
    "tasks.relay.count_usable_processors",
)


def imported(tree: ast.AST) -> Iterator[str]:
    """The names that a module imports when it runs, wherever in it."""
    typing = [x for x in ast.walk(tree) if isinstance(x, ast.If) and ast.unparse(x.test) == "TYPE_CHECKING"]
    apart = {id(y) for x in typing for y in ast.walk(x)}
    for x in ast.walk(tree):
        if isinstance(x, (ast.Import, ast.ImportFrom)) and id(x) not in apart:
            inside = f"{x.module}." if isinstance(x, ast.ImportFrom) else ""
            yield from (inside + alias.name for alias in x.names)


def test_what_prepares_imports_nothing_that_its_key_leaves_out() -> None:
    def among(name: str, modules: tuple[str, ...]) -> bool:
        return any(name == x or name.startswith(f"{x}.") for x in modules)

    for file in sorted((ROOT / "tasks").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if not among(module, (*sources.RUNNING, *RUN_CASES)):
            found = {x for x in imported(ast.parse(file.read_text())) if among(x, sources.RUNNING)}
            assert found <= set(CONSTANTS), module


#: What backends import that makes no artefact: it tells what is there, keeps, measures, words, or runs what was made.
MAKES_NONE = (
    "tasks.cache",
    "tasks.catalogs",
    "tasks.checks",
    "tasks.confine",
    "tasks.devices",
    "tasks.draw",  # what it draws is in the key
    "tasks.engines",
    "tasks.importing",
    "tasks.interpreter",
    "tasks.matrix_units",
    "tasks.nearest",
    "tasks.older_python",
    "tasks.packages",
    "tasks.plugins",
    "tasks.relay",
    "tasks.run_queue",
    "tasks.sources",
    "tasks.variables",
)


def test_what_backends_import_is_in_the_key_of_artefacts_or_makes_none() -> None:
    names = {
        ".".join(name.split(".")[:2])
        for file in (ROOT / "tasks" / "backends").rglob("*.py")
        for name in imported(ast.parse(file.read_text()))
        if name.startswith("tasks.")
    }
    assert not names - {"tasks.backends"} - {*sources.MAKING, *MAKES_NONE}
    assert not set(sources.MAKING) & set(MAKES_NONE)
    assert names >= set(MAKES_NONE), "a row that nothing needs"


@pytest.mark.parametrize("module", [*sources.RUNNING, *sources.MAKING, *RUN_CASES, *MAKES_NONE])
def test_a_list_of_sources_names_modules_that_are_there(module: str) -> None:
    assert importlib.util.find_spec(module)


def test_another_packages_catalog_counts_with_its_own_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "somebodys.py").write_text(text)
        sources.digest_sources.cache_clear()
        found.add(sources.digest_case_sources("somebodys"))
    assert len(found) == 2 and sources.digest_case_sources("tasks.catalogs.torch") not in found


def test_a_module_that_is_not_there_is_no_error() -> None:
    assert sources.digest_sources("no_such_module_at_all") == sources.digest_sources("no_such.module_at_all")
