"""The page on the architecture says of every package what it is for, in the package's own words."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from tests.test_docs import rendered


def test_every_package_has_a_row_on_the_page_of_the_architecture() -> None:
    page = rendered("architecture.md")
    packages = {
        f"{top}/{path.parent.name}/" for top in ("farm", "tasks") for path in (ROOT / top).glob("*/__init__.py")
    }
    said = dict(re.findall(r"^\| `([\w/]+)` \| (.*) \|$", page, re.M))
    assert len(packages) > 20
    assert not [name for name in packages if len(said.get(name, "").split()) < 4]
