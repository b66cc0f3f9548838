"""List options: with commas, repeated, or one after another."""

from __future__ import annotations

import pytest

from farm import commandline
from farm.commandline import CommandParser, add_list_option
from farm.commands import report
from farm.options import bisect, minimise
from tasks.model import Refusal


def parser() -> CommandParser:
    made = CommandParser(prog="farm try")
    made.add_argument("config", nargs="?")
    made.add_argument("--samples", type=int)
    made.add_argument("--dry-run", action="store_true")
    add_list_option(made, "--backends", "NAME", "these")
    add_list_option(made, "--input", "FORM", "inputs", commas=False)
    return made


@pytest.mark.parametrize(
    "typed",
    [
        "--backends a,b",
        "--backends a b",
        "--backends a, b",
        "--backends a --backends b",
        "--backends=a b",
        "--backends a,a b --samples 2 --dry-run",
        "--samples 2 --backends a b",
    ],
)
def test_a_list_is_written_in_any_way(typed: str) -> None:
    assert parser().parse_args(["c.yaml", *typed.split()]).backends == ["a", "b"]


def test_what_has_commas_of_its_own_is_not_split() -> None:
    found = parser().parse_args(["--input", "x=float32[2,3]", "y=float32[2]", "y=float32[2]"]).input
    assert found == ["x=float32[2,3]", "y=float32[2]", "y=float32[2]"]


def test_a_config_among_names_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = parser().parse_args(["--samples", "2", "c.yaml", "--backends", "a", "b"])
    assert (found.config, found.backends, found.samples) == ("c.yaml", ["a", "b"], 2)
    with pytest.raises(SystemExit):
        parser().parse_args(["c.yaml", "--samples", "2", "3"])
    assert "unrecognized arguments: 3" in capsys.readouterr().err


def test_a_list_that_names_nothing_is_refused() -> None:
    with pytest.raises(Refusal, match="--backends ' , ': names nothing; give a name, or omit the option for all"):
        parser().parse_args(["--backends", " , "])


def test_an_option_that_is_not_there_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report.main(["--backends", "a", "b"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("unrecognized arguments: --backends b; did you mean --backend?\n")
    with pytest.raises(SystemExit):
        report.main(["--nothing-like-it"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --nothing-like-it\n")


def test_an_option_of_an_earlier_version_works_and_says_what_it_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    commandline._WARNED.clear()
    args = bisect.make_parser().parse_args(["key", "--versions", "1..2", "--with", "numpy<2", "--with", "x"])
    assert args.more == ["numpy<2", "x"]
    assert capsys.readouterr().err == "warning: --with is --packages now\n"
    args = bisect.make_parser().parse_args(["--with", "numpy<2", "key", "--versions", "1..2"])
    assert (args.more, args.case) == (["numpy<2"], "key")
    assert minimise.make_parser().parse_args(["key", "--budget", "60"]).budget == 60
    assert "warning: --budget is --runs now" in capsys.readouterr().err
    assert bisect.make_parser().parse_args(["key", "--versions", "1..2", "--packages", "a", "b"]).more == ["a", "b"]
