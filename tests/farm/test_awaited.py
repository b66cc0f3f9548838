"""A run begins with the backends that are there; those whose environments are still being built join it, or do not."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farm import lake
from farm.commands import run
from farm.exits import BAD_INPUT, OK
from farm.fleet import envs
from farm.fleet.envs import Environment, GivenUp

CONFIG = """
catalogs: [{name: planted, ops: [none, prepare_raise, prepare_segfault], samples: 4}]
backends: [{name: later, like: planted-cpu, packages: [%s]}, planted-cpu]
"""
#: Of packages that are there (a child of the farm needs them in any case).
NUMPY = "numpy"


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a line of shell before what uv does. The cache is the test's own."""
    real = envs._find_uv_binary()
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))

    def before(line: str) -> None:
        wrapper = tmp_path / "uv"
        wrapper.write_text(f'#!/bin/sh\n{line}\nexec {real} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setattr(envs, "_find_uv_binary", lambda: str(wrapper))

    return before


@pytest.mark.parametrize("package", [NUMPY, "farm-no-such-package-at-all"])
def test_rows_come_while_an_environment_is_built(
    package: str, installer: Callable[[str], None], tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installer(f"until ls {results}/run=*/part-* >/dev/null 2>&1; do sleep 0.1; done")  # rows in the lake
    (tmp_path / "c.yaml").write_text(CONFIG % package)
    assert run.main([str(tmp_path / "c.yaml"), "--on", "processes", "--results", str(results)]) == OK
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    said = [(name, state) for name, state, *_ in (line for line in lines if len(line) == 3) if name in BACKENDS]
    comes = package == NUMPY
    assert said[:3] == [
        ("later", "awaited"),
        ("planted-cpu", "available"),
        ("later", "available" if comes else "unavailable"),
    ]
    rows, (run_id,) = lake.read(results), lake.run_ids(results)
    of = {name: sorted(zip(some["case_id"], some["status"])) for name, some in rows.groupby("backend")}
    assert set(of) == {"planted-cpu", *(["later"] if comes else [])}
    assert all(some == of["planted-cpu"] for some in of.values())
    record = lake.read_run(lake.open_lake(results), run_id)
    assert record["planned_by_backend"] == {"planted-cpu": len(of["planted-cpu"]), "later": len(of.get("later", ()))}
    offer = record["inventory"]["backends"]["later"]
    assert offer["available"] is comes and ("later" in record["had"]) is comes
    assert comes or package in offer["reason"]


BACKENDS = ("later", "planted-cpu")


def test_a_run_with_one_backend_waits_for_its_environment(
    installer: Callable[[str], None], tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installer(":")
    (tmp_path / "c.yaml").write_text(CONFIG % "farm-no-such-package-at-all")
    arguments = [str(tmp_path / "c.yaml"), "--on", "processes", "--backends", "later", "--results", str(results)]
    assert run.main(arguments) == BAD_INPUT
    said = capsys.readouterr()
    assert "none of the config's backends is available" in said.err and "unavailable" in said.out
    assert "awaited" not in said.out


def test_nobody_waits_for_an_environment_when_the_config_is_wrong(
    installer: Callable[[str], None], tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installer(f"echo $$ >> {tmp_path}/begun; sleep 600")
    (tmp_path / "c.yaml").write_text(CONFIG.replace("prepare_raise", "no_such_op") % NUMPY)
    assert run.main([str(tmp_path / "c.yaml"), "--on", "processes", "--results", str(results)]) == BAD_INPUT
    assert "no_such_op" in capsys.readouterr().err
    begun = (tmp_path / "begun").read_text().split() if (tmp_path / "begun").exists() else []
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun)
    assert not list((tmp_path / "cache" / "envs").glob("*/"))


def test_a_build_that_nobody_waits_for_leaves_nothing(installer: Callable[[str], None], tmp_path: Path) -> None:
    installer("sleep 600")
    given_up = threading.Event()
    threading.Timer(0.3, given_up.set).start()
    with pytest.raises(GivenUp):
        envs.build_environment(Environment((NUMPY,)), tmp_path, given_up=given_up)
    assert not list((tmp_path / "envs").glob("*/"))
