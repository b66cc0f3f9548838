"""The example project: it runs as it is written, its test can fail, and nothing is overwritten."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from farm.commands.init import BAD_INPUT, OK, main
from tests import prepared
from tests.conftest import ROOT, here


def pytest_of(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "farm_pytest", "-p", "no:cacheprovider", *options, folder]
    return prepared.run(command, cwd=ROOT)


def test_the_project_runs_as_it_is(tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    assert main([str(project)]) == OK and f"farm run {project}/farm.yaml" in capsys.readouterr().out
    done = here(project / "farm.yaml", "--on", "inline", "--samples", 1, "--results", results)
    assert done.returncode == OK, done.stderr
    assert "OK: no failures in " in done.stdout and "Coverage" not in done.stdout


#: A kernel of one's own beside those of the project.
ADDED = """

@farm.op(reference=lambda x: 2 * x, dims={"n": [3, 40]}, inputs={"x": ["n"]}, op_class="elementary")
def double(x):
    return x + x
"""


def test_its_test_passes_and_fails_when_the_kernel_is_broken(tmp_path: Path) -> None:
    project = tmp_path / "project"
    main([str(project)])
    kernels = project / "kernels.py"
    kernels.write_text(kernels.read_text() + ADDED)
    done = pytest_of(project)
    assert done.returncode == 0, done.stdout
    broken = kernels.read_text().replace("torch.exp(top - new) * total", "total")
    assert broken != kernels.read_text()
    kernels.write_text(broken)
    asked = (config := project / "farm.yaml").read_text()
    config.write_text(asked.replace("[own, adversarial, fuzz]", "[own]"))  # the sound kernels have been judged on all
    done = pytest_of(project, "-x")
    assert done.returncode == 1 and "user:softmax" in done.stdout and "invariant" in done.stdout


def test_an_installed_farm_brings_the_project(tmp_path: Path) -> None:
    """A wheel, not an editable installation: the files are in it and the command finds them."""
    source = tmp_path / "source"
    for name in ("farm", "farm_pytest", "tasks", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(wheel, check=True)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (file,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(file).extractall(site)  # all that installing a pure wheel is
    # What the farm depends on:
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [venv / "bin" / "python", "-m", "farm.init", tmp_path / "mine"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == OK, done.stderr
    assert {p.name: p.read_bytes() for p in (tmp_path / "mine").iterdir()} == {
        p.name: p.read_bytes() for p in (ROOT / "examples" / "own_kernels").iterdir() if p.is_file()
    }


@pytest.mark.parametrize(
    ("path", "says"),
    [("full", "is not empty (mine.txt)"), ("full/mine.txt", "File exists"), ("full/mine.txt/new", "Not a directory")],
)
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, says: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert main([str(tmp_path / path)]) == BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("error: ") and says in said and said.count("\n") == 1
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
