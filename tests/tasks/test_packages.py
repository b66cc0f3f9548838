"""Whose code a file's is: that of an installed package, wherever it is installed, is no kernel's. And what the torch catalog needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tasks import packages


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    packages.list_library_folders.cache_clear()
    yield
    packages.list_library_folders.cache_clear()


def test_packages_beside_the_environments_own_are_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system's, which a virtual environment may see, and what is built where it lies; not what lies beside a kernel."""
    system, beside, built = tmp_path / "dist-packages", tmp_path / "kernels", tmp_path / "source"
    for folder in (system, beside, built / "framework"):
        folder.mkdir(parents=True)
    (built / "framework" / "__init__.py").write_text("")
    for folder in (system, beside, built):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(packages, "_BUILT", ("framework",))
    found = packages.list_library_folders()
    assert {system, built / "framework"} <= set(found)
    assert not {beside, built} & set(found)


def test_torchs_list_of_ops_needs_no_other_package(tmp_path: Path) -> None:
    """Beside what torch asks for; earlier releases do not ask for setuptools, and import it there all the same."""
    pytest.importorskip("torch")
    found, wanted = set[str](), ["torch", "numpy"]
    while wanted:
        found.add(name := wanted.pop())
        asked = [Requirement(x) for x in metadata.requires(name) or ()]
        needed = {x.name.lower() for x in asked if x.marker is None or x.marker.evaluate({"extra": ""})}
        wanted += needed - found - {"setuptools"}
    for name in {*found, *packages.TORCH_CATALOG}:
        for top in {path.parts[0] for path in metadata.files(name) or () if path.parts[0] != ".."}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(str(metadata.distribution(name).locate_file(top)))
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import torch.testing._internal.common_methods_invocations"
    done = subprocess.run([sys.executable, "-I", "-S", "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
