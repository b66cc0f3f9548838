"""The same bytes: per backend and check, yes of how many ops, and of those that are not how far apart."""

from __future__ import annotations

import pandas as pd

from farm.report.tables.coverage import keep_distinct_rows
from farm.report.tables.view import Line, Report, View, ViewColumn, make_text_column, view
from farm.report.words import DASH, format_report_number
from tasks.checks.batch_invariance import BatchInvariance
from tasks.checks.determinism import Determinism, Threads
from tasks.model import Status

#: Checks that ask whether results are the same bytes, and kinds of their rows that say no.
CHECKS = (Determinism.name, Threads.name, BatchInvariance.name)
_NO = ("nondeterministic", "process", "threads", "batch")


def list_same_bytes_answers(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per backend and check: ops whose every row says yes, ops with one that says no, ops without either; the
    largest distance of a no in units, and the ops that say it, those furthest apart first."""
    rows = keep_distinct_rows(rows)
    rows = rows[rows["check"].isin(CHECKS)]
    no = rows["kind"].isin(_NO)
    yes = ~no & (rows["apart_units"] == 0)
    rows = rows.assign(no=no, yes=yes, units=rows["apart_units"].where(no))
    by_op = rows.groupby(["backend", "check", "op"], sort=False).agg(
        no=("no", "any"), yes=("yes", "all"), units=("units", "max"), status=("status", "first")
    )
    made = []
    for (backend, check), ops in by_op.reset_index().groupby(["backend", "check"], sort=True):
        said = ops[ops["no"]].sort_values("units", ascending=False, kind="stable")
        not_asked = ops["status"].isin([Status.VACUOUS.value, Status.UNSUPPORTED.value]) & ~ops["no"] & ~ops["yes"]
        made.append(
            {
                "backend": backend,
                "check": check,
                "yes": int(ops["yes"].sum()),
                "no": len(said),
                "neither": len(ops) - int(ops["yes"].sum()) - len(said) - int(not_asked.sum()),
                "not_asked": int(not_asked.sum()),
                "units": said["units"].max() if len(said) else None,
                "ops": " ".join(said["op"]),
            }
        )
    return pd.DataFrame(made, columns=["backend", "check", "yes", "no", "neither", "not_asked", "units", "ops"])


def _make_units_cell(line: Line) -> str:
    return DASH if pd.isna(line["units"]) else format_report_number(line["units"])


@view(57, only=lambda report: not report.values("check").isdisjoint(CHECKS))
def view_same_bytes_answers(report: Report) -> View:
    """The answers, where one of the checks was run."""
    return View(
        "same_bytes",
        "Same inputs, same bytes",
        list_same_bytes_answers(report.rows),
        (
            *(make_text_column("backend"), make_text_column("check")),
            *(("yes", "yes (ops)"), ("no", "no (ops)"), ("neither", "failed otherwise"), ("not_asked", "not tested")),
            ViewColumn("furthest apart, units", _make_units_cell, right=True),
            make_text_column("ops", "ops with no"),
        ),
        unit="checks",
        notes=(
            "Units: |a - b| ÷ (ε · max(|a|, |b|, root mean square of the output)). Not tested: rows are not computed independently, or "
            "the backend accepts no other number of rows or no second process.",
        ),
    )
