"""Every key of a cache holds the digest of the sources that made what is kept: an edit of any of them changes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import sources

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = "from tasks import sources; print(sources.of_cases('tasks.catalogs.torch'), sources.of_running(), sources.of_artefacts())"


def digests(root: Path) -> list[str]:
    """Of prepared cases, of a backend's answers and of artefacts, in a tree of its own."""
    done = subprocess.run([sys.executable, "-c", DIGESTS], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("edited", "changes"),
    [
        ("catalogs/torch/generated.py", [True, True, False]),
        ("arrays/inputs.py", [True, True, True]),
        ("model/dtypes.py", [True, True, True]),
        ("judge/policies/error_units.json", [True, True, False]),
        ("backends/torch.py", [False, True, True]),
        ("backends/shared/onnx_form.py", [False, True, True]),
        ("runner.py", [False, True, False]),
        ("wire.py", [False, True, False]),
        ("zoo/steep.py", [False, False, False]),
    ],
)
def test_an_edit_is_another_key(tmp_path: Path, edited: str, changes: list[bool]) -> None:
    shutil.copytree(ROOT / "tasks", tmp_path / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    before = digests(tmp_path)
    path = tmp_path / "tasks" / edited
    path.write_text(path.read_text() + "\n")
    assert [a != b for a, b in zip(before, digests(tmp_path))] == changes


def test_another_packages_catalog_counts_with_its_own_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "somebodys.py").write_text(text)
        sources.digest.cache_clear()
        found.add(sources.of_cases("somebodys"))
    assert len(found) == 2 and sources.of_cases("tasks.catalogs.torch") not in found


def test_a_module_that_is_not_there_is_no_error() -> None:
    assert sources.digest("no_such_module_at_all") == sources.digest("no_such.module_at_all")
