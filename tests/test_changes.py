"""The changelog in fragments: each is well formed, and a release joins them below its heading."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.conftest import ROOT

JOIN = runpy.run_path(str(ROOT / "changes" / "join.py"))
fragments, joined, NoFragment = JOIN["fragments"], JOIN["joined"], JOIN["NoFragment"]

BEFORE = """# Changelog

## Unreleased

### Added

- one

  | moved | before |
  |---|---|
  | a | b |

### Fixed

- two

## 0.1.0

- the first
"""


def test_the_fragments_of_this_tree_are_well_formed() -> None:
    fragments(ROOT / "changes")


def test_a_release_joins_what_is_unreleased_and_the_fragments() -> None:
    after = joined(BEFORE, [("Fixed", "- three"), ("Security", "- four")], "1.0.0", "2026-12-01")
    assert after == BEFORE.replace("## Unreleased\n", "## Unreleased\n\n## 1.0.0 – 2026-12-01\n").replace(
        "- two\n", "- two\n- three\n\n### Security\n\n- four\n"
    )
    again = joined(after, [("Added", "- five")], "1.1.0", "2027-01-01")
    assert "## Unreleased\n\n## 1.1.0 – 2027-01-01\n\n### Added\n\n- five\n\n## 1.0.0 – 2026-12-01\n" in again
    with pytest.raises(NoFragment, match="has a version 1.0.0 already"):
        joined(after, [], "1.0.0", "")
    with pytest.raises(NoFragment, match="no line '## Unreleased'"):
        joined("# Changelog\n", [], "1.0.0", "")


def test_the_changelog_of_this_tree_loses_nothing() -> None:
    before = (ROOT / "CHANGELOG.md").read_text()
    after = joined(before, [], "99.0.0", "2026-12-01")
    assert sorted(x for x in before.splitlines() if x.strip() and not x.startswith("#")) == sorted(
        x for x in after.splitlines() if x.strip() and not x.startswith("#")
    )


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("scatter.md", "- a", "not named WHAT.KIND.md"),
        ("scatter.bug.md", "- a", "KIND one of added, changed"),
        ("scatter.fixed.md", "It works.", "does not begin with a list item"),
    ],
)
def test_what_is_no_fragment_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / "README.md").write_text("what this is")
    (tmp_path / "good.added.md").write_text("- good\n")
    assert [*fragments(tmp_path).values()] == [("Added", "- good")]
    (tmp_path / name).write_text(text)
    with pytest.raises(NoFragment, match=says) as told:
        fragments(tmp_path)
    assert str(tmp_path / name) in str(told.value)
