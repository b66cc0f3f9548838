"""python -m farm.gradcheck, the two-oracle table, and backward checks in a run."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from farm.commands import gradcheck
from farm.report.tables.gradients import MEANING, agreement, two_oracles
from tests.conftest import here


def test_an_op_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gradcheck.main(["tanh", "--dtype", "float32"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("torch:tanh float32, backward on torch-cpu\n") and "both agree" in text and "20x20" in text
    assert ", 0 from" not in text and "1 sample: both agree: the gradient is right" in text


def test_a_suspect_check_is_told_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    # hardsigmoid's gradient in float64 takes a sixth that was rounded to float32.
    assert gradcheck.main(["nn.functional.hardsigmoid", "--samples", "1"]) in (0, 1)
    capsys.readouterr()  # what the other call says is not this one's
    code = gradcheck.main(["nn.functional.hardsigmoid", "--sample", "0"])
    text = capsys.readouterr().out
    assert ("only autograd agrees" in text) == (code == 1)


def test_the_curve_is_written_as_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curve.png"
    assert gradcheck.main(["nn.functional.gelu", "--samples", "1", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["tanhh"], ("no op 'tanhh'", "tanh")),
        (["argmax"], ("torch:argmax", "declares no backward")),
        (["tanh", "--dtype", "int64"], ("--dtype", "int64")),
        (["tanh", "--sample", "77"], ("--sample", "77")),
        (["tanh", "--samples", "0"], ("--samples", "at least 1")),
        (["tanh", "--backend", "nope-cpu"], ("--backend", "nope-cpu")),
        (["tanh", "--samples", "1", "--plot", "/nonexistent/x.png"], ("--plot", "/nonexistent/x.png")),
        (["--table", "--results", "/nonexistent"], ("/nonexistent",)),
    ],
)
def test_a_bad_command_line_is_one_line(
    argv: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gradcheck.main(argv) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and all(word in text for word in words), text


def _row(
    status: str,
    units: float,
    second: float | None,
    apart: float | None,
    kind: str = "",
    check: str = "backward",
    oracle: str = "float64",
) -> dict[str, object]:
    return {
        "run_id": "r",
        "case_id": f"{check}/{status}/{units}/{second}",
        "backend": "b",
        "attempts": 1,
        "op": "torch:x",
        "variant": "",
        "dtype": "float32",
        "check": check,
        "oracle": oracle,
        "status": status,
        "kind": kind,
        "limit": 32.0,
        "error_units": units,
        "second_units": second,
        "oracles_units": apart,
        "second_oracle": None if second is None else "finite differences",
    }


def test_every_entry_of_the_two_oracle_table() -> None:
    said = {
        "both agree": _row("pass", 1, 1, 0),
        "neither agrees": _row("wrong", 99, 99, 0, "numbers"),
        "only autograd agrees": _row("invalid", 1, 1e6, 1e6, "oracle"),
        "only differences agree": _row("invalid", 1e6, 1, 1e6, "oracle"),
        "no differences": _row("pass", 1, None, None),
        "no differences, wrong": _row("wrong", 99, None, None, "numbers"),
    }
    rows = pd.DataFrame(list(said.values()))
    assert list(agreement(rows)) == list(said) and list(said) == [k for k in said if k in MEANING]
    both_off = pd.DataFrame([_row("invalid", 1e6, 2e6, 1e6, "oracle"), _row("imprecise", 40, 41, 0, "numbers")])
    assert list(agreement(both_off)) == ["neither agrees", "both agree"]
    other = [
        _row("pass", 1, 1, 0, check="forward"),
        _row("error", 0, None, None),
        _row("pass", 0, None, None, oracle="metadata"),
    ]
    assert list(agreement(pd.DataFrame(other))) == ["", "", ""]
    (line,) = two_oracles(rows).to_dict("records")
    assert line["samples"] == 6 and all(line[name] == 1 for name in MEANING)


def test_a_run_of_backward_checks_and_its_table(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gradients.yaml"
    config.write_text(
        "checks: [forward, backward, double_backward]\ndtypes: [float32, int64]\ncatalogs:\n"
        "  - {name: torch, ops: [mul, argmax], samples: 2}\nbackends: [torch-cpu]\n"
    )
    done = here(config, "--inline", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.read_parquet(results)
    assert set(zip(rows.op, rows.check, rows.dtype)) == {
        ("torch:mul", "forward", "float32"),
        ("torch:mul", "forward", "int64"),
        ("torch:mul", "backward", "float32"),
        ("torch:mul", "double_backward", "float32"),
        ("torch:argmax", "forward", "float32"),
        ("torch:argmax", "forward", "int64"),
    }
    assert all(row.case_id.startswith(f"{row.check}/torch:") for row in rows.itertuples())
    assert gradcheck.main(["--table", "--results", str(results)]) == 0
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {line["check"] for line in table} == {"backward", "double_backward"}
    assert all(int(line["both agree"]) + int(line["no differences"]) == int(line["samples"]) for line in table)
    assert list(results.glob("run=*/_report/gradients.csv"))
