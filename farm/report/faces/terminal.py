"""Report on the terminal: coverage tables, what is unavailable, the worst findings."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from farm.report.tables.coverage import (
    FINDING_STATUSES,
    SEVERITY,
    broken,
    built,
    coverage,
    disagreements,
    distinct,
    findings,
    records,
)
from farm.report.tables.overview import backend_lines, headline, how_much, status_count
from farm.report.words import DASH, number, percent, plain
from tasks.model import Status

_STYLE = {status.value: status.facts.style for status in Status}


def _text(value: Any, style: str = "", length: int = 0) -> Text:
    # Text objects are not searched for rich's [markup].
    return Text(plain(value, length), style=style)


def coverage_table(rows: pd.DataFrame, run: Mapping[str, Any]) -> Table:
    """The table per vendor and backend; an unavailable backend is a grey line without numbers."""
    table = Table(title="Coverage by vendor and backend", title_justify="left", pad_edge=False)
    for name in ("vendor", "backend", "device, version"):
        table.add_column(name, overflow="fold")
    for name in ("coverage (judged/valid)", "pass rate (passed/judged)"):
        table.add_column(name, justify="right", min_width=18)
    table.add_column("counts by status")
    for line in backend_lines(rows, run):
        device = ", ".join(text for text in (line["device"], line["runtime_version"]) if text)
        if line["missing"]:
            cells: list[Any] = [DASH, DASH, _text(f"unavailable: {line['reason']}")]
            style = "bright_black"
        else:
            cells = _rates_and_counts(line)
            style = "bold" if not line["backend"] else ""
        table.add_row(
            _text(line["vendor"] or DASH), _text(line["backend"] or "all"), _text(device or DASH), *cells, style=style
        )
    return table


def _rates_and_counts(line: Mapping[str, Any]) -> list[Any]:
    counts = Text()
    for status in SEVERITY:
        if line[status]:
            counts.append(" · " if counts else "").append(status_count(line, status), style=_STYLE[status])
    if line["weak_cells"]:
        counts.append(f" (weakly tested cells: {int(line['weak_cells'])})")
    return [percent(line["judged"], line["valid"]), percent(line["passed"], line["judged"]), counts or DASH]


def built_table(made: pd.DataFrame) -> Table:
    """The lines of ``farm.report.coverage.built``."""
    table = Table(title="Built, not run: no evidence of numbers", title_justify="left", pad_edge=False)
    for name in ("vendor", "backend"):
        table.add_column(name, overflow="fold")
    for name in ("built (built/built and failed)", "refused", "failed"):
        table.add_column(name, justify="right")
    for line in records(made.reset_index()):
        rate = percent(line["built"], line["built"] + line["failed"])
        table.add_row(
            _text(line["vendor"] or DASH), _text(line["backend"]), rate, str(line["refused"]), str(line["failed"])
        )
    return table


def grouped_table(rows: pd.DataFrame, by: str, limit: int = 50) -> Table:
    """Coverage per value of one column, those with the most failures first."""
    result = coverage(rows, by=by)
    result = result.sort_values(["failed", "planned"], ascending=False, kind="stable")
    title = f"Coverage by {by}" + (f", {limit} of {len(result)}" if len(result) > limit else "")
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column(by, overflow="fold")
    for name in ("coverage (judged/valid)", "pass rate (passed/judged)"):
        table.add_column(name, justify="right", min_width=18)
    table.add_column("counts by status")
    for line in records(result.head(limit).reset_index()):
        table.add_row(_text(line[by] or DASH), *_rates_and_counts(line))
    return table


def findings_table(found: pd.DataFrame, total: int, subject: str = "findings") -> Table:
    """The findings of ``farm.report.findings``, one line each."""
    title = (
        f"Worst {subject}, {len(found)} of {total} cells"
        if total > len(found)
        else f"{subject.capitalize()}: {total} cells"
    )
    table = Table(title=title, title_justify="left", pad_edge=False, show_lines=False)
    for name in ("status", "what", "how much"):
        table.add_column(name, overflow="fold")
    for line in records(found):
        label = f"{line['op']}.{line['variant']}" if line["variant"] else line["op"]
        what = Text(plain(f"{label} {line['dtype']} on {line['backend']}"), style="bold")
        what.append(f"  {line['samples']} of {line['planned']} samples", style="not bold")
        table.add_row(_text(line["status"], _STYLE.get(line["status"], "")), what, _text(how_much(line), length=300))
    return table


def disagreements_table(found: pd.DataFrame, limit: int = 10) -> Table:
    """Where two oracles differ, one line per op and dtype: who, how far apart, and how far the result is from each."""
    title = f"Oracles disagree: {len(found)} ops and dtypes, nobody is blamed" + (
        f", {limit} shown" if len(found) > limit else ""
    )
    table = Table(title=title, title_justify="left", pad_edge=False)
    for name in ("what", "oracles", "seen on"):
        table.add_column(name, overflow="fold")
    for name in ("apart", "result from the first", "from the second"):
        table.add_column(name, justify="right")
    for line in records(found.head(limit)):
        label = f"{line['op']}.{line['variant']}" if line["variant"] else line["op"]
        table.add_row(
            _text(f"{label} {line['dtype']}"),
            _text(f"{line['oracle']} and {line['second_oracle']}"),
            _text(f"{line['backends']}; {line['samples']} samples"),
            number(line["oracles_units"]),
            number(line["units"]),
            number(line["second_units"]),
        )
    return table


def _width() -> int | None:
    # Files and pipes have no width; 80 columns would break every name.
    return None if sys.stdout.isatty() else max(180, shutil.get_terminal_size((180, 50)).columns)


def print_coverage(
    rows: pd.DataFrame, run: Mapping[str, Any], by: str = "backend", limit: int = 10, console: Console | None = None
) -> None:
    """Print the coverage of a run: the table per vendor and backend, ``by`` another column as well, and findings.

    ``rows``: lake rows of the run; ``run``: its ``_run.json`` as a dict; ``limit``: the number of findings.
    """
    console = console or Console(width=_width(), highlight=False)
    attrs = dict(rows.attrs)
    rows = distinct(rows)
    rows.attrs.update(attrs)
    for line in headline(rows, run):
        console.print(_text(line))
    console.print(coverage_table(rows, run))
    made = built(rows)
    if len(made):
        console.print(built_table(made))
    if by != "backend":
        console.print(grouped_table(rows, by))
    unjudged = findings(rows[broken(rows)], limit=None, statuses=["invalid"])
    if len(unjudged):
        console.print(
            findings_table(
                unjudged.head(limit), len(unjudged), "own kernels not judged, their reference or inputs are broken"
            )
        )
    found = findings(rows, limit=None, statuses=FINDING_STATUSES)
    if len(found):
        # The worst of every backend before the second worst of any.
        turn = found.groupby("backend", sort=False).cumcount()
        shown = found.assign(turn=turn).sort_values("turn", kind="stable").head(limit)
        console.print(findings_table(shown, len(found)))
        console.print("Reproduced by:")
        for finding in records(shown):
            console.print(_text(finding["reproduce"]), soft_wrap=True)  # one line each, to be copied
    elif len(rows) and not len(unjudged):
        console.print("No findings: nothing failed, was imprecise or fell back.")
    differ = disagreements(rows)
    if len(differ):
        console.print(disagreements_table(differ, limit))
