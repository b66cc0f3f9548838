"""Whose code a file's is: that of an installed package, wherever it is installed, is no kernel's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
