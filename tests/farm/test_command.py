"""The one command: every command behind it says what it does, in plain English, and ends with the documented codes."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farm.__main__ import COMMANDS, main
from farm.exits import BAD_INPUT, OK

COMMANDS_FOLDER = Path(importlib.import_module("farm.commands").__path__[0])


def test_every_file_of_the_commands_is_a_command() -> None:
    assert {p.stem for p in COMMANDS_FOLDER.glob("*.py")} - {"__init__"} == set(COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == OK
    said = capsys.readouterr().out
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", said, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == OK
    assert said.startswith(f"usage: farm {name}")
    for word in (" anew", "go on with", " alone "):  # translated English
        assert word not in said


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--no-such-option"])
    assert ended.value.code == BAD_INPUT
    assert "usage: farm " in capsys.readouterr().err


def test_a_command_that_does_not_exist_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == BAD_INPUT
    assert "farm has no command 'rnu'; did you mean run?" in capsys.readouterr().err


@pytest.mark.parametrize(("door", "name"), [("launch", "run"), ("report", "report"), ("envs", "envs")])
def test_a_module_is_a_door_to_its_command(door: str, name: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"farm.{door}", "--help"], capture_output=True, text=True)
    assert done.returncode == OK and done.stdout.startswith(f"usage: farm {name}")
