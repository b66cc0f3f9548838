"""The page on the architecture names every package."""

from __future__ import annotations

from tests.conftest import ROOT


def test_every_package_has_a_row_on_the_page_of_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {
        f"{top}/{path.parent.name}/" for top in ("farm", "tasks") for path in (ROOT / top).glob("*/__init__.py")
    }
    assert len(packages) > 20
    assert {p for p in packages if f"`{p}`" not in page} == set()
