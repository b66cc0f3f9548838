"""farm localise, and the culprits that a run finds by itself: two processes search, a row says what they found."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from farm import lake
from farm.commands import localise
from farm.commands import run as launch
from farm.commands.localise import BAD_INPUT, NAMED
from farm.fleet.child_process import ChildProcess

CONFIG = """
catalogs:
  - {{name: {catalog}, ops: {ops}, dtypes: [float32], samples: 1}}
backends: [{backends}]
"""


def launched(folder: Path, how: str, ops: str, backends: str, more: str = "", catalog: str = "tiny") -> pd.DataFrame:
    (folder / "tiny.yaml").write_text(CONFIG.format(catalog=catalog, ops=ops, backends=backends) + more)
    launch.main([str(folder / "tiny.yaml"), how, "--results", str(folder / "results")])
    rows = lake.read(folder / "results", lake.run_ids(folder / "results")[-1])
    return rows.set_index(["op", "backend"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("localise")


@pytest.fixture(scope="module")
def rows(folder: Path, cache: Path) -> Iterator[pd.DataFrame]:
    yield launched(folder, "--on=inline", "['*']", "faulty-clean, faulty-pad, faulty-fused, faulty-pass")


def test_a_run_names_the_culprit_of_every_failing_model(rows: pd.DataFrame) -> None:
    wrong = rows[rows.status == "wrong"]
    found = {(op, backend): (x.culprit, x.probe_effect) for (op, backend), x in wrong.iterrows()}
    assert found == {
        ("tiny:convolutional", "faulty-pad"): ("node Conv_4 (Conv)", "same"),
        ("tiny:convolutional", "faulty-pass"): ("optimiser PlantedFusion", "same"),
        ("tiny:convolutional", "faulty-fused"): ("window Conv_4..Sigmoid_5", "healed"),
        ("tiny:transformer", "faulty-fused"): ("window Div_15..Softmax_16", "healed"),
    }
    units = wrong.loc[("tiny:convolutional", "faulty-pad")].node_units
    assert max(range(len(units)), key=units.__getitem__) == 4
    assert len(units) == 13


def test_what_passed_has_no_culprit(rows: pd.DataFrame) -> None:
    passed = rows[rows.status == "pass"]
    assert len(passed) == 4
    assert not passed.culprit.fillna("").any() and passed.probe_effect.isna().all() and passed.node_units.isna().all()


def key(rows: pd.DataFrame, backend: str, op: str = "tiny:convolutional") -> str:
    row = rows.loc[(op, backend)]
    return f"{row.run_id}:{row.case_id}:{backend}"


def test_the_command_shows_the_culprit_and_the_next_command(
    rows: pd.DataFrame, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert localise.main([key(rows, "faulty-fused"), "--results", str(folder / "results")]) == NAMED
    said = capsys.readouterr().out
    assert "culprit       window Conv_4..Sigmoid_5" in said
    assert "Conv_4: Conv(pads=[1, 1, 1, 1])" in said
    assert "maxpool3 float32[2, 8, 6, 6]" in said
    assert "asking for all tensors heals the model" in said
    assert f"farm localise '{key(rows, 'faulty-fused')}' --out" in said


def test_what_cannot_be_localised_is_refused_in_a_line(
    rows: pd.DataFrame, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = rows.iloc[0].run_id
    refused = {
        key(rows, "faulty-clean"): "there is nothing to localise",
        f"{run_id}:forward/tiny:convolutional/float32/9:faulty-pad": "no case",
        f"{run_id}:forward/tiny:convolutional/float32/0:faulty-other": "no row of",
        "nonsense": "is no key",
    }
    for wanted, words in refused.items():
        assert localise.main([wanted, "--results", str(folder / "results")]) == BAD_INPUT
        said = capsys.readouterr()
        assert said.err.startswith("error: ") and words in said.err and len(said.err.splitlines()) == 1


def test_a_backend_that_dies_of_being_probed_keeps_its_row(tmp_path: Path, cache: Path) -> None:
    (row,) = launched(tmp_path, "--on=processes", "[convolutional]", "faulty-dies").itertuples()
    assert (row.status, row.culprit, row.probe_effect) == ("wrong", "node Conv_4 (Conv)", "")


@pytest.mark.parametrize(
    ("command", "number", "culprit"),
    [("Run", 2, ""), ("Run", 3, "node Conv_4 (Conv)"), ("Tried", 1, ""), ("Tried", 2, "")],
)
def test_a_child_that_is_killed_in_a_search_costs_the_culprit_at_most_and_no_case_is_blamed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, command: str, number: int, culprit: str
) -> None:
    """The backend's child before its second or third run (the first is the case's own), the search's before it is
    answered."""
    call, given = ChildProcess.call, list[str]()

    def killed(self: ChildProcess, said: Any, *more: Any) -> Iterator[Any]:
        given.append(type(said).__name__)
        if given.count(command) == number and given[-1] == command:
            os.kill(self.process.pid, signal.SIGKILL)
        return call(self, said, *more)

    monkeypatch.setattr(ChildProcess, "call", killed)
    (row,) = launched(tmp_path, "--on=processes", "[convolutional]", "faulty-pad").itertuples()
    assert (row.status, row.culprit, row.error) == ("wrong", culprit, "")
    assert pd.isna(row.note) and pd.isna(row.crash_after)


def test_a_config_can_leave_culprits_alone(tmp_path: Path, cache: Path) -> None:
    (row,) = launched(tmp_path, "--on=inline", "[convolutional]", "faulty-pad", "localise_s: 0\n").itertuples()
    assert (row.status, row.culprit) == ("wrong", "")


def test_an_operation_of_a_torch_program_is_named_with_its_module(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = launched(tmp_path, "--on=inline", "['*']", "faultytorch-linear_1, faultytorch-none", catalog="tinytorch")
    faulty, sound = (rows.loc[("tinytorch:block", f"faultytorch-{x}")] for x in ("linear_1", "none"))
    assert (faulty.status, faulty.culprit, faulty.probe_effect) == ("wrong", "node linear_1 (linear)", "same")
    assert (sound.status, sound.culprit) == ("pass", "")
    capsys.readouterr()
    wanted = [key(rows, "faultytorch-linear_1", "tinytorch:block"), "--results", str(tmp_path / "results")]
    assert localise.main([*wanted, "--out", str(tmp_path / "culprit")]) == NAMED
    said = capsys.readouterr()
    assert "node          linear_1: linear()" in said.out and "  module      value" in said.out
    assert "torch.ops.aten.linear." in (tmp_path / "culprit" / "program.py").read_text()
