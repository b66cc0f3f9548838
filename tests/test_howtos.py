"""The how-tos, as a reader follows them: each page's files are written and its commands run, in order, in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import prepared
from tests.conftest import ROOT

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.read_text().startswith("# How to: "))
#: A file that a page shows: its first line says its name.
FILE = re.compile(r"# ([\w/]+\.\w+)\n")
#: Commands, by their beginning, that the test does not run, and why.
NOT_RUN = {"podman ": "no container tool here; `python -m tests.bare_root` takes the Containerfile's steps"}
#: What the comment of a command says if its exit code is another than 0.
CODE = re.compile(r"# exit code (\d)")


def read_steps(page: Path) -> Iterator[tuple[str, str]]:
    """What a reader does: ("write", the file with its name in front), ("change", its lines) or ("run", the command with
    its comment)."""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.S):
        if language == "console":
            yield from (("run", line.removeprefix("$ ")) for line in block.splitlines())
        elif FILE.match(block):
            yield "change" if language == "diff" else "write", block


def change_file(path: Path, block: str) -> None:
    """Put the lines of a diff that begin with + in place of those that begin with -, which have to be there."""
    lines = {sign: "".join(line[1:] for line in block.splitlines(True) if line[0] == sign) for sign in "-+"}
    text = path.read_text()
    assert text.count(lines["-"]) == 1, lines["-"]
    path.write_text(text.replace(lines["-"], lines["+"]))


def test_there_are_how_tos_for_five_questions() -> None:
    names = {page.stem for page in PAGES}
    assert names >= {"nightly_gate", "one_kernel", "my_device", "my_model", "generated_kernels"}


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_how_to_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    """Every command ends with the exit code that its comment says, 0 without one, and none with a traceback."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for kind, text in read_steps(page):
        if found := FILE.match(text):
            path = tmp_path / found[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            change_file(path, text) if kind == "change" else path.write_text(text)
            continue
        if any(text.startswith(start) for start in NOT_RUN):
            continue
        command, _, comment = text.partition("  #")
        name, *words = shlex.split(command)
        program = ["-m", "farm"] if name == "farm" else []
        assert name in ("farm", "python"), text
        done = prepared.run(
            [sys.executable, *program, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300
        )
        meant = CODE.search("#" + comment)
        said = done.stdout + done.stderr
        assert done.returncode == int(meant[1] if meant else 0), (
            f"$ {text}\nexit code {done.returncode}\n{said[-3000:]}"
        )
        assert "Traceback" not in said, f"$ {text}\n{said[-3000:]}"
