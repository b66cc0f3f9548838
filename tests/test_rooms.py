"""Rooms: the page on the architecture says of every package what it is for, in its own words, and no modules import each other."""

from __future__ import annotations

import graphlib
import re

import grimp

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


def test_no_modules_import_each_other() -> None:
    """Nor where a function imports: the contracts of lint see circles of whole rooms only."""
    graph = grimp.build_graph("farm", "tasks", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
