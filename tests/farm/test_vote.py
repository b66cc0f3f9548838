"""Vote before blame: a failure of a generated case is somebody's only if another vendor or a second oracle says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farm import lake as lakes
from farm.commands import minimise, reproduce
from farm.commands import run as command
from farm.commands.minimise import BAD_INPUT
from farm.exits import FOUND, OK
from farm.lake.upgrade import find_cause_code
from farm.policies.rejudge import rejudge_rows
from farm.policies.vote import CHANGED, COLUMNS, find_suspects_of_vote, undo_vote
from tasks.judge import policy_files
from tasks.judge.policy import Limit
from tasks.operators.table import EVALUATED

SUSPECT = ("invalid", "suspect")


def row(vendor: str, status: str, **values: Any) -> dict[str, Any]:
    blank = {name: "" for name in COLUMNS}
    common = {
        "run_id": "r",
        "case_id": "forward/fuzz:Neg.g1/float32/0",
        "backend": vendor.lower(),
        "vendor": vendor,
        "catalog": "fuzz",
        "check": "forward",
        "op_class": "exact",
        "status": status,
        "kind": "numbers" if status == "wrong" else "",
        "weak": False,
        "output_digest": "right" if status == "pass" else "off",
        "signature": None if status in ("pass", "error") else [9.0],
        "error_units": 9.0,
        "max_ulp": 0.0 if status == "pass" else 9.0,
        "limit": 0.5,
        "compute_precision": "float32",
        "attempts": 1,
    }
    return blank | common | values


def after(*rows: dict[str, Any]) -> list[str]:
    """Status of each row after the vote."""
    table = pd.DataFrame(list(rows))
    changed = find_suspects_of_vote(table)
    assert all((s, k) == SUSPECT for s, k in zip(changed["status"], changed["kind"]))
    assert changed["acquitted"].map(bool).all() and set(changed["was_status"]) <= {"wrong", "imprecise", "error"}
    return table["status"].where(~table.index.isin(changed.index), "invalid").tolist()


def judged(vendor: str, ulps: float, **values: Any) -> dict[str, Any]:
    """A row with what judging it again reads."""
    metrics = {
        "max_ulp": ulps,
        "max_diff": ulps,
        "error_units": ulps,
        "mismatched": 1,
        "nonfinite": 0,
        "numel": 4,
        "classic": False,
    }
    common = {"op": "fuzz:Neg", "variant": "g1", "dtype": "float32", "op_class": "elementary", "oracle": "farm-float64"}
    status = "wrong" if ulps > 4 else "pass"
    return row(vendor, status, **{"oracles_units": None, "flip_units": None} | common | metrics | values)


def test_judging_again_votes_as_the_run_does() -> None:
    strict, lax = (
        replace(policy_files.load_policy("error_units"), limits=(Limit("bound", "", ulps=x),)) for x in (0.5, 64.0)
    )
    # The only one that is right by the run's policy is wrong by a stricter one: nobody stands with the reference any
    # more.
    rows = pd.DataFrame([judged("A", 9.0), judged("B", 1.0, output_digest="near", signature=[1.0])])
    assert find_suspects_of_vote(rows).empty
    made = rejudge_rows(rows, strict)
    assert made["status"].tolist() == ["invalid", "invalid"] and made["kind"].tolist() == ["suspect", "suspect"]
    # What a vote has acquitted is judged as it was, and voted on again.
    kept = rows.assign(**{name: made[name] for name in CHANGED})
    assert undo_vote(kept)["status"].tolist() == ["wrong", "imprecise"]
    assert rejudge_rows(kept, lax)["status"].tolist() == ["pass", "pass"]


def test_what_a_row_was_is_read_of_an_older_lake(tmp_path: Path) -> None:
    """Before there were columns for it, a sentence in the error told it."""
    told = "suspect reference: neither another vendor's; it was wrong numbers: 3 of 4: off; it was so"
    names = ("run_id", "case_id", "backend", "op", "dtype", "status", "kind", "error")
    old = [
        ("r", "a", "x", "fuzz:Neg", "float32", "invalid", "suspect", told),
        ("r", "b", "x", "fuzz:Neg", "float32", "invalid", "oracle", told.replace("wrong numbers", "error")),
        ("r", "c", "x", "fuzz:Neg", "float32", "wrong", "numbers", told),
        ("r", "d", "x", "fuzz:Neg", "float32", "invalid", "spec", None),
    ]
    (tmp_path / "run=r").mkdir()
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*old))))), tmp_path / "run=r" / "part-1.parquet")
    rows = lakes.read(str(tmp_path), "r").set_index("case_id").astype(object)
    rows = rows.where(rows.notna(), None)
    assert rows["acquitted"].tolist() == ["neither another vendor's"] * 2 + [None] * 2
    assert undo_vote(rows)["status"].tolist() == ["wrong", "error", "wrong", "invalid"]
    assert undo_vote(rows)["kind"].tolist() == ["numbers", "", "numbers", "spec"]
    assert rows["error"].tolist() == ["3 of 4: off; it was so"] * 2 + [told, None]
    few = lakes.read_table(str(tmp_path), "r", ["case_id", "was_status"]).to_pylist()
    assert [x["was_status"] for x in few] == ["wrong", "error", None, None]


def test_one_runtime_alone_is_not_blamed() -> None:
    assert after(row("A", "wrong")) == ["invalid"]
    assert after(row("A", "error")) == ["invalid"]


def test_a_second_oracle_is_enough() -> None:
    assert after(row("A", "wrong", second_oracle="onnx-float64")) == ["wrong"]


def test_another_vendor_with_the_reference_is_enough() -> None:
    assert after(row("A", "wrong"), row("B", "pass")) == ["wrong", "pass"]
    assert after(row("A", "error"), row("B", "pass")) == ["error", "pass"]


def test_a_weak_pass_is_no_support() -> None:
    assert after(row("A", "wrong"), row("B", "pass", weak=True)) == ["invalid", "pass"]


def test_all_against_the_reference() -> None:
    assert after(row("A", "wrong"), row("B", "wrong")) == ["invalid", "invalid"]


def test_three_that_agree_with_one_another_outvote_reference_and_second_oracle() -> None:
    three = [row(v, "wrong", second_oracle="onnx-float64") for v in "ABC"]
    assert after(*three) == ["invalid"] * 3
    apart = [
        row(v, "wrong", second_oracle="onnx-float64", output_digest=v, signature=[9.0 * k])
        for k, v in enumerate("ABC", 1)
    ]
    assert after(*apart) == ["wrong"] * 3
    one_vendor = [row("A", "wrong", second_oracle="onnx-float64", backend=name) for name in "xyz"]
    assert after(*one_vendor) == ["wrong"] * 3


@pytest.mark.parametrize(("code", "outvoted"), [("arithmetic", False), ("other", True), ("cast", True)])
def test_who_loses_digits_in_the_same_way_is_not_independent(code: str, outvoted: bool) -> None:
    """What one of those that agree is explained by is so of all. It is the code that counts: the sentence may be put
    otherwise."""
    said = {"cause": "sums in single precision, added up as they come", "cause_code": code}
    three = [row(v, "wrong", **(said if v == "B" else {})) for v in "ABC"]
    others = [row("D", "wrong", output_digest="D", signature=[99.0]), row("E", "pass")]
    assert after(*three, *others) == ["invalid" if outvoted else "wrong"] * 4 + ["pass"]


@pytest.mark.parametrize(
    ("cause", "outvoted"),
    [
        ("softplus as log(1 + exp(x)), in float32", False),
        ("zero everywhere or tanh as (exp(2x) - 1)/(exp(2x) + 1), in float32", False),
        ("accumulated in float16", False),
        ("inputs are truncated to bfloat16", False),
        ("zero everywhere", True),
        ("ddof: divided by n, not n - 1", True),
        ("reduced along axis 0, not 1", True),
        ("subnormal results are flushed to zero in float32", True),
    ],
)
def test_rows_of_an_older_farm_have_the_sentence_alone(cause: str, outvoted: bool) -> None:
    """Their vote is what it was; without anybody with the reference, all are acquitted."""
    three = [row(v, "wrong", cause_code=find_cause_code(cause if v == "B" else "")) for v in "ABC"]
    others = [row("D", "wrong", output_digest="D", signature=[99.0]), row("E", "pass")]
    assert after(*three, *others) == ["invalid" if outvoted else "wrong"] * 4 + ["pass"]
    assert (
        after(*(one | {"second_oracle": "onnx-float64"} for one in three)) == ["invalid" if outvoted else "wrong"] * 3
    )
    assert after(*three) == ["invalid"] * 3


def test_an_older_lake_s_causes_have_codes_as_they_are_read(tmp_path: Path) -> None:
    said = ["accumulated in float16", "zero everywhere", "", None]
    part = {name: ["x"] * 4 for name in ("run_id", "backend", "op", "dtype", "status", "kind")}
    part |= {"run_id": ["r"] * 4, "case_id": list("abcd"), "cause": said}
    (tmp_path / "run=r").mkdir()
    pq.write_table(pa.table(part), tmp_path / "run=r" / "part-1.parquet")
    few = lakes.read_table(str(tmp_path), "r", ["case_id", "cause_code"]).to_pylist()
    assert [x["cause_code"] or "" for x in sorted(few, key=lambda x: x["case_id"])] == ["arithmetic", "other", "", ""]
    # What has codes is read as it stands: its sentences may be put otherwise.
    pq.write_table(pa.table({**part, "cause_code": ["other"] * 4}), tmp_path / "run=r" / "part-1.parquet")
    assert set(lakes.read(str(tmp_path), "r")["cause_code"]) == {"other"}


def test_who_contradicts_itself_needs_no_reference() -> None:
    rows = pd.DataFrame(
        [row("A", "wrong", kind="contradicted"), row("B", "wrong"), row("C", "wrong"), row("D", "wrong")]
    )
    assert list(find_suspects_of_vote(rows).index) == [1, 2, 3]


def test_crashes_and_other_catalogs_are_left_alone() -> None:
    assert after(row("A", "crash")) == ["crash"]
    assert after(row("A", "wrong", catalog="onnx")) == ["wrong"]


@pytest.mark.parametrize("planted", [False, True])
def test_a_wrong_reference_blames_nobody(
    planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every runtime is against it, and onnx's evaluator too; with the right one all pass."""
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    if planted:
        monkeypatch.setitem(EVALUATED, "Neg", lambda call: [np.array(call.inputs[0])])
    (tmp_path / "x.yaml").write_text(
        "catalogs: [{name: fuzz, ops: [Neg], samples: 4}]\ndtypes: [float32]\nbackends: [ort-cpu, openvino-cpu]\n"
    )
    code = command.main([str(tmp_path / "x.yaml"), "--on", "inline", "--results", str(tmp_path / "lake")])
    rows = lakes.read(str(tmp_path / "lake"))
    found = set(zip(rows["status"], rows["kind"]))
    assert code == (FOUND if planted else OK) and len(rows) == 8, "what judged nothing is no success"
    assert found == ({SUSPECT} if planted else {("pass", "")})
    # The row alone is what it was before the vote, and no defect of the runtime's.
    key = f"{rows['run_id'][0]}:{rows['case_id'][0]}:ort-cpu"
    assert reproduce.main([key, "--results", str(tmp_path / "lake")]) == 0
    said = capsys.readouterr().out
    assert ("acquitted     the reference is suspect: neither another vendor" in said) is planted
    assert f"stored        {'wrong (numbers)' if planted else 'pass'} on ort-cpu" in said
    assert minimise.main([key, "--results", str(tmp_path / "lake")]) == BAD_INPUT
    assert f"is {'invalid' if planted else 'pass'} on ort-cpu: only failed" in capsys.readouterr().err
