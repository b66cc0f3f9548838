"""Parts of somebody else's package: installed with pip, found by entry point, listed, run; a broken one is a line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from farm import lake
from tasks.plugins import PluginError, PluginPart
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "plugin"

#: What the test adds to the example: a second backend, whose module raises at import.
BROKEN = "raise OSError('libexample.so: cannot open shared object file')\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scratch environment that sees the farm's packages and has the example installed."""
    folder = tmp_path_factory.mktemp("scratch")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "farm.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    source = folder / "source"
    source.mkdir()
    (source / "farm_example.py").write_bytes((EXAMPLE / "farm_example.py").read_bytes())
    (source / "farm_example_broken.py").write_text(BROKEN)
    project = (EXAMPLE / "pyproject.toml").read_text()
    group = '[project.entry-points."farm.backends"]\n'
    project = project.replace(group, group + 'broken_example = "farm_example_broken:Nothing"\n')
    (source / "pyproject.toml").write_text(
        project.replace('["farm_example"]', '["farm_example", "farm_example_broken"]')
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        str(source),
    ]
    subprocess.run(pip, check=True)
    return python


def farm(python: Path, *args: object) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([python, "-m", *map(str, args)], capture_output=True, text=True, env=env, timeout=300)


def test_installed_plugins_are_listed_with_their_package(python: Path) -> None:
    done = farm(python, "farm.doctor", "--list", "example-cpu", "example-gpu", "broken_example-cpu", "--json")
    assert done.returncode == 0, done.stderr
    cpu, gpu, broken = map(json.loads, done.stdout.splitlines())
    assert (cpu["origin"], cpu["state"], cpu["vendor"]) == ("farm-example-plugin 1.2", "available", "Example Inc.")
    assert gpu["text"] == "there is no gpu edition of the example"
    assert broken["state"] == "unavailable"
    assert "farm-example-plugin 1.2" in broken["text"] and "libexample.so" in broken["text"]


def test_all_that_is_known_is_listed_without_asking(python: Path) -> None:
    done = farm(python, "farm.doctor", "--list", "--no-probe")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert {"torch-cpu", "ort-cuda", "example-cpu", "example-gpu", "broken_example-?"} <= set(names)


def test_a_check_of_a_plugin_finds_what_the_numbers_do_not(python: Path, tmp_path: Path) -> None:
    done = farm(python, "farm.launch", EXAMPLE / "farm.yaml", "--on", "processes", "--results", tmp_path / "results")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = lake.read(tmp_path / "results", lake.run_ids(tmp_path / "results")[-1]).set_index(["backend", "check"])
    assert rows["status"].to_dict() == {
        ("example-cpu", "forward"): "pass",
        ("example-cpu", "repeatable"): "pass",
        ("drifting", "forward"): "pass",
        ("drifting", "repeatable"): "wrong",
    }
    assert rows.loc[("drifting", "repeatable"), "kind"] == "nondeterministic"


def test_a_run_takes_the_plugins_and_goes_on_without_the_broken_one(python: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("catalogs: [{name: example, samples: 2}]\nbackends: [example-cpu, broken_example-cpu]\n")
    done = farm(python, "farm.launch", config, "--on", "processes", "--results", tmp_path / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "libexample.so" in done.stdout
    rows = lake.read(tmp_path / "results", lake.run_ids(tmp_path / "results")[-1])
    assert len(rows) == 4 and set(rows["status"]) == {"pass"} and set(rows["vendor"]) == {"Example Inc."}


def test_an_entry_point_that_is_no_class_is_told() -> None:
    with pytest.raises(
        PluginError, match="backend 'x': planted:STRUCK is a tuple, not a class; name a class in the entry"
    ):
        PluginPart("backend", "x", "planted:STRUCK").load()


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("from tasks.checks.base import Stages", True),
        ("import tasks.arrays.noises", True),
        ("import tasks.model\ntasks.model.Forms", True),
        ("import no_such_runtime", False),
        ("raise TypeError('of its own')", False),
    ],
)
def test_a_plugin_for_another_version_is_one_line_with_the_fix(
    text: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"farm_older_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError) as caught:
        PluginPart("backend", "older", f"{name}:Older", "farm-older", "0.1").load()
    said = str(caught.value)
    assert said.startswith(f"backend 'older' of the package farm-older 0.1: {name}:Older cannot be imported: ")
    assert ("bring farm-older up to date, or uninstall it" in said) == ours and "\n" not in said


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("build(self, form): ...", ""),
        ("build(self, form, inputs=None, **more): ...", ""),
        ("build(self, *given): ...", ""),
        (
            "build(self, form, inputs): ...",
            "build cannot be called as build(form): missing a required argument: 'inputs'",
        ),
        ("probe(self, deadline): ...", "probe cannot be called as probe(): missing a required argument: 'deadline'"),
        ("own(self, anything): ...", ""),
    ],
)
def test_a_method_that_takes_other_arguments_than_ours_is_one_line_with_the_fix(
    method: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"farm_older_{abs(hash(method))}"
    (tmp_path / f"{name}.py").write_text(
        f"from tasks.backends.base import Backend\nclass Older(Backend):\n    def {method}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    part = PluginPart("backend", "older", f"{name}:Older", "farm-older", "0.1")
    if not says:
        assert part.load().__name__ == "Older"
        return
    with pytest.raises(PluginError) as caught:
        part.load()
    where = f"backend 'older' of the package farm-older 0.1: {name}:Older: Older.{says}; "
    assert str(caught.value).startswith(f"{where}it is written for another version of the farm: bring farm-older up to")


@pytest.mark.parametrize(
    ("methods", "refused"),
    [
        (("build(self, form): ...", "arguments(self, form, *, place): ..."), False),
        (("build(self, form, inputs): ...",), True),
    ],
)
def test_a_method_inside_of_one_of_our_backends_may_take_what_its_own_callers_give(
    methods: tuple[str, ...], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"farm_inner_{len(methods)}"
    body = "".join(f"    def {method}\n" for method in methods)
    (tmp_path / f"{name}.py").write_text(
        f"from tasks.backends.torch import TorchEager\nclass Inner(TorchEager):\n{body}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    part = PluginPart("backend", "inner", f"{name}:Inner", "farm-inner", "0.1")
    with pytest.raises(PluginError, match="Inner.build cannot be called") if refused else contextlib.nullcontext():
        part.load()
