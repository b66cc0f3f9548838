"""The example project: it runs as it is written, its test can fail, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farm.commands.init import BAD_INPUT, OK, main
from tests.conftest import ROOT, launch


def pytest_of(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def test_the_project_runs_as_it_is(tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    assert main([str(project)]) == OK and f"python -m farm.launch {project}/farm.yaml" in capsys.readouterr().out
    done = launch(project / "farm.yaml", "--inline", "--samples", 2, "--results", results)
    assert done.returncode == OK, done.stderr
    assert "No findings" in done.stdout and "pass rate 100 %" in done.stdout


def test_its_test_passes_and_fails_when_the_kernel_is_broken(tmp_path: Path) -> None:
    project = tmp_path / "project"
    main([str(project)])
    done = pytest_of(project)
    assert done.returncode == 0, done.stdout
    kernels = project / "kernels.py"
    broken = kernels.read_text().replace("torch.exp(top - new) * total", "total")
    assert broken != kernels.read_text()
    kernels.write_text(broken)
    done = pytest_of(project)
    assert done.returncode == 1 and "user:softmax" in done.stdout and "invariant" in done.stdout


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
