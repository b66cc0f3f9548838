"""What a contributor meets before the code: hooks, CI, issue templates, the reading list."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import LONGEST, ROOT

TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_hooks_are_what_make_lint_runs() -> None:
    made = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lint = {line for line in made.splitlines() if re.match(r"\.venv/bin/(ruff|mypy|lint-imports)\b", line)}
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    assert len(lint) == 4 and {hook["entry"] for hook in repo["hooks"]} == lint


@pytest.mark.parametrize("name", ["ci", "nightly"])
def test_the_hosted_ci_runs_what_ci_runs(name: str) -> None:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    (job,) = found["jobs"].values()
    (script,) = [step["run"] for step in job["steps"] if "run" in step]
    assert os.access(ROOT / script, os.X_OK)
    assert found["permissions"] == {"contents": "read"}
    assert ("schedule" in found[True]) == (name == "nightly")  # YAML reads "on" as true


def test_the_files_that_are_run_first_are_there() -> None:
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in LONGEST.split() if f"test_{name}.py" not in names] == []


def test_no_test_is_in_neither_half_of_the_suite() -> None:
    """What a commit does not run, the night does."""
    halves = {}
    for script, target in (("run", "test"), ("nightly", "nightly")):
        assert f"make {target} ||" in (ROOT / ".ci" / script).read_text()
        made = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        (halves[target],) = re.findall(r'pytest .* -m ("not nightly"|nightly)', made)
    assert halves == {"test": '"not nightly"', "nightly": "nightly"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_asks_for_what_a_report_needs(path: Path) -> None:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    assert found["name"] and found["description"]
    asked = {part["id"]: part for part in found["body"]}
    assert "`farm --version`" in asked["version"]["attributes"]["description"]
    assert asked["version"]["validations"]["required"]
    assert re.search("farm reproduce .*--out", asked["script"]["attributes"]["description"])


def test_there_is_a_template_for_each_kind_of_report() -> None:
    assert {path.stem for path in TEMPLATES} == {"false_alarm", "blind_spot", "crash"}


def test_the_reading_list_has_ten_files_that_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    part = page.partition("## A day's reading\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\d+\. (?:\[([^\]]+)\]\([^)]*\)|`([^`]+)`): \w", part, re.MULTILINE)
    assert len(files) == 10
    assert [name for pair in files for name in pair if name and not (ROOT / name).is_file()] == []


def test_each_decision_says_what_why_and_at_what_cost() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert len(pages) >= 4
    for page in pages:
        text = page.read_text()
        assert text.startswith("# ") and "\n**Decision.** " in text, page.name
        assert {"## Why", "## What it costs"} <= set(text.splitlines()), page.name
