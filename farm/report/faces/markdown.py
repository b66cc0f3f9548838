"""Views as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.glossary import describe_report_terms
from farm.report.tables.changes import view_diff
from farm.report.tables.overview import list_headline_lines
from farm.report.tables.view import Line, Report, View, ViewColumn, make_view_cell
from farm.report.words import DASH


def _write_markdown_code(value: Any) -> str:
    # Inside a code span Markdown and HTML are literal; only the span's and the table's own signs are not.
    text = clean_line(value).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else DASH


def _write_markdown_cell(column: ViewColumn, line: Line) -> str:
    made = make_view_cell(column, line)
    if made.rest:  # a word of ours, and a reason from elsewhere
        word, _, reason = made.text.partition(": ")
        return f"{word}: {_write_markdown_code(reason)}"
    text = made.text + (f"; {made.small}" if made.small else "")
    return _write_markdown_code(text) if column.foreign and text != DASH else text


def write_markdown_table(view: View, limit: int) -> list[str]:
    """A view under a heading of its own; nothing where it has neither lines nor a word on that."""
    if not view.all_lines():
        return [view.empty, ""] if view.empty else []
    columns = [*view.columns_for("markdown")]
    if view.command:
        columns.append(ViewColumn("reproduce", lambda line: str(line[view.command]), foreign=True))
    # A column may be called after what a lake holds, a dtype or a backend.
    head = [c.words if re.fullmatch(r"[\w ,()/–-]+", c.words) else _write_markdown_code(c.words) for c in columns]
    text = [
        f"## {view.title(limit)}",
        "",
        *(f"{_write_markdown_code(said)}  " for said in view.lead),
        *[""] * bool(view.lead),
    ]
    text += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    text += [
        f"| {' | '.join(_write_markdown_cell(column, line) for column in columns)} |"
        for line in view.select_lines(limit)
    ]
    text += ["", *(f"{_write_markdown_code(note)}  " for note in view.notes)]
    return [*text, *(f"{_write_markdown_code(said)}: {_write_markdown_code(command)}  " for said, command in view.see)]


def write_markdown_document(lines: Sequence[str], shown: Iterable[View], limit: int) -> str:
    """Sentences, the first of them as the title, and views."""
    first, *rest = lines
    text = [f"# {_write_markdown_code(first)}", "", *(f"{html.escape(line, quote=False)}  " for line in rest), ""]
    for view in shown:
        text += write_markdown_table(view, limit)
    return "\n".join(text)


def write_markdown_report(rows: pd.DataFrame | Report, run: Mapping[str, Any], limit: int = 50) -> str:
    """The report of a run: its headline and every view that Markdown shows."""
    report = Report.of(rows, run)
    return write_markdown_document(
        [*list_headline_lines(report), describe_report_terms()],
        (v for v in report.views if "markdown" in v.faces),
        limit,
    )


def write_markdown_diff(found: pd.DataFrame, limit: int = 200) -> str:
    """`farm.report.diff` as Markdown."""
    first, *others = view_diff(found)
    return write_markdown_document(first.lead, [replace(first, lead=()), *others], limit)
