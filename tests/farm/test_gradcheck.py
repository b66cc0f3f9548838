"""python -m farm.gradcheck, the two-oracle table, and backward checks in a run."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm.commands import gradcheck
from farm.report.tables.gradient_oracles import MEANING, compare_gradient_oracles, table_two_oracles
from farm.reproduction.run_again import NotHere, run_samples_again, start_here
from tasks.backends import BackendSpec
from tasks.backends.torch import TorchEager
from tasks.catalogs.torch import gradient_samples as samples_of_torch
from tasks.judge import policy_files
from tasks.model import Group, Unavailable
from tasks.prepare.cases import prepare_group
from tasks.runner import make_item_of_whole_group
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


def test_a_group_gives_the_same_rows_here_and_in_an_environment(tmp_path: Path) -> None:
    asked = make_item_of_whole_group(prepare_group(Group("torch:tanh", "", "float32", 1, 0, "backward"), tmp_path)[1])

    def run(python: str = "") -> list[tuple[Any, ...]]:
        spec = BackendSpec.parse("own", "torch-cpu", python=python)
        rows = run_samples_again(asked, spec, policy_files.load_policy("error_units"), tmp_path)
        return [(row["sample"], row["status"], row["error_units"], row["output_digest"]) for row in rows]

    assert run() == run(sys.executable) and len(run()) == 1
    with pytest.raises(NotHere, match="there is no /nonexistent/python on this node; name the path of a Python"):
        run("/nonexistent/python")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unavailable("no such device"), NotHere),
        (ValueError("fast is true or false"), NotHere),
        (TypeError("missing 1 required argument"), TypeError),
    ],
)
def test_a_backend_that_cannot_be_had_is_told_and_a_mistake_in_one_is_raised(
    error: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(self: Any) -> None:
        raise error

    monkeypatch.setattr(TorchEager, "probe", probe)
    with pytest.raises(told, match=str(error)):
        start_here(BackendSpec.parse("torch-cpu"))


def _row(
    status: str,
    units: float | None,
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
        "by_differences": True if "differences" in oracle else None,
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
        "differences alone": _row("pass", 2, None, None, oracle="finite differences"),
        "differences alone, wrong": _row("wrong", 98, None, None, "numbers", oracle="complex step, finite differences"),
    }
    rows = pd.DataFrame(list(said.values()))
    assert list(compare_gradient_oracles(rows)) == list(said) and list(said) == [k for k in said if k in MEANING]
    both_off = pd.DataFrame([_row("invalid", 1e6, 2e6, 1e6, "oracle"), _row("imprecise", 40, 41, 0, "numbers")])
    assert list(compare_gradient_oracles(both_off)) == ["neither agrees", "both agree"]
    other = [
        _row("pass", 1, 1, 0, check="forward"),
        _row("error", 0, None, None),
        _row("pass", 0, None, None, oracle="metadata"),
        _row("wrong", None, None, None, "aliasing"),
    ]
    assert list(compare_gradient_oracles(pd.DataFrame(other))) == ["", "", "", ""]
    (line,) = table_two_oracles(rows).to_dict("records")
    assert line["samples"] == len(MEANING) and all(line[name] == 1 for name in MEANING)


def test_a_run_of_backward_checks_and_its_table(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gradients.yaml"
    config.write_text(
        "checks: [forward, backward, double_backward]\ndtypes: [float32, int64]\ncatalogs:\n"
        "  - {name: torch, ops: [mul, argmax], samples: 2}\nbackends: [torch-cpu]\n"
    )
    done = here(config, "--on", "inline", "--results", results)
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


OWN = """
import numpy as np
import torch
import tasks

def silu(x): return x * torch.sigmoid(x)

def pair(a, b, scale=2.0): return torch.tanh(a) * b * scale

class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))

class Wrong(Right):
    @staticmethod
    def backward(ctx, g):
        s = torch.sigmoid(ctx.saved_tensors[0])
        return g * (s + s * (1 - s))

class Raises(Right):
    @staticmethod
    def backward(ctx, g): raise ValueError("no such gradient")

def softmax_np(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def by_numbers(x): return np.array([float(np.sin(v)) for v in x.ravel()]).reshape(x.shape)

def with_backward(x): return np.array([float(np.sin(v)) for v in x.ravel()]).reshape(x.shape)
with_backward.backward = lambda gradient, x: gradient * np.cos(x)

def wrong_backward(x): return np.sin(x)
wrong_backward.backward = lambda gradient, x: gradient * np.sin(x)

def gather(x, i): return x[i]

@tasks.op(reference=softmax_np, inputs={"x": ["r", 4]}, dims={"r": [1, 3]}, dtypes=["float32"], op_class="normalisation", gradient=["x"])
def softmax(x): return torch.softmax(x, -1)

@tasks.op(reference=softmax_np, inputs={"x": ["r", 4]}, dims={"r": [1, 3]}, dtypes=["float32"], op_class="normalisation")
def halved(x): return torch.softmax(x.detach(), -1) + 0.5 * (torch.softmax(x, -1) - torch.softmax(x.detach(), -1))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with functions of one's own, which is the working directory."""
    (tmp_path / "my.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ("my.py:silu", 0, "4 samples: differences alone: agrees with differences"),
        ("my.py:silu --double", 0, "user:silu float64, double_backward on torch-cpu"),
        ("my.py:pair --dtype float32", 0, "3x4 3x4"),
        ("my.py:Right", 0, "differences alone: agrees"),
        ("my.py:Wrong", 1, "4 samples: differences alone, wrong: disagrees with differences"),
        ("my.py:Raises", 1, "error no such gradient"),
        ("my.py:softmax_np", 0, "differences alone: agrees"),
        ("my.py:with_backward", 0, "differences alone: agrees"),
        ("my.py:wrong_backward", 1, "differences alone, wrong"),
        ("my.py:gather --input x=float64[5,2] --input i=int64[3]<5", 0, "5x2 3"),
        ("my.py:softmax", 0, "user:softmax float32, backward on torch-cpu"),
        ("my.py:softmax", 0, "samples: both agree: the gradient is right"),
        ("my.py:softmax --input x=float32[2,7]", 0, "2x7"),
        ("my.py:halved", 1, "neither agrees: the gradient is wrong"),
    ],
)
def test_a_function_of_ones_own(own: Path, argv: str, code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradcheck.main(argv.split()) == code
    assert says in capsys.readouterr().out


def test_the_curve_of_a_function_of_ones_own_shows_a_wrong_gradient(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    least: list[float] = []
    drawn = samples_of_torch.measure_difference_curve

    def kept(*given: Any) -> Any:
        made = drawn(*given)
        least.append(float(np.nanmin(made)))
        return made

    monkeypatch.setattr(samples_of_torch, "measure_difference_curve", kept)
    for name in ("silu", "by_numbers", "Right"):
        gradcheck.main([f"my.py:{name}", "--samples", "1", "--plot", f"{name}.png"])
        assert least[-1] < 1e-8 and Path(f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "by_numbers" in capsys.readouterr().out
    assert gradcheck.main(["my.py:Wrong", "--samples", "1", "--plot", "wrong.png"]) == 1
    assert least[-1] > 1e-4  # a plateau: no step makes it right


def test_a_kernel_of_the_farm_yaml_here_goes_before_an_op_of_torch(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "farm.yaml").write_text("catalogs: [{name: user, modules: [my.py]}]\nbackends: [torch-cpu]\n")
    assert gradcheck.main(["softmax"]) == 0
    assert capsys.readouterr().out.startswith("user:softmax float32")
    assert gradcheck.main(["tanh", "--samples", "1"]) == 0
    assert capsys.readouterr().out.startswith("torch:tanh float64")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("my.py:silo", "did you mean silu?"),
        ("his.py:silu", "no such file"),
        ("my.py:by_numbers", "autograd cannot follow it"),
        ("my.py:gather", "sizes are said by --input, e.g. --input 'x=float64[3,4]'"),
        ("my.py:silu --input y=float64[3]", "--input: my.py:silu has no argument 'y'"),
        ("my.py:silu --input x=float64", "--input: 'x=float64' has no sizes"),
        ("my.py:silu --input x=flaot64[3]", "did you mean float64"),
        ("tanh --input x=float64[3]", "--input: the samples of tanh are those of the torch catalog"),
        ("user:softmax", "no farm.yaml"),
    ],
)
def test_a_bad_name_of_ones_own_is_one_line(
    own: Path, argv: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gradcheck.main(argv.split()) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and says in text, text


def test_a_run_of_ones_own_kernels_has_a_table(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "farm.yaml").write_text(
        "checks: [backward]\ncatalogs: [{name: user, samples: 2, modules: [my.py]}]\nbackends: [torch-cpu]\n"
    )
    here(own / "farm.yaml", "--on", "inline", "--results", own / "results")
    capsys.readouterr()
    assert gradcheck.main(["--table"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["op"] == "user:softmax" and row["both agree"] == row["samples"] == "2" and row["second_units"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(x): return x * x\ndef _g(x): return x\ndef h(x): return x\n", "2 functions; name one: k.py:f, k.py:h"),
        ("x = 1\n", "k.py has no function"),
        ("def f(:\n", "k.py:1: "),
        (None, "k.py: No such file"),
    ],
)
def test_a_file_alone_is_its_one_function_or_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "k.py").write_text(source)
    assert gradcheck.main(["k.py"]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    (tmp_path / "k.py").write_text("def square(x): return x * x\n")
    assert gradcheck.main(["k.py"]) == 0 and "square" in capsys.readouterr().out
