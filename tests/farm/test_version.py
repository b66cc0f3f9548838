"""Which farm judged: version and commit, of a checkout, of a package that was built, and of neither."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from farm.lake.origin_columns import digest_lake_columns
from farm.version import COMMIT_FILE, SOURCES, VERSION, farm_version, find_farm_commit
from farm.work.ray_cluster import RayCluster
from tasks.wire import Begun, Place
from tests.conftest import ROOT


def git(folder: Path, *words: str) -> str:
    told = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *told, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name in ("farm/a.py", "tasks/a.py", "docs/a.md"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_a_checkout_says_its_commit_and_whether_its_sources_have_changes(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = f"g{git(checkout, 'rev-parse', 'HEAD')[:8]}"
    assert find_farm_commit(checkout) == clean
    (checkout / "docs" / "a.md").write_text("2\n")
    assert find_farm_commit(checkout) == clean, "a page of the docs judges nothing"
    (checkout / "tasks" / "new.py").write_text("1\n")
    assert find_farm_commit(checkout) == f"{clean}.dirty", "a file that git does not know yet may be a backend"
    (checkout / "tasks" / "new.py").unlink()
    (checkout / "farm" / "a.py").write_text("2\n")
    assert find_farm_commit(checkout) == f"{clean}.dirty"
    git(checkout, "checkout", "-q", "farm")
    # In a hook of another repository git's variables name that one.
    other = checkout.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert find_farm_commit(checkout) == clean


def test_where_no_commit_is_known_the_version_stands_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = checkout / ".venv" / "site-packages"  # an installation inside of somebody's repository is not of its commit
    site.mkdir(parents=True)
    assert find_farm_commit(site) == ""
    for commit, told in (("", VERSION), ("g46f037aa", f"{VERSION}+g46f037aa")):
        with mock.patch("farm.version.find_farm_commit", lambda root, commit=commit: commit):
            assert farm_version.__wrapped__() == told
    empty = checkout.parent / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert find_farm_commit(empty) == "", "no commit yet"
    monkeypatch.setenv("PATH", "")
    assert find_farm_commit(empty) == "", "no commit yet, and no git"


def test_a_git_that_does_not_answer_loses_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = f"g{git(checkout, 'rev-parse', 'HEAD')[:8]}.unchecked"
    tree = checkout.parent / "tree"
    git(checkout, "worktree", "add", "-q", str(tree), "-b", "side")
    with monkeypatch.context() as without:
        without.setenv("PATH", "")
        assert [find_farm_commit(x) for x in (checkout, tree)] == [commit, commit]
    git(checkout, "pack-refs", "--all")
    git(tree, "checkout", "-q", "--detach")
    monkeypatch.setenv("PATH", "")
    assert [find_farm_commit(x) for x in (checkout, tree)] == [commit, commit], "packed, and of no branch"


def test_what_was_built_says_the_commit_of_its_sources(checkout: Path) -> None:
    (checkout / "farm" / COMMIT_FILE).write_text("g12345678\n")
    assert find_farm_commit(checkout) == "g12345678"


def test_git_is_asked_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = farm_version()
    assert first.startswith(VERSION)
    monkeypatch.setattr("farm.version.find_farm_commit", lambda root: pytest.fail("asked again"))
    assert farm_version() == first


def test_a_node_whose_farm_sends_other_columns_is_told_with_both_versions() -> None:
    """Another commit with the same columns runs: its rows say which farm judged them."""
    cluster = RayCluster.__new__(RayCluster)
    cluster.nodes = [{"id": "n1", "host": "board"}]
    cluster._check_columns(Begun(Place("n1", ""), "1.0.0+g11111111", digest_lake_columns()))
    with pytest.raises(OSError) as told:
        cluster._check_columns(Begun(Place("n1", ""), "1.0.0+g11111111", "01234567"))
    assert str(told.value) == (
        "board has farm 1.0.0+g11111111 (columns 01234567), and this machine "
        f"farm {farm_version()} (columns {digest_lake_columns()}): install the same version on all nodes"
    )


def test_a_wheel_is_typed_and_names_its_commit(tmp_path: Path) -> None:
    """As it is built of a source distribution, where no git is."""
    sources = tmp_path / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in (*SOURCES, "examples"):
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    (sources / "farm" / COMMIT_FILE).write_text("g12345678\n")
    build = "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=sources, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"validation_farm-{VERSION}-")
    with zipfile.ZipFile(wheel) as packed:
        assert {f"{name}/py.typed" for name in SOURCES} <= set(packed.namelist())
        packed.extractall(tmp_path / "installed")
    told = subprocess.run(
        [sys.executable, "-m", "farm", "--version"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout == f"farm {VERSION}+g12345678\n"
