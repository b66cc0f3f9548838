"""List options: with commas, repeated, or one after another."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from rich.table import Table

from farm import commandline
from farm.__main__ import main
from farm.commandline import CommandParser, add_list_option, refuse_in_a_line, write_asked_csv
from farm.commands import report
from farm.exits import BAD_INPUT, INCOMPLETE, OK, run_command, run_command_guarded
from farm.fitting import make_console
from farm.options import bisect, localise, minimise, reproduce
from farm.options.site import make_parser as make_site_parser
from farm.program import write_resume_command
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


def test_names_stand_before_and_behind_options() -> None:
    found = make_site_parser().parse_args(["out", "--last", "3", "one", "two"])
    assert (found.out, found.last, found.lakes) == ("out", 3, ["one", "two"])


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
    said = "unrecognized arguments: --backends b; did you mean --backend?; --backends is an option of farm run, "
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        report.main(["--nothing-like-it"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --nothing-like-it; farm report -h lists them\n")


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
    for options in (reproduce, localise):
        commandline._WARNED.clear()
        assert options.make_parser().parse_args(["key", "--script", "folder"]).out == "folder"
        assert capsys.readouterr().err == "warning: --script FILE is --out FOLDER now\n"


@pytest.mark.parametrize("name", ["my_harvest", "harvester"])
def test_a_new_folder_may_be_called_almost_as_a_part(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == OK and (tmp_path / name / "farm.yaml").exists()


def test_a_csv_is_what_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    table = pd.DataFrame({"a": [0]})
    write_asked_csv(table, str(tmp_path / "x.csv.gz"))
    assert gzip.decompress((tmp_path / "x.csv.gz").read_bytes()) == b"a\n0\n"
    write_asked_csv(table, "~/x.csv")
    assert (tmp_path / "x.csv").read_bytes() == b"a\n0\n"
    with pytest.raises(OSError, match="non-existent directory") as raised:
        write_asked_csv(table, "~/none/x.csv")
    assert raised.value.filename == "~/none/x.csv"


@pytest.mark.parametrize(
    ("filename", "argv", "code"),
    [
        ("x.csv", ["--csv", "x.csv"], BAD_INPUT),
        ("x.csv", ["--csv=x.csv"], BAD_INPUT),
        ("other", ["--csv=x.csv"], INCOMPLETE),
        (None, ["--backend", ""], INCOMPLETE),
    ],
)
def test_what_the_command_line_names_is_bad_input_and_a_full_disk_is_not(
    filename: str | None, argv: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @refuse_in_a_line
    def full(argv: Sequence[str] | None) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *[filename] * bool(filename))

    assert run_command_guarded(full, argv) == code
    assert "No space left on device" in capsys.readouterr().err


def test_a_table_is_drawn_with_the_letters_that_the_output_has(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}
    for encoding in ("ascii", "utf-8"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, "backslashreplace", write_through=True))
        table = Table("op", "status")
        table.add_row("add", "pass")
        make_console().print(table)
        drawn[encoding] = raw.getvalue().decode(encoding)
    monkeypatch.undo()
    assert "\\u" not in drawn["ascii"] and "+" in drawn["ascii"] and "┃" in drawn["utf-8"]


def test_a_command_that_is_not_whole_is_called_as_it_is_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "farm.commands.history", raising=False)
    monkeypatch.setitem(sys.modules, "farm.report.faces", None)  # as where some of the farm is installed
    assert run_command("history", []) == BAD_INPUT
    assert "error: farm report history needs farm.report.faces" in capsys.readouterr().err


@pytest.mark.parametrize(("record", "command"), [({}, "run"), ({"fuzz": {}}, "fuzz"), ({"screen": {}}, "node screen")])
def test_a_lake_with_a_blank_is_quoted_in_what_resumes_a_run(record: dict[str, object], command: str) -> None:
    made = write_resume_command({"run_id": "r1"} | record, "my lake")
    assert made.endswith(f"farm {command} --resume r1 --results 'my lake'")
