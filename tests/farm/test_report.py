"""Reports: what is counted, what is divided by what, what was not measured, what cannot be injected."""

from __future__ import annotations

import gc
import io
import json
import math
import re
import shlex
import subprocess
import sys
import weakref
from html.parser import HTMLParser
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
from farm.report import coverage, findings, status_table, vendor_by_dtype, write
from farm.report.faces import files
from farm.report.faces.markdown import write_markdown_report
from farm.report.faces.page import (
    LETTERS,
    PASS_ROWS_PER_SQUARE,
    pack_page_payload,
    render_page_of_run,
    select_embedded_rows,
    shorten_page_column,
    write_script_json,
)
from farm.report.faces.terminal import print_coverage, print_verdict
from farm.report.once import once
from farm.report.runs import choose_report_folder
from farm.report.tables.coverage import (
    SEVERITY,
    STATUSES,
    count_built_rows,
    keep_distinct_rows,
    list_frame_lines,
    select_latest_rows,
    table_cell_matrix,
    table_unavailable_backends,
    table_worst_matrix,
)
from farm.report.tables.excused import find_excused_passes
from farm.report.tables.findings import list_oracle_disagreements
from farm.report.tables.kept_results import find_kept_results
from farm.report.tables.overview import list_backend_coverage
from farm.report.tables.view import Report
from farm.report.words import format_percent, format_report_number
from tests.conftest import ROOT

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;\u2028\x1b[31m[bold]`|$(x)"


def make_row(
    status: str = "pass", op: str = "torch:add", backend: str = "torch-cpu", sample: int = 0, **more: Any
) -> dict:
    """One lake row; what is not given is as a row of a case that ran."""
    dtype, variant, run_id = more.get("dtype", "float32"), more.get("variant", ""), more.get("run_id", "r1")
    label = f"{op}.{variant}" if variant else op
    row: dict[str, Any] = {name: None for name in lake.SCHEMA.names}
    row |= {
        "run_id": run_id,
        "case_id": f"forward/{label}/{dtype}/{sample}",
        "attempts": 1,
        "check": "forward",
        "catalog": op.partition(":")[0],
        "op": op,
        "variant": variant,
        "dtype": dtype,
        "sample": sample,
        "seed": 0,
        "backend": backend,
        "vendor": "pytorch",
        "device": "x86",
        "status": status,
        "kind": "",
        "stage": "",
        "error": "",
        "error_type": "",
        "weak": False,
        "runtime_version": "1.0",
    }
    return row | more


def frame(*rows: dict) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=lake.SCHEMA.names)


def synthetic(ops: int, backends: int, count: int, seed: int = 0) -> pd.DataFrame:
    """``count`` rows with distinct keys, spread over ops × backends × dtypes × samples."""
    rng = np.random.default_rng(seed)
    dtypes = np.array(["float32", "float16", "bfloat16", "int64", "complex64"])
    place = rng.choice(ops * backends * len(dtypes) * 8, count, replace=False)
    sample, place = place % 8, place // 8
    dtype, place = dtypes[place % 5], place // 5
    status = rng.choice(STATUSES[:11], count, p=[0.8, 0.04, 0.03, 0.03, 0.01, 0.01, 0.01, 0.02, 0.03, 0.01, 0.01])
    rows = pd.DataFrame(index=range(count), columns=lake.SCHEMA.names)
    rows = rows.assign(
        run_id="r1",
        check="forward",
        catalog="torch",
        variant="",
        sample=sample,
        seed=0,
        attempts=1,
        dtype=dtype,
        op=np.char.add("torch:op", (place // backends).astype(str)),
        status=status,
        weak=rng.random(count) < 0.05,
        backend=np.char.add("backend-", (place % backends).astype(str)),
        vendor="vendor",
        error="",
        kind="",
        stage="",
        error_units=np.where(status == "error", np.nan, rng.exponential(1, count)),
        max_diff=rng.exponential(1, count),
    )
    rows["case_id"] = "forward/" + rows["op"] + "/" + rows["dtype"] + "/" + rows["sample"].astype(str)
    return rows


RUN: dict[str, Any] = {
    "run_id": "r1",
    "name": "quick",
    "config": {"name": "quick"},
    "versions": {"farm": "0.1"},
    "started_at": "2026-01-01T00:00:00Z",
    "finished_at": None,
    "inventory": {
        "backends": {
            "torch-cpu": {"vendor": "pytorch", "available": True, "reason": "", "device": "x86"},
            "ort-qnn": {"vendor": "qualcomm", "available": False, "reason": "no node has an NPU"},
        }
    },
}


def printed(rows: pd.DataFrame | Report, run: dict[str, Any], width: int = 250, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_coverage(rows, run, console=console, **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Page(HTMLParser):
    """What a browser would take from the page: its elements, its text, its embedded data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._data: list[str] = []
        self._within = ""
        self.feed(text)
        self.data: dict[str, Any] = json.loads("".join(self._data))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = "data" if dict(attrs).get("id") == "data" else tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        (self._data if self._within == "data" else self.words).append(data)


def decoded(packed: dict[str, Any], length: int) -> list[Any]:
    """A column of the page as its script reads it."""
    if "c" in packed:
        return [packed["c"]] * length
    if "v" in packed:
        return packed["v"]
    if "i" in packed:
        width, places = packed["w"], [LETTERS.index(letter) for letter in packed["i"]]
        numbers = [
            sum(place * len(LETTERS) ** k for k, place in enumerate(reversed(places[n : n + width])))
            for n in range(0, len(places), width)
        ]
        return [packed["d"][number] for number in numbers]
    pairs = zip(packed["r"][::2], packed["r"][1::2], strict=True)
    return [packed["d"][place] for place, repeats in pairs for _ in range(repeats)]


# ---- what is counted ----


def test_every_status_goes_into_the_denominators_that_the_definition_names() -> None:
    table: Any = coverage(frame(*[make_row(status, sample=number) for number, status in enumerate(STATUSES)]))
    line: Any = table.loc["torch-cpu"]
    assert line["planned"] == len(STATUSES) == 14
    assert line["valid"] == 14 - 3  # invalid, vacuous and skipped are no valid cases
    assert line["judged"] == 7  # pass, imprecise, wrong, error, crash, timeout, oom
    assert line["passed"] == 2 and line["failed"] == 5
    assert line["coverage"] == 7 / 11 and line["pass_rate"] == 2 / 7
    assert all(line[status] == 1 for status in STATUSES)


def test_unsupported_lowers_coverage_and_fallback_is_no_pass() -> None:
    line: Any = coverage(frame(make_row(), make_row("unsupported", sample=1), make_row("fallback", sample=2))).loc[
        "torch-cpu"
    ]
    assert (line["judged"], line["valid"], line["passed"]) == (1, 3, 1)


def test_nothing_divided_by_nothing_is_a_dash_never_a_rate() -> None:
    table: Any = coverage(frame(make_row("skipped"), make_row("unsupported", backend="b2")))
    assert math.isnan(table.loc["torch-cpu", "coverage"]) and math.isnan(table.loc["torch-cpu", "pass_rate"])
    assert table.loc["b2", "coverage"] == 0 and math.isnan(table.loc["b2", "pass_rate"])
    assert format_percent(0, 0) == "–"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (1520, 1566, "97.1 % (1520/1566)"),
        (0, 3, "0 % (0/3)"),
        (3, 3, "100 % (3/3)"),
        (9999, 10000, ">99.9 % (9999/10000)"),
        (1, 100000, "0.001 % (1/100000)"),
    ],
)
def test_a_rate_shows_its_denominator_and_is_whole_only_when_nothing_is_missing(
    part: int, whole: int, text: str
) -> None:
    assert format_percent(part, whole) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (pd.NA, "–"),
        (0.0, "0"),
        (1234.0, "1234"),
        (1.23456e-9, "1.23e-09"),
        (123456.0, "1.23e+05"),
        (math.inf, "inf"),
    ],
)
def test_a_number_has_digits_and_what_was_not_measured_is_a_dash(value: Any, text: str) -> None:
    assert format_report_number(value) == text


def test_a_case_that_ran_again_is_counted_once_with_its_last_attempt() -> None:
    rows = frame(
        make_row("crash"), make_row("pass", attempts=2), make_row("wrong", sample=1), make_row("wrong", sample=1)
    )
    for order in (rows, rows.iloc[::-1]):
        line = coverage(order).loc["torch-cpu"]
        assert (line["planned"], line["pass"], line["crash"], line["wrong"]) == (2, 1, 0, 1)


def test_what_is_asked_is_the_same_however_it_is_asked() -> None:
    """An argument by its place, by its name, or left to its default."""
    asked = []

    @once
    def count_rows(report: Report, brief: bool = False) -> int:
        asked.append(brief)
        return len(report.rows)

    report = Report.of(frame(make_row("pass")), RUN)
    assert [count_rows(report), count_rows(report, False), count_rows(report, brief=False)] == [1, 1, 1]
    assert [count_rows(report, True), count_rows(report, brief=True)] == [1, 1] and asked == [False, True]
    with pytest.raises(TypeError):
        count_rows(report, False, 3)


def test_rows_are_made_ready_once_and_again_where_others_were_put_beside_them() -> None:
    rows = keep_distinct_rows(frame(make_row("crash"), make_row("pass", attempts=2), make_row(sample=1)))
    report = Report.of(rows, RUN)
    assert len(rows) == 2 and keep_distinct_rows(rows) is rows and keep_distinct_rows(report.rows) is report.rows
    twice = pd.concat([rows, rows])
    assert len(keep_distinct_rows(twice)) == 2 and len(keep_distinct_rows(twice[twice["sample"] == 0])) == 1


def test_the_same_case_in_two_runs_is_two_rows_and_latest_takes_the_newer_run() -> None:
    rows = frame(make_row("pass", run_id="r2"), make_row("wrong"), make_row("error", op="torch:old"))
    assert coverage(rows).loc["torch-cpu", "planned"] == 3
    line: Any = coverage(select_latest_rows(rows, ["r1", "r2"])).loc["torch-cpu"]
    assert (line["planned"], line["pass"], line["error"]) == (2, 1, 1)


def test_sums_over_any_column_agree() -> None:
    rows = synthetic(ops=40, backends=4, count=2000)
    total: Any = coverage(rows, by=()).loc["all"]
    for by in ("vendor", "backend", "dtype", "catalog", "op", ("op", "backend")):
        table = coverage(rows, by=by)
        for name in ("planned", "valid", "judged", "passed", "weak", "wrong"):
            assert table[name].sum() == total[name], (by, name)
    assert table_cell_matrix(rows)["planned"].sum() == 2000
    assert vendor_by_dtype(rows)["planned"].sum() == 2000
    assert status_table(rows)["planned"].sum() == 2000


def test_an_unknown_column_and_an_unknown_status_are_said() -> None:
    with pytest.raises(ValueError, match="cannot group by colour"):
        coverage(frame(make_row()), by="colour")
    with pytest.raises(ValueError, match="outside the closed set: 'maybe'"):
        coverage(frame(make_row("maybe")))


def test_a_pass_of_a_weak_sample_is_no_evidence() -> None:
    rows = frame(
        make_row(weak=True),
        make_row(sample=1, weak=True),
        make_row("unsupported", sample=2, weak=False),
        make_row(op="torch:mul", weak=True),
        make_row(op="torch:mul", sample=1, weak=None),
        make_row("unsupported", op="torch:sub", weak=True),
        make_row("wrong", op="torch:div", weak=True),
        make_row(op="torch:div", sample=1, weak=True),
        make_row("imprecise", op="torch:pow", weak=True),
    )
    squares: Any = table_cell_matrix(rows)["weakly_tested"]
    assert squares[squares].index.tolist() == [("torch:add", "torch-cpu")]
    line: Any = coverage(rows).loc["torch-cpu"]
    assert (line["weak"], line["weak_cells"]) == (4, 1)
    # Alone in its cell it lowers coverage, beside evidence (mul, div) it does not; where a weak sample fails, or is
    # imprecise, that is seen all the same.
    assert (line["planned"], line["valid"], line["judged"], line["passed"], line["failed"]) == (9, 7, 3, 2, 1)
    assert (line["coverage"], line["pass_rate"]) == (3 / 7, 2 / 3)
    text = printed(rows, RUN)
    assert "weakly tested cells 1 (4 weak passes: no evidence)" in text and "pass 5 (4 weak)" in text
    assert "pass 5 (4 weak)" in write_markdown_report(rows, RUN)
    assert format_percent(3, 7) in render_page_of_run(rows, RUN)


def test_a_run_of_weak_passes_alone_has_judged_nothing() -> None:
    line: Any = coverage(frame(make_row(weak=True))).loc["torch-cpu"]
    assert (line["judged"], line["coverage"]) == (0, 0) and math.isnan(line["pass_rate"])


def test_where_oracles_disagree_is_said_with_both_numbers_and_blames_nobody() -> None:
    differ = {
        "kind": "oracle",
        "oracle": "float64",
        "second_oracle": "scipy",
        "oracles_units": 77.0,
        "error_units": 0.25,
        "second_units": 76.5,
        "op": "torch:special.zeta",
        "error": "the oracles float64 and scipy disagree <b>",
    }
    rows = frame(
        make_row("invalid", **differ),
        make_row("invalid", **differ | {"oracles_units": 5.0}, sample=1),
        make_row("invalid", **differ, backend="ort-cpu"),
        make_row("invalid", op="torch:none"),
        make_row(),
    )
    found: Any = list_oracle_disagreements(rows)
    assert len(found) == 1
    line = found.iloc[0]
    assert (line["oracles_units"], line["units"], line["second_units"], line["samples"]) == (77, 0.25, 76.5, 2)
    assert line["backends"] == "ort-cpu, torch-cpu" and line["reproduce"].startswith("farm reproduce '")
    elementary: Any = list_oracle_disagreements(
        frame(make_row("invalid", **differ, op_class="elementary", max_ulp=3.0))
    ).iloc[0]
    assert elementary["units"] == 3
    for text in (printed(rows, RUN), write_markdown_report(rows, RUN), render_page_of_run(rows, RUN)):
        assert "Oracles disagree: 1 op and dtype, no backend is blamed" in text
        assert all(words in text for words in ("torch:special.zeta", "float64 and scipy", "77", "0.25", "76.5"))
    assert "<b>" not in render_page_of_run(rows, RUN).partition("Oracles disagree")[2]
    assert coverage(rows).loc["torch-cpu", "failed"] == 0
    nothing = frame(make_row())
    assert list_oracle_disagreements(nothing).empty
    assert not any(
        "Oracles disagree" in text
        for text in (printed(nothing, RUN), write_markdown_report(nothing, RUN), render_page_of_run(nothing, RUN))
    )


def test_weak_cells_are_counted_per_dtype() -> None:
    rows = frame(make_row(weak=True), make_row(dtype="float16", weak=False), make_row(dtype="bfloat16", weak=True))
    assert coverage(rows).loc["torch-cpu", "weak_cells"] == 2
    assert not table_cell_matrix(rows)["weakly_tested"].any()


def test_a_square_shows_its_worst_status_and_an_empty_sample_does_not_hide_a_pass() -> None:
    rows = frame(
        make_row(),
        make_row("wrong", sample=1),
        make_row("crash", sample=2),
        make_row(op="torch:mul"),
        make_row("vacuous", op="torch:mul", sample=1),
        make_row("vacuous", op="torch:sub"),
    )
    assert table_worst_matrix(rows)["torch-cpu"].to_dict() == {
        "torch:add": "crash",
        "torch:mul": "pass",
        "torch:sub": "vacuous",
    }
    assert set(SEVERITY) == set(STATUSES)


def test_variants_are_ops_of_their_own() -> None:
    matrix = table_worst_matrix(frame(make_row(), make_row("wrong", variant="out")))
    assert matrix["torch-cpu"].to_dict() == {"torch:add": "pass", "torch:add.out": "wrong"}


def test_findings_are_one_row_a_cell_most_severe_first_and_reproducible() -> None:
    rows = frame(
        make_row("imprecise", op="torch:a"),
        make_row("wrong", op="torch:b", error_units=50.0),
        make_row("wrong", op="torch:b", sample=1, error_units=900.0),
        make_row("pass", op="torch:b", sample=2),
        make_row("wrong", op="torch:c", error_units=None, kind="shape"),
        make_row("crash", op="torch:it's"),
    )
    table: Any = findings(rows, limit=None)
    assert table[["status", "op"]].values.tolist() == [
        ["crash", "torch:it's"],
        ["wrong", "torch:c"],
        ["wrong", "torch:b"],
        ["imprecise", "torch:a"],
    ]
    worst: Any = table.iloc[2]
    assert (worst["error_units"], worst["samples"], worst["planned"]) == (900.0, 2, 3)
    assert worst["reproduce"] == "farm reproduce 'r1:forward/torch:b/float32/1:torch-cpu'"
    quoted = table.iloc[0]["reproduce"].removeprefix("farm reproduce ")
    assert shlex.split(quoted) == ["r1:forward/torch:it's/float32/0:torch-cpu", "--child"]  # a crash
    assert len(findings(rows, limit=2)) == 2
    assert findings(frame(make_row())).empty


# ---- what is unavailable ----


def test_an_unavailable_backend_is_a_line_with_its_reason_and_without_numbers(tmp_path: Path) -> None:
    rows = frame(make_row())
    table: Any = coverage(rows, by=("vendor", "backend"), inventory=RUN["inventory"])
    line: Any = table.loc[("qualcomm", "ort-qnn")]
    assert not line["available"] and line["reason"] == "no node has an NPU" and line["planned"] == 0
    assert math.isnan(line["coverage"]) and table.loc[("pytorch", "torch-cpu"), "available"]
    assert table_unavailable_backends(RUN["inventory"]).loc["ort-qnn", "reason"] == "no node has an NPU"
    assert table_worst_matrix(rows, RUN["inventory"])["ort-qnn"].tolist() == ["unavailable"]

    (shown,) = [text for text in printed(rows, RUN).splitlines() if "ort-qnn" in text]
    assert "unavailable: no node has an NPU" in shown and "%" not in shown and shown.count("–") >= 2
    (shown,) = [text for text in write_markdown_report(rows, RUN).splitlines() if "ort-qnn" in text]
    assert "unavailable: `no node has an NPU`" in shown and "%" not in shown
    html = render_page_of_run(rows, RUN)
    first, shown = [text for text in html.splitlines() if "<td" in text and "ort-qnn" in text]
    assert (
        "no node has an NPU" in first and 'class="grey"' in shown and "no node has an NPU" in shown and "%" not in shown
    )
    said = {one["name"]: one["unavailable"] for one in Page(html).data["backends"]}
    assert said == {"torch-cpu": "", "ort-qnn": "no node has an NPU"}


def test_a_backend_that_went_away_in_the_run_keeps_its_numbers() -> None:
    inventory = {"backends": {"torch-cpu": {"vendor": "pytorch", "available": False, "reason": "gone"}}}
    rows = frame(make_row(), make_row("unavailable", sample=1))
    line: Any = coverage(rows, inventory=inventory).loc["torch-cpu"]
    assert (line["planned"], line["judged"], line["available"], line["reason"]) == (2, 1, False, "gone")
    assert "50 % (1/2)" in printed(rows, {"inventory": inventory})


def test_a_run_without_rows_is_dashes_everywhere(tmp_path: Path) -> None:
    rows = frame()
    assert (
        coverage(rows).empty
        and table_cell_matrix(rows).empty
        and findings(rows).empty
        and table_worst_matrix(rows).empty
    )
    assert coverage(rows, by=()).loc["all", "planned"] == 0
    text = printed(rows, RUN)
    assert "Coverage –, pass rate –" in text and "%" not in text
    paths = write(rows, RUN, tmp_path)
    assert all(path.is_file() for path in paths.values())
    page = Page(paths["html"].read_text(encoding="utf-8"))
    assert page.data["rows"]["length"] == 0 and page.data["ops"] == []
    assert coverage(pd.DataFrame(columns=["status", "backend"])).empty


def test_a_run_that_is_not_finished_says_how_much_is_missing() -> None:
    console = Console(file=(out := io.StringIO()), width=100)
    print_verdict(Report.of(frame(make_row()), {**RUN, "planned": 5}).verdict, console)
    assert out.getvalue().startswith("INCOMPLETE: 4 of 5 planned")
    assert "INCOMPLETE" not in Report.of(frame(make_row()), {**RUN, "planned": 1}).verdict.sentence


# ---- what is written ----


def hostile_rows() -> pd.DataFrame:
    return frame(
        make_row(
            "error",
            op="torch:" + HOSTILE,
            backend=HOSTILE,
            vendor=HOSTILE,
            dtype=HOSTILE,
            error=HOSTILE,
            error_type=HOSTILE,
            shapes=HOSTILE,
            placement=HOSTILE,
            kind=HOSTILE,
            stage=HOSTILE,
            device=HOSTILE,
        )
    )


HOSTILE_RUN = {
    "run_id": HOSTILE,
    "name": HOSTILE,
    "config": {HOSTILE: HOSTILE},
    "versions": {HOSTILE: HOSTILE},
    "started_at": HOSTILE,
    "inventory": {"backends": {"gone" + HOSTILE: {"vendor": HOSTILE, "available": False, "reason": HOSTILE}}},
}


def test_hostile_text_stays_text_in_the_page() -> None:
    html = render_page_of_run(hostile_rows(), HOSTILE_RUN)
    page = Page(html)
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe", "object")]
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.data["rows"]["columns"]["error"] == {"c": HOSTILE}  # it is all there, as data
    assert page.data["backends"][0]["name"] == HOSTILE
    assert (
        "<" not in write_script_json(HOSTILE)
        and ">" not in write_script_json(HOSTILE)
        and json.loads(write_script_json(HOSTILE)) == HOSTILE
    )


def test_the_page_is_one_file_that_asks_for_nothing_and_inserts_text_only() -> None:
    page = Page(html := render_page_of_run(frame(make_row()), RUN))
    links = [value for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")]
    assert all(link is not None and link.startswith(("data:", "#")) for link in links), links
    (policy,) = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://|fetch\(", html)


def test_hostile_text_cannot_drive_the_terminal_or_the_markdown() -> None:
    text = printed(hostile_rows(), HOSTILE_RUN)
    assert "\x1b" not in text and "[bold]" in text
    lines = write_markdown_report(hostile_rows(), HOSTILE_RUN).splitlines()
    for line in lines:
        assert "<" not in re.sub(r"`[^`]*`", "", line), line  # only inside code spans, where it is literal
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("| `")}) <= 3


def test_an_error_is_no_formula_in_the_csv(tmp_path: Path) -> None:
    paths = write(
        frame(make_row("error", error="=HYPERLINK(1)"), make_row("error", op="torch:b", error='a, "b"\nc')),
        RUN,
        tmp_path,
    )
    table: Any = pd.read_csv(paths["findings"])
    assert table["error"].tolist() == ["'=HYPERLINK(1)", 'a, "b"\nc']


def test_the_files_hold_the_tables(tmp_path: Path) -> None:
    rows = synthetic(ops=30, backends=3, count=1000)
    paths = write(rows, RUN, tmp_path / "new" / "dir", by="dtype")
    assert set(paths) == {
        "new",
        "causes",
        "pairs",
        "ranking",
        "coverage",
        "squares",
        "matrix",
        "vendor_by_dtype",
        "vendor_by_op_class",
        "status",
        "findings",
        "coverage_by_dtype",
        "markdown",
        "html",
    }
    table: Any = pd.read_csv(paths["coverage"]).set_index("backend")
    assert table.loc["backend-0", "judged"] == coverage(rows).loc["backend-0", "judged"]
    assert pd.read_csv(paths["matrix"]).shape == (30, 1 + 3 + 1)
    line: Any = coverage(rows).loc["backend-1"]
    rate = format_percent(line["passed"], line["judged"])
    for name in ("markdown", "html"):
        assert rate in paths[name].read_text(encoding="utf-8")
    assert rate in printed(rows, RUN)


def test_files_of_an_earlier_report_do_not_stay_and_those_of_others_do(tmp_path: Path) -> None:
    rows = synthetic(ops=3, backends=2, count=60)
    paths = write(rows, RUN, tmp_path)
    (tmp_path / "mine.csv").write_text("a\n")
    (tmp_path / files.VIEWS).write_text(json.dumps([*paths, "../mine", 7]))
    (tmp_path.parent / "mine.csv").write_text("a\n")
    rows["status"] = "pass"
    again = write(rows, RUN, tmp_path)
    assert "new" in paths and "new" not in again
    assert {path.stem for path in tmp_path.glob("*.csv")} == {*again, "mine"} - {"markdown", "html"}
    assert (tmp_path.parent / "mine.csv").exists()
    (tmp_path / files.VIEWS).write_text("{")
    assert write(rows, RUN, tmp_path).keys() == again.keys()


def test_what_faces_share_of_a_report_is_not_changed_by_a_table_and_ends_with_it() -> None:
    report = Report.of(synthetic(ops=3, backends=2, count=60), RUN)
    lines = list_backend_coverage(report)
    assert report.views and list_backend_coverage(report) is lines
    assert not any("where" in line for line in lines)
    last = weakref.ref(report)
    del report
    gc.collect()
    assert last() is None


def test_the_page_embeds_exact_counts_all_that_did_not_pass_and_the_worst_that_did() -> None:
    many = [make_row(sample=number, error_units=float(number)) for number in range(20)]
    rows = frame(*many, *[make_row("unsupported", sample=20 + number) for number in range(30)])
    kept = select_embedded_rows(Report.of(rows, RUN).rows)
    assert (kept["status"] == "unsupported").sum() == 30
    passed = kept.loc[kept["status"] == "pass", "error_units"].tolist()
    assert passed == [float(number) for number in range(19, 19 - PASS_ROWS_PER_SQUARE, -1)]
    data = pack_page_payload(Report.of(rows, RUN))
    cells = data["cells"]
    counts = decoded(cells["columns"]["planned"], cells["length"])
    assert dict(zip(decoded(cells["columns"]["status"], cells["length"]), counts, strict=True)) == {
        "pass": 20,
        "unsupported": 30,
    }


def test_the_page_can_name_every_case_it_holds() -> None:
    rows = frame(
        make_row("wrong"),
        make_row("wrong", variant="out", sample=1),
        make_row("wrong", sample=2, case_id="something else"),
        make_row("wrong", sample=3, seed=7, case_id="forward/torch:add/float32/3@7"),
    )
    data = pack_page_payload(Report.of(rows, RUN))
    length = data["rows"]["length"]
    names = decoded(data["rows"]["columns"]["case_id"], length)
    assert length == 4 and sorted(name for name in names if name) == ["something else"]


def test_not_measured_is_null_and_infinite_is_said_in_the_page() -> None:
    rows = frame(
        make_row("wrong", max_diff=math.inf, max_rel=None), make_row("wrong", sample=1, max_diff=None, max_rel=1 / 3)
    )
    columns = pack_page_payload(Report.of(rows, RUN))["rows"]["columns"]
    assert sorted(decoded(columns["max_diff"], 2), key=str) == [None, "inf"]
    assert sorted(decoded(columns["max_rel"], 2), key=str) == [0.333, None]
    assert columns["rmse"] == {"c": None}


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["a"],
        ["a", "a", "b", "b", "b"],
        ["a", "b", "a"],
        [1.5, None, 2.5],
        [0] * 9,
        [1, 1, 1, 2, None, None],
        [None],
    ],
)
def test_a_packed_column_is_the_column(values: list[Any]) -> None:
    assert decoded(json.loads(json.dumps(shorten_page_column(values))), len(values)) == values


def test_long_errors_are_cut_and_say_so() -> None:
    rows = frame(make_row("error", error="x" * 50_000))
    (text,) = select_embedded_rows(Report.of(rows, RUN).rows)["error"]
    assert len(text) < 5_000 and "the lake has the whole text" in text


def test_a_large_run_stays_a_small_page() -> None:
    rows = synthetic(ops=700, backends=20, count=30_000)
    assert len(render_page_of_run(rows, RUN).encode()) < 10_000_000


# ---- the command line ----


@pytest.fixture
def small_lake(tmp_path: Path) -> Path:
    runs = {
        "20260101-aaaa": [make_row("wrong", run_id="20260101-aaaa"), make_row(op="torch:b", run_id="20260101-aaaa")],
        "20260102-bbbb": [make_row(run_id="20260102-bbbb")],
    }
    for run_id, rows in runs.items():
        folder = tmp_path / "lake" / f"run={run_id}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=lake.SCHEMA), folder / "part-0.parquet")
        (folder / "_run.json").write_text(json.dumps({**RUN, "run_id": run_id}))
    return tmp_path / "lake"


def test_the_last_run_is_reported_beside_its_rows(small_lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(small_lake)]) == 0
    out = capsys.readouterr().out
    assert "20260102-bbbb" in out and "100 % (1/1)" in out
    assert (small_lake / "run=20260102-bbbb" / "_report" / "report.html").is_file()
    assert choose_report_folder("s3://bucket/lake", "x") == Path("report-x")


def test_a_run_can_be_named_and_all_runs_give_the_newest_of_every_case(
    small_lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(small_lake), "--run", "20260101-aaaa", "--out", str(small_lake / "o"), "--by", "op"]) == 0
    assert "50 % (1/2)" in capsys.readouterr().out and (small_lake / "o" / "coverage_by_op.csv").is_file()
    assert main([str(small_lake), "--run", "all"]) == 0
    assert "100 % (2/2)" in capsys.readouterr().out and (small_lake / "_report" / "report.md").is_file()


def test_a_run_that_is_not_there_is_answered_with_the_nearest(
    small_lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(small_lake), "--run", "20260101-aaab"]) == 2
    assert "20260101-aaaa" in capsys.readouterr().err
    assert main([str(small_lake / "elsewhere")]) == 2
    assert "no runs in" in capsys.readouterr().err


def test_a_run_without_its_description_is_reported_from_its_rows(
    small_lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_lake / "run=20260102-bbbb" / "_run.json").unlink()
    assert main([str(small_lake)]) == 0
    said = capsys.readouterr()
    assert "without config and inventory" in said.err and "100 % (1/1)" in said.out


def test_what_is_no_record_of_a_run_is_said_and_makes_no_other_run(
    small_lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_lake / "run=20260102-bbbb" / "_run.json").write_text('{"config": 5, "inventory": [1], "name": 3}')
    runs = lake.run_ids(str(small_lake))
    assert main([str(small_lake)]) == 0
    said = capsys.readouterr()
    assert "no mapping as config" in said.err and "no mapping as inventory" in said.err and "failed:" not in said.err
    assert lake.run_ids(str(small_lake)) == runs and "run=20260102-bbbb/_report/report.html" in said.out


def test_report_files_beside_the_rows_do_not_disturb_the_lake(small_lake: Path) -> None:
    assert main([str(small_lake)]) == 0 and main([str(small_lake), "--run", "all"]) == 0
    assert len(lake.read(small_lake)) == 3 and len(pd.read_parquet(small_lake)) == 3


def test_what_was_only_built_does_not_count_as_numbers(tmp_path: Path) -> None:
    numbers = [make_row(sample=k) for k in range(3)] + [make_row("unsupported", "torch:sub")]
    aot = [
        make_row(
            "pass",
            sample=k,
            check="build",
            backend="aot",
            vendor="NVIDIA",
            weak=True,
            case_id=f"build/torch:add/float32/{k}",
        )
        for k in range(4)
    ]
    aot += [
        make_row(
            s,
            "torch:sub",
            sample=k,
            check="build",
            backend="aot",
            vendor="NVIDIA",
            weak=True,
            case_id=f"build/torch:sub/float32/{k}",
        )
        for k, s in enumerate(["unsupported", "error", "invalid", "crash", "fallback"])
    ]
    rows = frame(*numbers, *aot)
    pd.testing.assert_frame_equal(coverage(rows, by=()), coverage(frame(*numbers), by=()))
    assert list(coverage(rows).index) == ["torch-cpu"] and list(table_worst_matrix(rows).columns) == ["torch-cpu"]
    (line,) = list_frame_lines(count_built_rows(rows).reset_index())
    assert line == {
        "vendor": "NVIDIA",
        "backend": "aot",
        "planned": 9,
        "valid": 8,
        "built": 4,
        "refused": 2,
        "failed": 2,
        "build_rate": 4 / 6,
    }
    assert {f["backend"] for f in list_frame_lines(findings(rows, statuses=["error", "crash"]))} == {
        "aot"
    }  # and still a finding
    text = printed(rows, RUN)
    assert "Built, not run: no evidence of numbers" in text and "66.7 % (4/6)" in text and "Coverage 75 % (3/4)" in text
    paths = write(rows, RUN, tmp_path)
    assert "66.7 % (4/6)" in paths["markdown"].read_text() and "no evidence of numbers" in paths["html"].read_text()
    assert "gradients" not in paths and "aot" in paths["built"].read_text()
    assert "built" not in write(frame(*numbers), RUN, tmp_path / "without")
    alone = write(frame(*aot), RUN, tmp_path / "alone")  # nothing but compilers
    assert "66.7 % (4/6)" in alone["html"].read_text() and "Coverage –" in alone["markdown"].read_text()


def test_what_noise_excuses_is_listed_with_the_class_that_would_judge_it() -> None:
    weak = {"weak": True, "excused": 0.33, "op_class": "composite", "numel": 35.0}
    rows = frame(
        make_row(op="user:steep_sin", shapes="5x7 scalar", **weak),
        make_row(op="user:steep_sin", shapes="5x7", sample=1, **weak | {"excused": 0.5}),
        make_row(op="user:cancels", shapes="5x7x9", **weak),
        make_row(op="torch:digamma", shapes="5x7", **weak),
        make_row(op="user:constant", shapes="5x7", **weak | {"excused": 0.0}),
        make_row("wrong", op="user:seen", shapes="5x7", **weak),
    )
    told = find_excused_passes(keep_distinct_rows(rows))[["op", "samples", "excused", "judged_by"]]
    assert told.values.tolist() == [
        ["torch:digamma", 1, 0.33, ""],  # the farm's own table says what it is
        ["user:cancels", 1, 0.33, ""],
        ["user:steep_sin", 2, 0.5, "elementary"],
    ]
    shown = write_markdown_report(rows, {"run_id": "r1"})
    assert "Weak: the noise floor excuses nearly any result" in shown and "elementary" in shown
    older = frame(make_row(weak=True)).drop(columns=["excused"])  # a lake of before
    assert find_excused_passes(keep_distinct_rows(older)).empty and "noise floor excuses" not in write_markdown_report(
        older, {"run_id": "r1"}
    )


def test_gradients_that_a_rounded_result_explains_are_listed() -> None:
    cell = {"op": "torch:tanh", "check": "backward", "limit": 32.0, "error_units": 0.7}
    rows = frame(
        make_row(**cell | {"kept": 4e5}),
        make_row(sample=1, **cell | {"kept": 2e6}),
        make_row(sample=2, **cell | {"kept": 0.7}),
        make_row("imprecise", **cell | {"op": "user:tanh", "kept": 4e5}),
        make_row(**cell | {"op": "torch:sin", "kept": None}),
    )
    assert find_kept_results(keep_distinct_rows(rows))[["op", "rows", "kept"]].values.tolist() == [
        ["torch:tanh", 2, 2e6]
    ]
    assert "Gradients explained by the rounded result" in write_markdown_report(rows, {"run_id": "r1"})
    older = frame(make_row()).drop(columns=["kept"])  # a lake of before
    assert find_kept_results(keep_distinct_rows(older)).empty and "rounded result" not in write_markdown_report(
        older, {"run_id": "r1"}
    )


# ---- first contact: much on many backends, little time ----


def told(rows: pd.DataFrame, run: dict[str, Any], width: int = 80) -> str:
    out = io.StringIO()
    print_coverage(rows, run, console=Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_a_terminal_shows_a_few_groups_each_of_another_backend_and_the_page_three_of_each() -> None:
    ops = ("a", "b", "c", "d")
    rows = frame(*(make_row("wrong", op=f"torch:{op}", backend=f"torch-{b}", vendor=b) for op in ops for b in "uvwxyz"))
    said = told(rows, RUN)
    assert len(set(re.findall(r"^wrong .*(torch-\w)", said, re.MULTILINE))) == 4, said
    assert said.count("farm reproduce") == 1 and "24 groups of similar failures, 4 shown" in said
    (new,) = (view for view in Report.of(rows, RUN).views if view.name == "new")
    shown = [line["backend"] for line in new.select_lines(10)]
    assert all(shown.count(f"torch-{b}") == 3 for b in "uvwxyz")
    alone = told(rows[rows["backend"] == "torch-u"], RUN)
    assert alone.count("farm reproduce") == 1 and "4 groups of similar failures" in alone


def test_a_device_and_its_versions_are_said_once_for_the_modes_of_a_runtime() -> None:
    how = {"device": "NVIDIA H200, sm_90", "runtime_version": "torch 2.11", "vendor": "NVIDIA"}
    rows = frame(*(make_row(backend=f"torch-cuda{mode}", **how) for mode in ("", "-flash", "-math")))
    said = told(rows, RUN, 160)
    assert said.count("NVIDIA H200, sm_90, torch 2.11") == 1 and said.count("as above") == 2


def test_what_is_missing_for_one_reason_is_one_line_and_devices_that_nobody_has_are_another() -> None:
    def missing(name: str, reason: str, absent: str = "") -> dict[str, Any]:
        return {"name": name, "vendor": "x", "available": False, "reason": reason, "absent": absent}

    listed = [missing("jax-cuda", "not installed"), missing("iree-cuda", "not installed")]
    listed += [missing(f"torch-{x}", f"no {x}", x) for x in ("rocm", "xpu", "hpu")]
    run = RUN | {"inventory": {"backends": {entry["name"]: entry for entry in listed}}}
    said = " ".join(told(frame(make_row()), run, 200).split())
    assert said.count("unavailable:") == 2, said
    assert "iree-cuda, jax-cuda" in said and "3 backends" in said and "no device of hpu, rocm, xpu" in said


def test_what_a_budget_reached_is_said_of_each_part_of_the_config() -> None:
    part = {"catalog": "torch", "check": "forward", "distribution": "own", "cells": 8, "left": 6}
    left = {"budget_s": 60, "cells": 6, "cases": {"torch:x": {"torch-cpu": 6}}, "parts": [part]}
    said = told(frame(make_row()), RUN | {"left_out": left})
    assert "What the budget reached" in said and "25 % (2/8)" in said
    assert "What the budget reached" not in told(frame(make_row()), RUN | {"left_out": left | {"parts": []}})


def test_keys_that_differ_only_after_a_separator_are_two_to_every_pandas() -> None:
    """pandas 2 ends a text at a NUL when it groups: two failures would be one, and a view fail."""
    kinds = enumerate(("numbers", "shape"))
    rows = frame(*(make_row("wrong", op=f"torch:{op}", sample=n, kind=kind) for n, kind in kinds for op in "ab"))
    causes = Report.of(rows, {}).causes
    assert len(causes) == 4 and causes["rows"].tolist() == [1] * 4 and causes["reason"].map(type).eq(str).all()


def test_a_report_imports_no_more_of_a_config_than_its_known_failures() -> None:
    code = (
        "import sys, farm.commands.report\nfrom farm.report.tables.view import import_tables\nimport_tables()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    left_out = ("torch", "ray", "onnx", "farm.plan.config", "farm.plan.config_schema", "tasks.wire")
    more = ("tasks.passport.read_sum", "tasks.catalogs.models.own_models")
    assert not {*left_out, *more}.intersection(done.stdout.split())
