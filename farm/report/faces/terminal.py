"""Views on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from rich.console import Console, RenderableType
from rich.text import Text

from farm.commandline import clean_line
from farm.fitting import TableHead, count_table_lines, cut_table, fit_table, make_console
from farm.program import name_farm_program
from farm.report.faces.curve import draw_curve_blocks
from farm.report.tables.agreement import view_case_agreement
from farm.report.tables.causes import RunVerdict
from farm.report.tables.changes import view_diff
from farm.report.tables.findings import OF_EACH
from farm.report.tables.overview import describe_run_name, list_quarantine_lines, list_run_remarks
from farm.report.tables.since_last_run import since
from farm.report.tables.view import Report, View, ViewCell, ViewColumn, make_view_cell
from tasks.model import Status

#: The colours of statuses, of lines and of what changed.
_STYLES = {status.value: status.facts.style for status in Status} | {
    "sum": "bold",
    "grey": "bright_black",
    "dim": "bright_black",
    "alarm": "bold red",
    "bad": "red",
    "warn": "yellow",
    "good": "green",
}
#: The colours of a verdict (`Verdict.tone`).
_TONES = {"ok": "bold green", "new": "bold red"}
#: Commands below a table: each is a line to be copied. In the report of a run, which begins with what to conclude, a
#: few of each backend.
_COMMANDS = 10


def _make_terminal_text(value: Any, style: str = "") -> Text:
    # Text objects are not searched for rich's [markup].
    return Text(clean_line(value), style=style)


def _make_terminal_cell(one: ViewCell) -> Text:
    made = _make_terminal_text(one.text, _STYLES.get(one.status or one.tone, ""))
    if one.curve:
        made.append(f"\n{draw_curve_blocks(one.curve)}", style="bright_black")
    if one.parts:
        made = Text(" · ").join([_make_terminal_text(part, _STYLES.get(status, "")) for part, status in one.parts])
    return made.append(f"\n{clean_line(one.small)}", style="bright_black") if one.small else made


def make_terminal_table(view: View, limit: int, width: int) -> RenderableType:
    """A view as a table for a terminal of ``width`` columns."""
    columns = view.columns_for("terminal")
    heads = [TableHead(clean_line(column.words), column.right, column.stays) for column in columns]
    lines = _make_terminal_lines(view, limit, columns)
    title = "\n".join([view.title(limit), *view.lead])
    if view.screen and count_table_lines(heads, lines, width) > (view.most or view.screen):
        short = [replace(column, cell=column.short or column.cell) for column in columns]
        return cut_table(title, heads, _make_terminal_lines(view, limit, short), width)
    return fit_table(title, heads, lines, width)


def _make_terminal_lines(view: View, limit: int, columns: Sequence[ViewColumn]) -> list[tuple[list[Text], str]]:
    return [
        ([_make_terminal_cell(make_view_cell(column, line)) for column in columns], _STYLES.get(view.style(line), ""))
        for line in view.select_lines(limit)
    ]


def print_view(
    view: View, console: Console, limit: int, most: int = _COMMANDS, each: bool = False, printed: set[str] | None = None
) -> None:
    """Print a view: its sentences, its lines, and ``most`` commands that show them (of ``each`` that takes turns); or
    what it says without lines. printed: commands that stand above, and are not repeated; those of this view join them. A
    view that has but a few lines of the screen has its first command alone, whatever stands above."""
    if not view.all_lines():
        for text in view.lead:
            console.print(_make_terminal_text(text))
        if view.empty:
            console.print(_make_terminal_text(view.empty), soft_wrap=True)
        return
    commands = _list_view_commands(view, limit, most, each)
    below = [f"{text}: {command}" for text, command in view.see]
    if view.screen:
        first = " the first" * (len(view.all_lines()) > 1)
        below += [f"reproduce{first}: {command}" for command in commands[:1]]
        view = replace(view, most=max(view.screen - _count_wrapped_lines(below, console), 1))
    console.print()
    console.print(make_terminal_table(view, limit, console.width))
    for text in view.notes:
        console.print(_make_terminal_text(text))
    for text in below:
        console.print(_make_terminal_text(text), soft_wrap=True)  # one line, to be copied
    if view.screen:
        return
    if printed is not None:
        commands = [one for one in commands if one not in printed]
        printed.update(commands)
    if commands:
        console.print("Reproduce with:")
    for command in commands:
        console.print(_make_terminal_text(command), soft_wrap=True)  # one line each, to be copied


def _count_wrapped_lines(texts: Sequence[str], console: Console) -> int:
    """Lines of the screen beyond one each that texts take on a terminal; a file or a pipe wraps none."""
    return sum(max(len(text) - 1, 0) // console.width for text in texts) if console.is_terminal else 0


def _list_view_commands(view: View, limit: int, most: int, each: bool) -> list[str]:
    """The first ``most`` commands of a view's lines; if ``each``, of the lines of each value of the column that takes
    turns."""
    seen: Counter[str] = Counter()
    found = []
    for line in view.select_lines(limit) if view.command else ():
        turn = str(line[view.turns]) if each and view.turns else ""
        if line[view.command] and seen[turn] < most:
            seen[turn] += 1
            found.append(line[view.command])
    return found


def print_coverage(
    rows: pd.DataFrame | Report,
    run: Mapping[str, Any],
    by: str = "backend",
    limit: int = 10,
    console: Console | None = None,
    brief: bool = False,
) -> None:
    """Print the report of a run: findings, known failures, the table per vendor and backend, ``by`` another column as
    well; what needs eyes comes last, for the end of an output is what a terminal shows. The verdict follows
    (`print_verdict`).

    ``rows``: lake rows of the run, or their report; ``run``: its ``_run.json`` as a dict; ``limit``: lines of a long
    table; brief: without tables that compare.
    """
    console = console or make_console()
    report = Report.of(rows, run, by)
    for line in [
        *[describe_run_name(report)] * (not brief),
        *list_quarantine_lines(report),
        *list_run_remarks(report, brief),
    ]:
        console.print(_make_terminal_text(line))
    if not brief:
        console.print(
            _make_terminal_text(f"Terms: {name_farm_program()} help terms, {name_farm_program()} help units", "dim")
        )
    printed: set[str] = set()
    for view in reversed(report.views):  # a page has the worst first
        if "terminal" in view.faces and not (brief and view.compares):
            print_view(view, console, limit, OF_EACH, each=True, printed=printed)


def print_verdict(verdict: RunVerdict, console: Console, also: str = "") -> None:
    """Print what to conclude of a run, the last line of its report; ``also``: words behind the conclusion."""
    said = f"{verdict.conclusion}{also}{verdict.ending}"
    console.print(_make_terminal_text(said, _TONES.get(verdict.tone, "bold")), soft_wrap=True)


def print_report_conclusion(report: Report, console: Console, also: str = "") -> None:
    """Print what changed since the last run, in a line, and the verdict: the end of a report."""
    if found := since(report):
        console.print(_make_terminal_text(found.short_sentence), soft_wrap=True)
    print_verdict(report.verdict, console, also)


def print_case_agreement(found: pd.DataFrame, console: Console) -> None:
    """Print `farm.report.case`: every backend's line, who agrees with whom, and how to run the outliers again."""
    for view in view_case_agreement(found):
        print_view(view, console, 1_000)


def print_diff(found: pd.DataFrame, console: Console, limit: int = 30) -> None:
    """Print `farm.report.diff`: the sums, by dtype, and the cells that changed."""
    for view in view_diff(found):
        print_view(view, console, limit)
