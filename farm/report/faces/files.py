"""Reports as files: every view as CSV, all of them as Markdown and as the page."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from farm.report.faces.markdown import write_markdown_diff, write_markdown_document, write_markdown_report
from farm.report.faces.page import render_page_of_run
from farm.report.tables.changes import view_diff
from farm.report.tables.overview import list_headline_lines
from farm.report.tables.view import Report, View

#: The page of a report, and the file with the names of its views that were written as CSV.
PAGE, VIEWS = "report.html", ".views.json"


def write(
    rows: pd.DataFrame | Report, run: Mapping[str, Any], out_dir: str | Path, by: str = "backend"
) -> dict[str, Path]:
    """Write all files of a report into ``out_dir`` (made if missing) and return their paths by what they hold. The CSVs
    of views that only an earlier report there had are removed.

    ``rows``: lake rows, or their report; ``run``: the run's ``_run.json`` as a dict; ``by``: one more coverage table,
    by this column.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    report = Report.of(rows, run, by)
    paths = {view.name: write_view_csv(view, out) for view in report.views if "csv" in view.faces}
    for name in _read_written_views(out) - paths.keys():
        (out / f"{name}.csv").unlink(missing_ok=True)
    (out / VIEWS).write_text(json.dumps([*paths]), encoding="utf-8")
    for name, path, text in (
        ("markdown", out / "report.md", write_markdown_report(report, run)),
        ("html", out / PAGE, render_page_of_run(report, run)),
    ):
        path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        paths[name] = path
    return paths


def _read_written_views(out: Path) -> set[str]:
    """Names of the views that the last report in a folder wrote as CSV; none where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        if isinstance(found := json.loads((out / VIEWS).read_text(encoding="utf-8")), list):
            return {name for name in found if isinstance(name, str) and name == Path(name).name}
    return set()


def write_diff(found: pd.DataFrame, out: Path) -> dict[str, Path]:
    """Write `farm.report.diff` as CSV and Markdown into ``out``; returns their paths by what they hold."""
    out.mkdir(parents=True, exist_ok=True)
    cells = view_diff(found)[-1]
    paths = {"csv": write_view_csv(cells, out), "markdown": out / f"{cells.name}.md"}
    paths["markdown"].write_text(write_markdown_diff(found), encoding="utf-8", errors="replace", newline="\n")
    return paths


def describe_report_files(paths: Mapping[str, Path]) -> str:
    """One line that says what was written: the page, or what there is to read, and what is beside it."""
    first = paths.get("html") or paths["markdown"]
    return f"report: {first} (+ CSV{', Markdown' * (first.suffix == '.html')})"


def write_checklist(view: View, report: Report, out: Path) -> dict[str, Path]:
    """Write a vendor's checklist as CSV and Markdown into ``out``; returns their paths by what they hold."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {"csv": write_view_csv(view, out), "markdown": out / f"{view.name}.md"}
    text = write_markdown_document(list_headline_lines(report), [view], 1_000)
    paths["markdown"].write_text(text, encoding="utf-8", errors="replace", newline="\n")
    return paths


def write_view_csv(view: View, out: Path) -> Path:
    """Write the frame of a view. No error text begins like a formula, since a spreadsheet may open it."""
    frame, path = view.frame, out / f"{view.name}.csv"
    for name in frame.columns.intersection(["error", "error_b"]):
        text = frame[name].astype(str)
        frame = frame.assign(**{name: text.mask(text.str.match(r"[=+\-@\t\r]"), "'" + text)})
    with path.open("w", encoding="utf-8", errors="replace", newline="") as stream:
        frame.to_csv(stream, index=view.index, lineterminator="\n")
    return path
