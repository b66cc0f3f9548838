"""Kernels whose modules import what the farm's own environment lacks: they are read where a backend has it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from farm import lake
from farm.commands.reproduce import main as reproduce
from farm.commands.run import main
from farm.exits import BAD_INPUT, FOUND, OK
from farm.plan import kernels as user
from farm.plan.config import load_config
from farm.work.job import Job
from farm.work.run_groups import RunGroups
from farm.work.work_kinds import find_work_kinds
from tasks.catalogs import user_definitions
from tasks.model import RACE_S, Group
from tasks.wire import ToPrepare

#: A module that only one environment has, and kernels of one that imports it and of one that does not.
ELSEWHERE = "def double(x): return x * 2\n"
LACKING = """
import tasks, only_elsewhere

@tasks.op(reference=lambda x: 2 * x, inputs={"x": ["n"]}, dims={"n": [3, 9]}, dtypes=["float32"], op_class="elementary")
def there(x): return only_elsewhere.double(x)

@tasks.op(reference=lambda x: 2 * x, inputs={"x": ["n"]}, dims={"n": [3, 9]}, dtypes=["float32"], op_class="elementary")
def thrice(x): return only_elsewhere.double(x) + x
"""
PLAIN = """
import tasks

@tasks.op(reference=lambda x: 2 * x, inputs={"x": ["n"]}, dims={"n": [3, 9]}, dtypes=["float32"], op_class="elementary")
def anywhere(x): return x + x
"""
NAMED = "{name: named, kernel: 'only_elsewhere:double', reference: 'plain.py:anywhere', inputs: {x: [n]}, dims: {n: [2]}, class: elementary}"


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run of this process announces does not outlive the test."""
    monkeypatch.setattr(user_definitions, "_told", [""])


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An interpreter that has what this one has, and a module more."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "only_elsewhere.py").write_text(ELSEWHERE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{tmp_path / "more"}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def written(folder: Path, backends: str, catalog: str = "modules: [lacking.py, plain.py]") -> Path:
    (folder / "lacking.py").write_text(LACKING)
    (folder / "plain.py").write_text(PLAIN)
    config = folder / "farm.yaml"
    config.write_text(
        f"catalogs:\n- {{name: user, samples: 2, {catalog}}}\n- {{name: critical, ops: [relu], samples: 1}}\n"
        f"dtypes: [float32]\nbackends: [{backends}]\n"
    )
    return config


def statuses(results: Path) -> set[tuple[str, str, str]]:
    (run,) = lake.run_ids(str(results))
    rows = lake.read_table(str(results), run).to_pylist()
    return {(row["op"].partition(":")[2], row["backend"], row["status"]) for row in rows if row["catalog"] == "user"}


def test_they_run_where_a_backend_has_it_and_others_say_what_they_lack(
    other: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(other.parent, f"torch-cpu, {{name: elsewhere, like: torch-cpu, python: {other}}}")
    assert main([str(config), "--on", "processes", "--results", str(results)]) == FOUND
    assert statuses(results) == {
        ("there", "elsewhere", "pass"),
        ("thrice", "elsewhere", "wrong"),
        ("anywhere", "elsewhere", "pass"),
        ("there", "torch-cpu", "unsupported"),
        ("thrice", "torch-cpu", "unsupported"),
        ("anywhere", "torch-cpu", "pass"),
    }
    (run,) = lake.run_ids(str(results))
    rows = lake.read_table(str(results), run).to_pylist()
    assert {r["status"] for r in rows if r["catalog"] == "critical"} == {"pass"}
    why = {r["error"] for r in rows if r["status"] == "unsupported"}
    assert len(why) == 1 and why.pop().endswith(
        "cannot be imported: ModuleNotFoundError: No module named 'only_elsewhere'"
    )
    capsys.readouterr()
    assert reproduce([f"{run}:forward/user:thrice/float32/1:elsewhere", "--results", str(results)]) == OK
    assert "reproduced: same status and same metrics" in capsys.readouterr().out


def test_a_kernel_of_a_package_that_only_a_backend_has(other: Path, results: Path) -> None:
    config = written(other.parent, f"{{name: elsewhere, like: torch-cpu, python: {other}}}", f"kernels: [{NAMED}]")
    assert main([str(config), "--on", "processes", "--results", str(results)]) == OK
    assert statuses(results) == {("named", "elsewhere", "pass")}


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("torch-cpu", ""),
        ("{{name: elsewhere, like: torch-cpu, python: {python}}}", "; in the environment of elsewhere: "),
        ("{{name: elsewhere, like: ort-cpu, python: {python}}}", ""),  # it runs no kernels of one's own
    ],
)
def test_what_no_environment_has_is_one_line_with_the_mend(
    other: Path, results: Path, capsys: pytest.CaptureFixture[str], backend: str, says: str
) -> None:
    config = written(other.parent, backend.format(python=other))
    (other.parent / "more" / "only_elsewhere.py").unlink()
    assert main([str(config), "--on", "processes", "--results", str(results)]) == BAD_INPUT
    said = capsys.readouterr().err
    where = f"error: {config}:2:38: catalogs.0.modules.0: {config.parent / 'lacking.py'}:2: cannot be imported: "
    assert said.startswith(f"{where}ModuleNotFoundError: No module named 'only_elsewhere'") and said.count("\n") == 1
    assert (says or "; install only_elsewhere beside the farm, or name it in the packages of a backend") in said


def test_a_mistake_of_a_module_is_looked_for_nowhere_else(
    other: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(other.parent, f"{{name: elsewhere, like: torch-cpu, python: {other}}}")
    (config.parent / "helper.py").write_text("")
    (config.parent / "lacking.py").write_text("from helper import nothing\n")
    assert main([str(config), "--on", "processes", "--results", str(results)]) == BAD_INPUT
    said = capsys.readouterr().err
    assert "cannot import name 'nothing' from 'helper'" in said and "environment of elsewhere" not in said


def test_a_job_prepares_in_one_environment(other: Path) -> None:
    config = load_config(written(other.parent, f"{{name: elsewhere, like: torch-cpu, python: {other}}}"))
    user.announce_config_kernels(config, "elsewhere")
    own, theirs = (
        Job(name="", cache="", limits=None, prepare=(ToPrepare(Group(op, "", "float32", 1)),))
        for op in ("user:there", "critical:relu")
    )  # type: ignore[arg-type]
    assert own.home == config.backends[0].spec() and theirs.home is None
    groups = [Group(op, "", "float32", 1) for op in ("user:there", "user:thrice", "critical:relu", "user:anywhere")]
    matrix = SimpleNamespace(groups=groups, backends=[], wanted=np.ones((4, 1), dtype=np.int32))
    plan = SimpleNamespace(matrix=matrix, learned=None, work_of=lambda groups, cases: np.zeros((1, 1, 3)))
    plan.kinds = find_work_kinds(groups, RACE_S)
    run_groups = RunGroups(plan, [True], {})  # type: ignore[arg-type]
    assert [run_groups.take("prepare", 1) for _ in range(4)] == [[0, 1], [2], [3], []]
    user.announce_config_kernels(config)
    assert Job(name="", cache="", limits=None, prepare=own.prepare).home is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--dry-run", "; later: its environment is not built yet"),
        ("--on=inline", "; later: it runs in an environment of its own"),
    ],
)
def test_an_environment_that_may_not_be_used_is_named(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str], option: str, says: str
) -> None:
    config = written(tmp_path, "{name: later, like: torch-cpu, packages: [only-elsewhere]}")
    assert main([str(config), option, "--results", str(results)]) == BAD_INPUT
    said = capsys.readouterr().err
    assert "No module named 'only_elsewhere'" in said and says in said and said.count("\n") == 1
