"""`python -m farm.NAME`: every command is a module too, and no module of that name hides what the client offers."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from farm.command_names import FORMER
from tests.conftest import ROOT


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "farm" / "commands").glob("[a-z]*.py")])
def test_every_command_is_a_module(name: str) -> None:
    found = importlib.util.find_spec(f"farm.{name}")
    if found is not None and found.submodule_search_locations is not None:  # a package of that name
        found = importlib.util.find_spec(f"farm.{name}.__main__")
    assert found is not None and found.loader is not None


@pytest.mark.parametrize("name", ["gradcheck", "report", "history", "launch"])
def test_a_module_is_the_command(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"farm.{name}", "--help"], capture_output=True, text=True, cwd=ROOT)
    typed = "run" if name == "launch" else " ".join(FORMER.get(name, [name]))
    assert done.returncode == 0 and done.stdout.startswith(f"usage: farm {typed} ")


def test_a_module_has_main_and_what_is_no_command_is_not_there() -> None:
    with pytest.raises(SystemExit):
        importlib.import_module("farm.node").main(["--nonsense"])
    for name in ("farm.nothing", "farm._private", "farm.node.more"):
        with pytest.raises(ImportError):
            importlib.import_module(name)


def test_a_function_of_the_client_is_called_though_a_command_has_its_name() -> None:
    code = "import farm, farm.fuzz\ntry: farm.fuzz(3)\nexcept farm.ClientError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "3 is not a function" in done.stdout, done.stdout + done.stderr
