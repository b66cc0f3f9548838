"""One number of rows, of cells and of failures, whoever says it: terminal, page, Markdown, site, JUnit."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from rich.console import Console

from farm.plan.config_schema import Gate
from farm.report import Report, print_coverage
from farm.report.faces.exchange import write_junit
from farm.report.faces.markdown import write_markdown_report
from farm.report.faces.page import render_page_of_run
from farm.report.faces.site import render_site_pages
from farm.report.faces.terminal import print_verdict
from farm.report.tables.gate import judge_run_gate
from farm.report.tables.overview import count_report_rows
from farm.report.tables.trends import RunTrends, summarise_run_rows
from tests.farm.test_report import frame, make_row

#: Two samples of a cell, a failure that is known, one that is no backend's fault, one that is new, and what is not
#: judged.
ROWS = frame(
    make_row("pass"),
    make_row("pass", sample=1),
    make_row("wrong", op="torch:known"),
    make_row("wrong", op="torch:known", sample=1),
    make_row("error", op="torch:suite"),
    make_row("wrong", op="torch:new", backend="ort-cpu"),
    make_row("unsupported", op="torch:not", backend="ort-cpu"),
).assign(started_at=pd.Timestamp("2026-01-01", tz="UTC"))
KNOWN: list[dict[str, Any]] = [
    {"op": "torch:known", "backend": "*", "status": "wrong", "reason": "it is so"},
    {"op": "torch:suite", "backend": "*", "status": "error", "reason": "it is not theirs", "fault": "suite"},
]
RUN = {
    "run_id": "20260101-000000-aaaa",
    "name": "n",
    "planned": 7,
    "finished_at": "x",
    "config": {"known_failures": KNOWN},
}
COUNTS = {"rows": 7, "cells": 5, "failures": 4, "new": 1}


@pytest.fixture(scope="module")
def report() -> Report:
    return Report.of(ROWS, RUN)


def test_every_face_says_the_same_numbers(report: Report, tmp_path: Path) -> None:
    assert count_report_rows(report) == COUNTS
    title, verdict = "7 rows of 5 cells", "1 new failure, 3 known (1 no backend's fault)"

    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    print_coverage(report, RUN, console=console)
    print_verdict(report.verdict, console)
    assert title in out.getvalue() and out.getvalue().rstrip().endswith(verdict)

    said = write_markdown_report(report, RUN)
    assert title in said and verdict in said

    page = render_page_of_run(report, RUN)
    for words, count in COUNTS.items():
        assert f"<dt>{words}</dt><dd>{count}</dd>" in page
    assert verdict.replace("'", "&#39;") in page

    root = ET.fromstring(write_junit(report, judge_run_gate(report, Gate())))
    told = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert {words: told[f"run.{words}"] for words in COUNTS} == {words: str(count) for words, count in COUNTS.items()}
    assert sum(suite.get("name") != "gate" for suite in root.iter("testsuite") for _ in suite.iter("testcase")) == 5

    index = dict(render_site_pages(RunTrends.of([summarise_run_rows(ROWS, RUN)])))["index.html"]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", index)).replace("&#39;", "'")
    assert "1 run, 7 rows of 5 cells, 4 failures" in text and verdict in text


def test_headings_add_up_to_the_verdict(report: Report) -> None:
    causes = report.causes
    by_fault = causes[causes["standing"] == "known"].groupby("fault")["rows"].sum()
    assert (int(by_fault["backend"]), int(by_fault["suite"])) == (2, 1)
    assert report.verdict.failures == report.verdict.new + int(by_fault.sum())
