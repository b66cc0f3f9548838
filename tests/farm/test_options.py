"""What a command's options cost and where they stand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from farm.__main__ import main
from farm.command_names import COMMANDS, LEAVES, find_command_file
from tests.conftest import ROOT

#: What a help text needs none of.
HEAVY = {"pandas", "pyarrow", "pydantic", "rich", "yaml", "jinja2", "ray", "torch"}
PROGRAM = """
import json, sys
from farm.__main__ import main
try:
    main([*sys.argv[1].split(), "-h"])
except SystemExit as ended:
    print(json.dumps([ended.code, sorted(sys.modules)]))
"""


@pytest.mark.parametrize("name", LEAVES)
def test_help_imports_nothing_of_the_commands_work(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, check=True, cwd=ROOT)
    *shown, told = done.stdout.splitlines()
    code, modules = json.loads(told)
    assert code == 0 and shown[0].startswith(f"usage: farm {name}")
    assert any(line.startswith("exit code: ") for line in shown)
    assert HEAVY.intersection(modules) == set()


def test_every_command_has_its_options_and_its_work() -> None:
    options, work = (
        {path.stem for path in (ROOT / "farm" / room).glob("[a-z]*.py")} for room in ("options", "commands")
    )
    assert options == work == {find_command_file(typed) for typed in LEAVES}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.endswith("ise")])
def test_a_command_has_its_american_spelling(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([name.replace("ise", "ize"), "-h"], ["help", name.replace("ise", "ize")]):
        with pytest.raises(SystemExit):
            main(line)
        assert capsys.readouterr().out.startswith(f"usage: farm {name} ")
