"""The action for other people's repositories: its steps, as a runner would take them, on the repository of the examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm import lake
from tests import bare_root
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "repository"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOW = yaml.safe_load((EXAMPLE / ".github" / "workflows" / "kernels.yml").read_text())
#: Steps that are not taken here: the test runs in an environment that has the farm.
INSTALLED = "Install the farm"
#: Lines of a shell that take the rows of a run that is over, and what says that it is.
STOPPED = "rm farm-lake/run=*/*.parquet\nexit 3"


@dataclass(frozen=True)
class Taken:
    """What a job's steps came to: exit code by the name of each step that ran, and the summary."""

    codes: dict[str, int]
    said: str
    summary: str


def expand(words: str, inputs: Mapping[str, str]) -> str:
    """``${{ inputs.NAME }}`` as a runner replaces it; other expressions stay."""
    return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], words)


def take_steps(repository: Path, **given: str) -> Taken:
    """Run the action's shell steps one after another in a checkout, as a runner does; the first that fails ends
    them."""
    inputs = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | given
    summary = repository.parent / "summary.md"
    summary.touch()
    codes, said = {}, ""
    for step in ACTION["runs"]["steps"]:
        if "run" not in step or step["name"] == INSTALLED:
            continue
        variables = {name: expand(value, inputs) for name, value in step["env"].items()}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=repository,
            env=os.environ | variables | {"GITHUB_STEP_SUMMARY": str(summary)},
            capture_output=True,
            text=True,
        )
        codes[step["name"]] = done.returncode
        said += done.stdout + done.stderr
        if done.returncode:
            break
    return Taken(codes, said, summary.read_text())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout of the example."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "repository"))


def test_the_workflow_gives_the_action_what_it_takes() -> None:
    (step,) = [x for x in WORKFLOW["jobs"]["judge"]["steps"] if "validation-farm" in x.get("uses", "")]
    needed = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert needed <= set(step["with"]) <= set(ACTION["inputs"])
    assert (EXAMPLE / step["with"]["config"]).exists()


def test_no_input_reaches_a_shell_as_code() -> None:
    """A config may be named by whoever opens a pull request: what a step runs has no expression in it."""
    assert not [step["name"] for step in ACTION["runs"]["steps"] if "${{" in step.get("run", "")]


def test_right_kernels_open_the_gate(repository: Path) -> None:
    taken = take_steps(repository, config="farm.yaml", arguments="--on inline")
    assert taken.codes == {"Judge": 0, "Gate": 0}, taken.said
    assert "open" in taken.summary
    kept = repository / "farm-lake"
    assert len(lake.read(kept)) and (kept / "gate.xml").exists() and (kept / "gate.sarif").exists()


def test_a_wrong_kernel_closes_it(repository: Path) -> None:
    kernels = repository / "kernels.py"
    kernels.write_text(broken(kernels.read_text()))
    taken = take_steps(repository, config="farm.yaml", arguments="--on inline")
    assert taken.codes == {"Judge": 0, "Gate": 1}, taken.said
    assert "log_softmax" in taken.summary and "closed" in taken.summary


def test_a_config_that_is_not_there_ends_the_job(repository: Path) -> None:
    taken = take_steps(repository, config="frm.yaml")
    assert taken.codes == {"Judge": 2} and "frm.yaml" in taken.said and not taken.summary


def test_a_run_that_is_stopped_has_its_summary_and_ends_the_job(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = repository / "farm"  # as a run that was stopped in its middle leaves its lake
    stopped.write_text(
        f'#!/bin/bash\n"{shutil.which("farm")}" "$@"; code=$?; [ "$1" = run ] || exit $code\n{STOPPED}\n'
    )
    stopped.chmod(0o755)
    monkeypatch.setenv("PATH", f"{repository}:{os.environ['PATH']}")
    taken = take_steps(repository, config="farm.yaml", arguments="--on inline")
    assert taken.codes == {"Judge": 3}, taken.said
    assert "INCOMPLETE" in taken.summary and "--resume" in taken.summary
    assert taken.summary.endswith("the newest run of the lake.\n")


def test_a_run_that_was_not_begun_ends_the_job_though_the_one_before_is_right(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take_steps(repository, config="farm.yaml", arguments="--on inline").codes == {"Judge": 0, "Gate": 0}
    failing = repository / "farm"
    failing.write_text(f'#!/bin/bash\n[ "$1" = run ] && exit 3\nexec "{shutil.which("farm")}" "$@"\n')
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{repository}:{os.environ['PATH']}")
    taken = take_steps(repository, config="farm.yaml")
    assert taken.codes == {"Judge": 3}, taken.said
    assert "none was begun" in taken.summary


def broken(source: str) -> str:
    """The kernel without its logarithm."""
    right = "torch.log(total)"
    assert right in source
    return source.replace(right, "total")


def test_the_container_copies_what_it_installs() -> None:
    """The Containerfile's steps name files that are there, and install what pyproject.toml calls extras."""
    lines = (ROOT / "Containerfile").read_text()
    extras = set(re.findall(r"'\.\[([\w,]+)\]'", lines))
    optional: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= set(optional["optional-dependencies"])
    assert (ROOT / "constraints.txt").exists() and "-c constraints.txt" in lines


def test_the_containers_instructions_are_read_and_known(tmp_path: Path) -> None:
    """All of the Containerfile but what takes minutes: the commands themselves, which `python -m tests.bare_root`
    runs."""
    taken = []

    class Recorded(bare_root.Container):
        def run(self, command: Any) -> int:
            taken.append((self.workdir, command[-1]))
            return 0

    container = Recorded(tmp_path, ())
    for name, rest in bare_root.read_instructions((ROOT / "Containerfile").read_text()):
        bare_root.take(container, name, rest)
    assert container.entry == ["farm"] and container.workdir == "/work"
    assert container.variables["PATH"].startswith("/venv/bin:/usr/bin")
    assert all(where == "/farm" and "/venv" in command for where, command in taken) and len(taken) == 3
    assert (tmp_path / "farm" / "pyproject.toml").exists()


def test_another_tree_is_another_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = bare_root.name_layer("COPY", ". /farm")
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD^{tree}"], capture_output=True, check=True, text=True)
    assert now == f"COPY . /farm {done.stdout.strip()}" and bare_root.name_layer("RUN", "true") == "RUN true"


def test_an_instruction_that_nobody_knows_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="HEALTHCHECK"):
        bare_root.take(bare_root.Container(tmp_path, ()), "HEALTHCHECK", "true")
