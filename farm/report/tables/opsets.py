"""Operator sets: what becomes of each op of the opsets check at each opset, per backend: native, fallback, refused."""

from __future__ import annotations

import pandas as pd

from farm.report.tables.coverage import keep_distinct_rows, rank_status_column
from farm.report.tables.view import Line, Report, View, ViewCell, ViewColumn, make_text_column, view
from tasks.checks.opsets import Opsets
from tasks.model import BY_SEVERITY, Status

#: What a status says of an opset, where another word is shorter than its own.
_WORDS = {
    Status.PASS: "native",
    Status.UNSUPPORTED: "refused",
    Status.INVALID: "not made",
    Status.VACUOUS: "no such op",
}
#: What is said of nothing but the op and the converter: shown only where no backend says more.
_SHORT = {status.value: word for status, word in _WORDS.items()}


def list_opset_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per (op, backend); per opset its worst status among variants and dtypes, None where it was not asked."""
    rows = keep_distinct_rows(rows)
    rows = rows[rows["check"] == Opsets.name]
    worst = (
        rows.assign(rank=rank_status_column(rows["status"]))
        .sort_values("rank")
        .drop_duplicates(["op", "backend", "sample"])
    )
    table = worst.pivot(index=["op", "backend"], columns="sample", values="status")
    return table.reset_index().rename(columns=str).rename_axis(columns=None)


def count_opset_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per (backend, opset): how many ops are native, fallback, refused, or anything else."""
    table = list_opset_lines(rows)
    long = table.melt(id_vars=["op", "backend"], var_name="opset", value_name="status").dropna(subset="status")
    counts = long.assign(status=long["status"].map(lambda x: _SHORT.get(x, x))).pivot_table(
        index=["backend", "opset"], columns="status", values="op", aggfunc="count", fill_value=0
    )
    words = [_SHORT.get(status.value, status.value) for status in BY_SEVERITY]
    counts = counts[[word for word in words[::-1] if word in counts]].reset_index().rename_axis(columns=None)
    counts = counts.assign(opset=counts["opset"].astype(int))
    return counts.sort_values(["backend", "opset"]).reset_index(drop=True)


def _make_opset_column(opset: str) -> ViewColumn:
    def cell(line: Line) -> ViewCell:
        status = line[opset]
        return ViewCell("–") if not isinstance(status, str) else ViewCell(_SHORT.get(status, status), status=status)

    return ViewColumn(opset, cell)


@view(55, only=lambda report: Opsets.name in report.values("check"))
def view_opset_matrix(report: Report) -> list[View]:
    """The matrix op × opset × backend and its sums, where the check was run."""
    table = list_opset_lines(report.rows)
    columns = [
        make_text_column("op"),
        make_text_column("backend"),
        *(_make_opset_column(name) for name in table.columns[2:]),
    ]
    return [
        View("opset_counts", "Operator sets: ops by opset and backend", count_opset_matrix(report.rows), unit="opsets"),
        View("opsets", "Operator sets, op by op", table, columns=columns, unit="ops", counted=True),
    ]
