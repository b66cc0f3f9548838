"""Executors by name: the farm's own, and one that a package brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm import lake
from farm.commands import run
from farm.exits import BAD_INPUT, OK
from farm.options import fuzz as options_fuzz
from farm.options import run as options_run
from farm.options import selftest as options_selftest
from farm.work import executor_registry

CONFIG = "catalogs: [{name: load, samples: 2}]\nbackends: [null-cpu]\n"


@pytest.fixture
def config(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_LOAD_OPS", "2")
    monkeypatch.setenv("FARM_CACHE", str(cache))
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def test_a_packages_executor_is_given_the_jobs(config: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = executor_registry.get_executor("counted")
    assert run.main([str(config), "--on", "counted", "--results", str(results)]) == OK
    assert "one job after another, and counted" in capsys.readouterr().out
    assert vars(counted)["jobs"] > 1
    rows = lake.read(str(results), lake.run_ids(str(results))[0])
    assert len(rows) > 2 and set(rows["status"]) == {"pass"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "proceses"], "--on: no executor 'proceses'; did you mean processes?"),
        (["--on", "half"], "planted_executor:Half lacks the methods cancel, close, poll, submit of"),
        (["--on", "backend"], "planted:Planted is no farm.work.executor.Executor: derive it from that class"),
        (["--on", "away"], "executor 'away' of the package planted 1.0: planted_executor:Missing cannot be imported"),
        (["--on", "counted", "--inline"], "not allowed with argument"),
        (["--on", "inline", "--address", "auto"], "--address: the executor inline runs on this machine"),
    ],
)
def test_what_cannot_run_jobs_is_one_line(
    arguments: list[str], says: str, config: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run.main([str(config), *arguments, "--results", str(results)])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    said = capsys.readouterr().err
    assert code == BAD_INPUT and says in said and "Traceback" not in said


def test_an_executor_is_found_by_its_former_name_which_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert executor_registry.get_executor("children") is executor_registry.get_executor("processes")
    assert "--on children is --on processes now" in capsys.readouterr().err


@pytest.mark.parametrize(("former", "name"), executor_registry.FORMER_OPTIONS.items())
def test_options_of_earlier_versions_name_what_takes_their_place(
    former: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (options_run, options_fuzz, options_selftest):
        assert options.make_parser().parse_args([former]).on == name
        assert former not in options.make_parser().format_help()
    assert f"{former} is --on {name} now" in capsys.readouterr().err
