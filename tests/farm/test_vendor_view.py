"""The vendor view: who agrees with whom on one case, what one vendor alone gets wrong, what changed between two backends."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from farm import lake
from farm.commands.report import main
from farm.report import by_vendor, case, diff, unique
from farm.report.faces.markdown import write_markdown_diff
from farm.report.faces.page import pack_page_payload, render_page_of_run
from farm.report.faces.terminal import print_case_agreement, print_coverage, print_diff
from farm.report.tables.agreement import group_agreeing_rows
from farm.report.tables.changes import find_diff_exit_code
from farm.report.tables.coverage import keep_distinct_rows, sort_backend_names
from farm.report.tables.view import Report
from tests.farm.test_report import RUN, decoded, frame, make_row

CASE = "forward/torch:add/float32/0"
HOSTILE = "</script><b>|`\x1b[31m"


def outcome(
    backend: str, status: str = "pass", errors: float | list[float] = 0.5, digest: str = "", **more: Any
) -> dict:
    """A row of a case that gave a result; ``errors``: its signature; vendor: the name before the first dash."""
    signed = [float(x) for x in errors] if isinstance(errors, list) else [errors] * 16
    return make_row(
        status=status,
        backend=backend,
        vendor=more.pop("vendor", backend.partition("-")[0]),
        op_class="composite",
        limit=32.0,
        digest="same",
        error_units=max(map(abs, signed)),
        signature=signed,
        output_digest=digest or f"{backend}-{status}",
        compute_precision="float32",
        **more,
    )


def test_the_outlier_is_named_and_who_agrees_with_whom() -> None:
    rows = frame(
        outcome("ort-cpu", digest="b1"),
        outcome("ort-cpu@1.20.1", digest="b1"),
        outcome("jax-cpu", errors=-3.0),
        outcome("tvm-cpu", "wrong", errors=900.0),
        outcome("iree-cpu", "crash", errors=0.0) | {"signature": None, "output_digest": "", "error_units": None},
    )
    table = case(rows, CASE).set_index("backend")
    assert table["agrees"].to_dict() == {
        "iree-cpu": "",
        "jax-cpu": "reference",
        "ort-cpu": "reference",
        "ort-cpu@1.20.1": "reference",
        "tvm-cpu": "A",
    }
    assert table.index[table["outlier"]].tolist() == ["tvm-cpu"]
    assert table.at["ort-cpu", "same_bytes"] == "ort-cpu@1.20.1" and not table.at["jax-cpu", "same_bytes"]
    said = " ".join(case(rows, CASE).attrs["verdict"])
    assert (
        "3 backends of 2 vendors agree with the reference" in said
        and "Outlier: tvm-cpu" in said
        and "No result: iree-cpu (crash)" in said
    )
    assert "farm reproduce" in table.at["tvm-cpu", "reproduce"]


def test_where_most_stand_outside_nobody_is_the_outlier() -> None:
    apart = [outcome(f"{name}-1", "imprecise", 900.0 + 100 * k, kind="numbers") for k, name in enumerate("abcd")]
    table = case(frame(outcome("z-1"), *apart, outcome("e-1", "imprecise", 1200.0, kind="numbers")), CASE)
    assert not table["outlier"].any()
    assert table.attrs["verdict"] == [
        "1 backend of 1 vendor agrees with the reference: z-1.",
        "5 backends of 5 vendors do not: check the op and its limit before blaming one.",
        "2 backends of 2 vendors agree with one another: d-1, e-1 (imprecise numbers, 1200 against 32).",
        "On their own: a-1 (imprecise numbers, 900 against 32); b-1 (imprecise numbers, 1000 against 32); "
        "c-1 (imprecise numbers, 1100 against 32).",
        "More vendors agree with one another than with the reference: check the reference.",
    ]


def test_results_outside_agree_within_the_limit_of_each_other_not_by_their_size() -> None:
    wrong = [outcome("a-1", "wrong", 900.0), outcome("b-1", "wrong", 910.0), outcome("c-1", "wrong", -905.0)]
    table = case(frame(outcome("z-1"), *wrong), CASE).set_index("backend")
    assert table.at["a-1", "agrees"] == table.at["b-1", "agrees"] == "A" and table.at["c-1", "agrees"] == "B"
    far = case(frame(*wrong), CASE).attrs["distances"]
    assert far.at["a-1", "b-1"] == pytest.approx(10) and far.at["a-1", "c-1"] == pytest.approx(1805)


def test_the_very_same_bytes_agree_without_a_signature_and_other_precisions_cannot_be_told() -> None:
    rows = frame(
        *(
            outcome(b, "wrong", 900.0, digest=d) | {"signature": None}
            for b, d in (("a-1", "x"), ("b-1", "x"), ("c-1", "y"))
        )
    )
    assert case(rows, CASE)["agrees"].tolist() == ["A", "A", "B"]
    rows = frame(outcome("a-1", "wrong", 900.0), outcome("b-1", "wrong", 900.0) | {"compute_precision": "float16"})
    assert case(rows, CASE)["agrees"].tolist() == ["A", "B"]


def test_misplaced_nan_agree_only_where_they_stand_in_the_same_places() -> None:
    rows = frame(
        *(outcome(b, "wrong", e) for b, e in (("a-1", [np.inf, 0.0]), ("b-1", [np.inf, 0.0]), ("c-1", [0.0, np.inf])))
    )
    assert case(rows, CASE)["agrees"].tolist() == ["A", "A", "B"]


def test_vendors_that_agree_against_the_reference_make_it_suspicious() -> None:
    rows = frame(outcome("a-1", "wrong", 900.0), outcome("b-1", "wrong", 901.0))
    assert "suspect the reference" in " ".join(case(rows, CASE).attrs["verdict"])
    apart = frame(outcome("a-1", "wrong", 900.0), outcome("b-1", "wrong", 100.0))
    assert "no two vendors" in " ".join(case(apart, CASE).attrs["verdict"])
    one = frame(
        outcome("a-1", "wrong", 900.0), outcome("a-2", "wrong", 901.0)
    )  # two modes of one runtime are one witness
    assert "suspect" not in " ".join(case(one, CASE).attrs["verdict"])


def test_rows_of_older_schemas_are_read_and_say_what_they_do_not_keep() -> None:
    rows = frame(outcome("a-1"), outcome("b-1", "wrong", 900.0)).drop(columns=["signature", "output_digest"])
    assert case(rows, CASE)["agrees"].tolist() == ["reference", "?"]
    assert diff(rows, "a-1", "b-1").attrs["with_bytes"] == 0


def test_an_unknown_case_or_backend_names_the_nearest() -> None:
    rows = frame(outcome("a-1"))
    with pytest.raises(ValueError, match="did you mean forward/torch:add/float32/0"):
        case(rows, "forward/torch:ad/float32/0")
    with pytest.raises(ValueError, match="there are a-1"):
        diff(rows, "a-1", "a-2")


def vendors() -> pd.DataFrame:
    rows = [outcome("a-1", "wrong", 900.0), outcome("b-1"), outcome("c-1")]
    rows += [outcome(b, "wrong", 50.0 + k, op="torch:mul") for k, b in enumerate(("a-1", "b-1", "b-2"))]
    rows += [outcome("a-1", "wrong", 50.0, op="torch:sub", weak=True), outcome("b-1", op="torch:sub", weak=True)]
    rows += [
        make_row(
            op="torch:add",
            backend="c-1",
            vendor="c",
            check="build",
            case_id="build/torch:add/float32/0",
            status="error",
        )
    ]
    return frame(*rows)


def test_what_one_vendor_alone_and_what_everybody_gets_wrong() -> None:
    found = unique(vendors()).set_index("op")
    assert (
        found.at["torch:add", "alone"] == "a"
        and found.at["torch:add", "passed"] == "b, c"
        and not found.at["torch:add", "everybody"]
    )
    assert (
        found.at["torch:mul", "everybody"]
        and found.at["torch:mul", "failed"] == "a, b"
        and found.at["torch:mul", "agree"]
    )
    assert "torch:sub" not in found.index  # a weak pass is no witness
    table = by_vendor(vendors())
    assert table.loc[("a", "float32"), ["alone", "everybody", "judged", "passed"]].tolist() == [1, 1, 3, 0]
    assert table.loc[("b", "float32"), ["backends", "alone", "everybody"]].tolist() == [2, 0, 1]
    assert table.at[("c", "float32"), "failed"] == 0  # a build is no number
    assert by_vendor(vendors(), "op_class").index.get_level_values(1).unique().tolist()[-1] == "composite"


def pair() -> pd.DataFrame:
    """Every change once, from a-1 to a-2."""
    statuses = [
        ("regression", "pass", "wrong"),
        ("new failure", "unsupported", "crash"),
        ("lost coverage", "wrong", "fallback"),
        ("other failure", "wrong", "error"),
        ("less precise", "pass", "imprecise"),
        ("fix", "error", "pass"),
        ("new coverage", "unsupported", "pass"),
        ("more precise", "imprecise", "pass"),
        ("same", "wrong", "wrong"),
        ("same", "unsupported", "invalid"),
    ]
    rows = []
    for k, (_, before, after) in enumerate(statuses):
        rows += [outcome("a-1", before, op=f"torch:{k}"), outcome("a-2", after, op=f"torch:{k}")]
    rows += [outcome("a-1", op="torch:grown"), outcome("a-2", errors=8.0, op="torch:grown")]
    rows += [outcome("a-1", op="torch:bytes", digest="x"), outcome("a-2", op="torch:bytes", digest="x")]
    rows += [outcome("a-1", op="torch:other"), outcome("a-2", "wrong", op="torch:other") | {"digest": "another"}]
    rows += [outcome("a-1", op="torch:gone"), outcome("a-2", op="torch:new")]
    made = frame(*rows)
    made.attrs["changes"] = {f"torch:{k}": name for k, (name, *_) in enumerate(statuses)}
    return made


def test_every_change_is_told_by_its_name() -> None:
    rows = pair()
    table = diff(rows, "a-1", "a-2")
    wanted = rows.attrs["changes"] | {
        "torch:grown": "less precise",
        "torch:bytes": "same",
        "torch:other": "other inputs",
    }
    assert table.set_index("op")["change"].to_dict() == wanted
    assert table["change"].iloc[0] == "regression" and find_diff_exit_code(table) == 1
    assert (table.attrs["only_a"], table.attrs["only_b"]) == (1, 1)
    assert table.set_index("op").at["torch:bytes", "same_bytes"] == 1 and table.attrs["same_bytes"] == 1
    assert (
        find_diff_exit_code(diff(rows[rows["op"].isin(["torch:5", "torch:6", "torch:8", "torch:4"])], "a-1", "a-2"))
        == 0
    )


def test_a_cell_is_called_after_the_worst_of_its_samples() -> None:
    rows = frame(
        *(
            outcome(b, s, sample=k)
            for k, (x, y) in enumerate([("pass", "pass"), ("pass", "wrong"), ("wrong", "pass")])
            for b, s in (("a-1", x), ("a-2", y))
        )
    )
    (line,) = diff(rows, "a-1", "a-2").to_dict("records")
    assert (line["change"], line["changed"], line["samples"]) == ("regression", 1, 3) and line["case_id"].endswith("/1")


def test_one_backend_in_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, status in (("20260101-1", "pass"), ("20260102-2", "wrong")):
        rows = frame(outcome("a-1", status, run_id=run), outcome("b-1", run_id=run))
        (tmp_path / f"run={run}").mkdir()
        pq.write_table(
            pa.Table.from_pylist(rows.astype(object).where(rows.notna(), None).to_dict("records"), schema=lake.SCHEMA),
            tmp_path / f"run={run}" / "part-0.parquet",
        )
        lake.write_run_record(lake.open_lake(tmp_path), run, {"run_id": run})
    assert main(["--results", str(tmp_path), "--diff", "20260101-1:a-1", "a-1"]) == 1
    assert "regression 1 cell " in capsys.readouterr().out
    assert main(["--results", str(tmp_path), "--diff", "20260101-1:b-1", "20260102-2:b-1"]) == 0
    assert (tmp_path / "_report").glob("diff-*.csv")
    assert main(["--results", str(tmp_path), "--diff", "a-1", "nosuch"]) == 2
    assert main(["--results", str(tmp_path), "--case", CASE]) == 0
    assert "Outlier: a-1" in capsys.readouterr().out
    assert main(["--results", str(tmp_path), "--case", "nonsense"]) == 2
    assert main(["--results", str(tmp_path), "--by", "vendor"]) == 0
    assert "Only this vendor is wrong" in capsys.readouterr().out


def test_versions_stand_beside_their_backend_newest_first() -> None:
    names = ["ort-cpu@1.9.0", "ort-webgpu", "ort-cpu@1.20.1", "ort-cpu", "ort-cpu@1.16.3", "jax-cpu"]
    assert sorted(names, key=lambda n: sort_backend_names("", n)) == [
        "jax-cpu",
        "ort-cpu",
        "ort-cpu@1.20.1",
        "ort-cpu@1.16.3",
        "ort-cpu@1.9.0",
        "ort-webgpu",
    ]


def test_the_page_holds_every_outcome_side_by_side() -> None:
    rows = vendors()
    data = pack_page_payload(Report.of(rows, RUN))
    names = [one["name"] for one in data["backends"]]
    columns = {name: decoded(what, data["sides"]["length"]) for name, what in data["sides"]["columns"].items()}
    add = columns["label"].index(data["ops"].index("torch:add"))
    assert {names[k]: s for k, s in enumerate(columns["status"][add]) if s != "."} == {
        "a-1": "W",
        "b-1": "P",
        "c-1": "P",
    }
    assert {names[k]: s for k, s in enumerate(columns["group"][add]) if s != "."} == {
        "a-1": "A",
        "b-1": "r",
        "c-1": "r",
    }
    assert data["outcomes"]["length"] == sum(s != "." for text in columns["status"] for s in text)
    assert all(ord(c) < 128 for text in columns["bytes"] for c in text)
    kept = decoded(data["rows"]["columns"]["case"], data["rows"]["length"])
    assert sorted(set(kept)) == [0, 1, 2]


def test_emulated_and_quarantined_are_said_and_hostile_names_stay_text() -> None:
    rows = vendors()
    rows["execution"] = np.where(rows["backend"] == "a-1", "emulated", "")
    rows["op"] = rows["op"].replace("torch:add", f"torch:{HOSTILE}")
    run = RUN | {
        "quarantined": [
            {
                "scope": "amd",
                "node": "n1",
                "device": "0",
                "why": HOSTILE,
                "backends": ["torch-rocm"],
                "failures": 3,
                "evidence": [],
            }
        ]
    }
    text = render_page_of_run(rows, run)
    assert "QUARANTINED: device 0 of n1 for torch-rocm" in text and "emulated x86" in text
    assert "<b>|" not in text and text.count("</script>") == 2
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_coverage(rows, RUN, by="vendor", console=console)
    print_case_agreement(case(rows, rows["case_id"].iloc[0]), console)
    table = diff(rows, "a-1", "b-1")
    print_diff(table, console)
    assert "\x1b[31m" not in out.getvalue() + write_markdown_diff(table)


def test_groups_of_an_empty_lake_are_empty() -> None:
    empty = keep_distinct_rows(frame())
    assert group_agreeing_rows(empty).empty and unique(frame()).empty and by_vendor(frame()).empty
