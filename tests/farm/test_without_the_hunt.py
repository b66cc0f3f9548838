"""An installation without the hunt (fuzz, localise, minimise) runs, judges, keeps and reports all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm import lake as lakes

ROOT = Path(__file__).parents[2]
HUNT = ("farm/hunt", "tasks/fuzz", "tasks/catalogs/fuzz", "tasks/hunt")
CONFIG = """
name: core
catalogs:
- {name: torch, ops: [abs, add], samples: 1}
dtypes: [float32]
backends: [torch-cpu, ort-cpu]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the farm and without its hunt."""
    folder = tmp_path_factory.mktemp("core")

    def leave_out(path: str, names: list[str]) -> set[str]:
        here = Path(path).relative_to(ROOT)
        return {name for name in names if (here / name).as_posix() in HUNT or name == "__pycache__"}

    for package in ("farm", "tasks"):
        shutil.copytree(ROOT / package, folder / package, ignore=leave_out)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(folder), "FARM_CACHE": str(folder / "cache")}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)


def test_a_run_needs_none_of_it(installed: Path) -> None:
    (installed / "c.yaml").write_text(CONFIG)
    done = run(installed, "-m", "farm.launch", "c.yaml", "--on", "processes", "--results", "lake")
    assert done.returncode == 0, done.stdout + done.stderr
    lake = lakes.open_lake(installed / "lake")
    rows = lakes.read(lake, lakes.run_ids(lake)[-1])
    assert set(rows["status"]) == {"pass"} and set(rows["op"]) == {"torch:abs", "torch:add"}
    again = run(installed, "-m", "farm", "report", "--results", "lake")
    assert again.returncode == 0, again.stderr


def test_what_was_left_out_says_so(installed: Path) -> None:
    done = run(installed, "-m", "farm", "fuzz", "--seconds", "1", "--results", "lake")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "farm fuzz" in done.stderr and "not installed" in done.stderr
