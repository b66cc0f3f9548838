"""Views as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from farm.commandline import plain
from farm.glossary import describe_terms
from farm.report.tables.changes import diff_views
from farm.report.tables.overview import list_headline
from farm.report.tables.view import Line, Report, View, ViewColumn, cell
from farm.report.words import DASH


def _code(value: Any) -> str:
    # Inside a code span Markdown and HTML are literal; only the span's and the table's own signs are not.
    text = plain(value).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else DASH


def _cell(column: ViewColumn, line: Line) -> str:
    made = cell(column, line)
    if made.rest:  # a word of ours, and a reason from elsewhere
        word, _, reason = made.text.partition(": ")
        return f"{word}: {_code(reason)}"
    text = made.text + (f"; {made.small}" if made.small else "")
    return _code(text) if column.foreign and text != DASH else text


def table(view: View, limit: int) -> list[str]:
    """A view under a heading of its own; nothing where it has neither lines nor a word on that."""
    if not view.all_lines():
        return [view.empty, ""] if view.empty else []
    columns = [*view.columns_for("markdown")]
    if view.command:
        columns.append(ViewColumn("reproduce", lambda line: str(line[view.command]), foreign=True))
    # A column may be called after what a lake holds, a dtype or a backend.
    head = [c.words if re.fullmatch(r"[\w ,()/–-]+", c.words) else _code(c.words) for c in columns]
    text = [f"## {view.title(limit)}", "", *(f"{_code(said)}  " for said in view.lead), *[""] * bool(view.lead)]
    text += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    text += [f"| {' | '.join(_cell(column, line) for column in columns)} |" for line in view.select_lines(limit)]
    text += ["", *(f"{_code(note)}  " for note in view.notes)]
    return [*text, *(f"{_code(said)}: {_code(command)}  " for said, command in view.see)]


def document(lines: Sequence[str], shown: Iterable[View], limit: int) -> str:
    """Sentences, the first of them as the title, and views."""
    first, *rest = lines
    text = [f"# {_code(first)}", "", *(f"{html.escape(line, quote=False)}  " for line in rest), ""]
    for view in shown:
        text += table(view, limit)
    return "\n".join(text)


def markdown(rows: pd.DataFrame | Report, run: Mapping[str, Any], limit: int = 50) -> str:
    """The report of a run: its headline and every view that Markdown shows."""
    report = Report.of(rows, run)
    return document(
        [*list_headline(report), describe_terms()], (v for v in report.views if "markdown" in v.faces), limit
    )


def diff_markdown(found: pd.DataFrame, limit: int = 200) -> str:
    """`farm.report.diff` as Markdown."""
    first, *others = diff_views(found)
    return document(first.lead, [replace(first, lead=()), *others], limit)
