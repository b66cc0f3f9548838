"""What did not pass, one line a cell: the findings, the user's own kernels that could not be judged, oracles that differ."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.glossary import UNITS
from farm.program import name_farm_program, write_results_option
from farm.report.tables.agreement import get_row_units
from farm.report.tables.causes import HOW, NEW, count_with_noun, sort_worst_first
from farm.report.tables.coverage import (
    CELL,
    FINDING_STATUSES,
    SEVERITY,
    keep_distinct_rows,
    list_frame_lines,
    make_reproduce_commands,
)
from farm.report.tables.overview import describe_finding_size
from farm.report.tables.view import (
    FACES,
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    build_number_column,
    label_line_op,
    make_op_column,
    make_status_column,
    make_text_column,
    view,
)
from tasks.model import Status
from tasks.model.kind import KIND_ORACLE

#: What a finding tells.
_TOLD = [
    *("status", *CELL, "sample", "samples", "planned", *HOW, "max_rel", "weak", "vendor", "placement", "execution"),
    *("run_id", "case_id", "reproduce"),
]


def list_oracle_disagreements(rows: pd.DataFrame) -> pd.DataFrame:
    """Where two oracles differ: one line per (check, op, variant, dtype), the furthest apart first.

    ``oracles_units``: how far one is from the other; ``units`` and ``second_units``: the result of the row against
    each, in error units or ulps; ``samples`` and ``backends``: where it was seen; ``reproduce``: the command for the
    row.
    """
    results = str(rows.attrs.get("results", "results"))
    rows = keep_distinct_rows(rows)
    rows = rows[(rows["status"] == Status.INVALID.value) & (rows["kind"] == KIND_ORACLE)]
    keys = ["check", "op", "variant", "dtype"]
    rows = rows.assign(units=get_row_units(rows), size=-rows["oracles_units"].fillna(math.inf))
    seen = rows.groupby(keys, sort=False)
    rows = rows.assign(
        samples=seen["case_id"].transform("nunique"),
        backends=seen["backend"].transform(lambda x: ", ".join(sorted(set(x)))),
    )
    rows = rows.sort_values(["size", *keys], kind="stable").drop_duplicates(keys)
    told = ["oracle", "second_oracle", "oracles_units", "units", "second_units", "samples", "backends", "error"]
    return rows.assign(reproduce=make_reproduce_commands(rows, results))[[*keys, *told, "reproduce"]].reset_index(
        drop=True
    )


def findings(
    rows: pd.DataFrame, limit: int | None = 20, statuses: Iterable[str] | None = None, standing: str = ""
) -> pd.DataFrame:
    """The worst row of each cell (check, op, variant, dtype, backend) that did not pass, most severe first.

    Within a status, rows without error units (a shape, a dtype, a misplaced NaN) come before the largest error
    units. ``samples`` is the number of the cell's rows in that status, ``planned`` of all its rows; ``reproduce`` is
    the command that shows it; ``standing``, ``cause`` and ``only`` where the rows have them. ``statuses``: keep these
    only (default: all but ``pass``); ``standing``: rows with this one only. ``limit``: None for all.
    """
    results = str(rows.attrs.get("results", "results"))  # before pandas forgets it
    rows = keep_distinct_rows(rows)
    wanted = [status for status in (SEVERITY if statuses is None else statuses) if status != Status.PASS]
    planned = rows.groupby(CELL, sort=False)["status"].size().rename("planned")
    rows = rows[rows["status"].isin(wanted) & (rows["standing"] == standing if standing else True)]
    rows = rows.assign(samples=rows.groupby([*CELL, "status"], sort=False)["status"].transform("size"))
    rows = sort_worst_first(rows).drop_duplicates(CELL)
    if limit is not None:
        rows = rows.head(limit)
    rows = rows.join(planned, on=CELL) if len(rows) else rows.assign(planned=0)
    told = [*_TOLD, *(name for name in ("standing", "cause", "only") if name in rows)]
    return rows.assign(reproduce=make_reproduce_commands(rows, results))[told].reset_index(drop=True)


#: New findings of each backend that are shown at least, with their commands; lines of a long table.
OF_EACH, LINES = 3, 10
#: Groups of new failures that a terminal shows: with their heads, what shows more of them, where the report is and the
#: verdict they are its last ten lines.
LAST = 4


def _make_op_cell(line: Line) -> ViewCell:
    more = line["ops"] - 1
    words = f" and {count_with_noun(more, 'more op')}" if more else ""
    return ViewCell(clean_line(line["op"]) + words, square=f"{label_line_op(line)}|{line['backend']}")


def _count_all_but_first(name: str) -> Callable[[Line], str]:
    """Of a column of names the first, and how many follow it: "float16 +2"."""

    def shorten_names(line: Line) -> str:
        first, *more = str(line[name]).split(", ")
        return clean_line(first) + f" +{len(more)}" * bool(more)

    return shorten_names


_COLUMNS = (
    make_status_column(),
    make_op_column(),
    make_text_column("dtype"),
    make_text_column("backend"),
    ViewColumn("samples", lambda line: f"{line['samples']}/{line['planned']}", right=True),
    ViewColumn("what", lambda line: clean_line(describe_finding_size(line), 300), foreign=True),
)
#: The same of a line that stands for several cells.
_ALIKE = (
    make_status_column(),
    ViewColumn("op", _make_op_cell, foreign=True, short=_count_all_but_first("all_ops")),
    replace(make_text_column("dtypes", "dtype"), short=_count_all_but_first("dtypes")),
    replace(make_text_column("backends", "backend"), short=_count_all_but_first("backends")),
    build_number_column("rows"),
    ViewColumn(
        "what (worst case)",
        _COLUMNS[-1].cell,
        foreign=True,
        short=lambda line: clean_line(describe_finding_size(line, brief=True)),
    ),
)


_build_view_of_findings = functools.partial(View, columns=_COLUMNS, counted=True, turns="backend", command="reproduce")


@view(2, only=lambda report: NEW in report.values("standing"))
def view_new_cells(report: Report) -> Iterator[View]:
    """The user's own kernels and models that were not judged, and what no known failure covers: failures, what is alike
    in one line, and what is imprecise."""
    frame = findings(report.rows, limit=None, standing=NEW)
    own, imprecise = (frame["status"] == status.value for status in (Status.INVALID, Status.IMPRECISE))
    shown: dict[str, Any] = {"open": True, "faces": ("terminal", "markdown", "page")}
    alike = report.causes[report.causes["standing"] == NEW]
    unjudged = alike["status"] == Status.INVALID.value
    said = report.verdict
    lines = alike[~unjudged]
    yield _build_view_of_findings(
        "new",
        count_with_noun(said.new, "new failure" if said.listed else "failure"),
        frame[~own],
        columns=_ALIKE,
        lines=list_frame_lines(lines),
        unit="groups of similar failures",
        see=list_new_cells_commands(report, int((~own & ~imprecise).sum())),
        open=True,
        screen=LAST,
        most=OF_EACH * lines["backend"].nunique() if OF_EACH * lines["backend"].nunique() > LINES else 0,
    )
    yield _build_view_of_findings(
        "own_not_judged",
        "Your own samples not judged: model, reference or inputs are broken",
        frame[own],
        columns=_ALIKE,
        lines=list_frame_lines(alike[unjudged]),
        unit="reasons",
        see=list_new_cells_commands(report, int(own.sum())),
        screen=LAST,
        **shown,
    )
    yield _build_view_of_findings("new_imprecise", _title_imprecise_findings(report), frame[imprecise], **shown)


def _title_imprecise_findings(report: Report) -> str:
    return "Imprecise and not known (fails no run)" if report.verdict.listed else "Imprecise"


def view_every_new_cell(report: Report) -> Iterator[View]:
    """Every cell that no known failure covers, with its command: what `view_new_cells` has in groups."""
    frame = findings(report.rows, limit=None, standing=NEW)
    imprecise = frame["status"] == Status.IMPRECISE.value
    every: dict[str, Any] = {"most": len(frame), "lead": list(UNITS.values()) * bool(len(frame))}
    caption = "Failures that no known failure covers"
    yield _build_view_of_findings("new", caption, frame[~imprecise], empty="No new failures.", **every)
    yield _build_view_of_findings("new_imprecise", _title_imprecise_findings(report), frame[imprecise], most=len(frame))


def list_new_cells_commands(report: Report, cells: int) -> list[tuple[str, str]]:
    """What to type to see each of several cells (`view_every_new_cell`), and its words."""
    run = report.run.get("run_id") or "last"
    where = write_results_option(str(report.rows.attrs.get("results", "results")))
    command = f"{name_farm_program()} report --run {'all' if 'runs' in report.run else run} --new{where}"
    return [(f"all {count_with_noun(cells, 'cell')} with their commands", command)] * (cells > 1)


@view(70)
def build_findings_view(report: Report) -> View:
    """All findings; not on the terminal, at whose top those stand that are to be looked at."""
    frame = findings(report.rows, limit=None)
    lines = list_frame_lines(frame[frame["status"].isin(FINDING_STATUSES)])
    nothing = "No findings: nothing failed or was imprecise."
    nothing = nothing if len(report.rows) and not lines and not report.verdict.unjudged else ""
    standing = ViewColumn("", lambda line: line["standing"])
    columns = (standing, *_COLUMNS, make_text_column("cause", length=300)) if report.verdict.listed else _COLUMNS
    faces = FACES if nothing else ("markdown", "csv", "page")
    return _build_view_of_findings(
        "findings",
        "Findings, worst first",
        frame,
        columns=columns,
        lines=lines,
        empty=nothing,
        faces=faces,
        compares=True,
    )


@view(80, only=lambda report: KIND_ORACLE in report.values("kind"))
def view_differing_oracles(report: Report) -> View:
    """Where two oracles differ: who, how far apart, and how far the result is from each."""

    def who(line: Line) -> str:
        return f"{line['oracle']} and {line['second_oracle']}"

    return View(
        "oracles",
        "Oracles disagree",
        list_oracle_disagreements(report.rows),
        (
            ViewColumn("op", label_line_op, foreign=True),
            make_text_column("dtype"),
            ViewColumn("oracles", who, foreign=True),
            build_number_column("oracles_units", "apart"),
            build_number_column("units", "result from the first"),
            build_number_column("second_units", "from the second"),
            ViewColumn("seen on", lambda line: f"{line['backends']}; {line['samples']} samples", foreign=True),
            make_text_column("error", "what", length=300, faces=("page",)),
        ),
        unit="ops and dtypes, no backend is blamed",
        counted=True,
        command="reproduce",
    )
