"""What docs/stability.md promises: the public names are there and typed, and a deprecated one works, warns, and goes in time."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
from packaging.version import Version

import farm
import farm.client
from farm.version import VERSION
from tasks.deprecation import KNOWN, deprecated
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "stability.md").read_text()
#: module → its stable names, as the page lists them.
STABLE = {
    module: re.findall(r"`(\w+)`", names) for module, names in re.findall(r"^\| `([\w.]+)` \| (`.+?) \|", PAGE, re.M)
}


def test_every_stable_name_is_there() -> None:
    assert {"farm", "farm_pytest", "tasks", "tasks.model", "tasks.backends.base"} <= set(STABLE)
    missing = [f"{m}.{name}" for m, names in STABLE.items() for name in names if not hasattr(import_module(m), name)]
    assert not missing


@pytest.mark.parametrize("module", STABLE)
def test_every_stable_name_is_exported_for_type_checkers(module: str) -> None:
    """`mypy --strict` of who uses it takes no name that a module only imports, unless `__all__` has it."""
    found = import_module(module)
    tree = ast.parse(Path(found.__file__ or "").read_text())
    made = {x.name for x in tree.body if isinstance(x, (ast.ClassDef, ast.FunctionDef))}
    made |= {t.id for x in tree.body if isinstance(x, ast.Assign) for t in x.targets if isinstance(t, ast.Name)}
    stars = [x.module for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) and x.names[0].name == "*"]
    exports = [found, *(import_module(str(x)) for x in stars)]  # a star exports what it imports
    assert set(STABLE[module]) <= made.union(*(getattr(x, "__all__", ()) for x in exports))


def test_what_farm_offers_is_stable_or_deprecated() -> None:
    gone = {one.name.removeprefix("farm.") for one in KNOWN}
    assert set(farm.__all__) == set(STABLE["farm"]) | gone


def test_a_function_is_called_though_a_module_has_its_name() -> None:
    """Importing `farm.minimise` by name finds the door of the command, which takes the function's place."""
    code = (
        "import farm, farm.minimise, farm.reproduce\n"
        "for call in (farm.minimise, farm.reproduce):\n"
        "    try: call('x:y:z', results='nowhere')\n"
        "    except farm.ClientError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.count("nowhere") == 2, done.stdout + done.stderr


def test_minimize_is_minimise_and_says_so_where_it_is_called() -> None:
    with pytest.warns(DeprecationWarning, match="farm.minimize is deprecated since 1.0 .* use farm.minimise") as told:
        with pytest.raises(farm.ClientError, match="unknown strategy 'x'"):
            farm.minimize("a:b:c", strategy="x")
    assert told[0].filename == __file__


def test_what_is_deprecated_works_and_warns_each_time() -> None:
    before = list(KNOWN)

    @deprecated("farm.old", since="1.1", until="2.0", use="farm.new")
    def old(x: int, *, y: int = 0) -> int:
        """What it does."""
        return x + y

    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert [old(1, y=2), old(3)] == [3, 3]
        assert [str(w.message) for w in told] == [
            "farm.old is deprecated since 1.1 and goes with 2.0: use farm.new"
        ] * 2
        assert (old.__name__, old.__doc__) == ("old", "What it does.")
        assert KNOWN[-1].until == "2.0"
    finally:
        KNOWN[:] = before


def test_nothing_is_overdue() -> None:
    assert farm.client and KNOWN
    assert [str(one) for one in KNOWN if Version(VERSION) >= Version(one.until)] == []
