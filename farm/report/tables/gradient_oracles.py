"""The two-oracle table of the backward checks: the backend's gradient against autograd's and against differences'.

Autograd is torch's of the op in float64, or of a kernel's reference. Where it cannot follow that (a script, Python's
numbers), or the function has no reference but itself, differences are the one oracle.
"""

from __future__ import annotations

import pandas as pd

from farm.report.tables.coverage import MEASURED_STATUSES, PASSED_STATUSES, keep_distinct_rows
from farm.report.tables.view import Report, View, view
from tasks import checks
from tasks.judge.error_metrics import USUAL_UNITS
from tasks.model import Status
from tasks.model.kind import KIND_ORACLE

#: Column of the table → what it says; the first four are the four ways two oracles can answer.
MEANING = {
    "both agree": "the gradient is right",
    "only autograd agrees": "the check is suspect: float64 autograd may be wrong too",
    "only differences agree": "a convention differs from autograd's: check it",
    "neither agrees": "the gradient is wrong",
    "no differences": "agrees with autograd; differences say nothing here (a kink, NaN, no elements)",
    "no differences, wrong": "disagrees with autograd; differences say nothing here",
    "differences alone": "agrees with differences, the only oracle here",
    "differences alone, wrong": "disagrees with differences, the only oracle here",
}
#: The keys of MEANING, the worst first.
WORST_FIRST = (
    "neither agrees",
    "differences alone, wrong",
    "no differences, wrong",
    "only differences agree",
    "only autograd agrees",
    "no differences",
    "differences alone",
    "both agree",
)
#: Those in which nothing disagrees.
AGREE = ("no differences", "differences alone", "both agree")


def compare_gradient_oracles(rows: pd.DataFrame) -> pd.Series:
    """Per row a key of MEANING; empty for a row whose gradient was not compared (forward, random, error, vacuous,
    …)."""
    oracle = (rows.status == Status.INVALID.value) & (rows.kind == KIND_ORACLE)
    compared = (
        rows.check.isin(checks.list_checks_where(gradient=True))
        & (rows.oracle != "metadata")
        & (rows.status.isin(MEASURED_STATUSES) | oracle)
        # A kernel that broke a promise in its forward pass (aliasing) never came to its gradient.
        & rows.error_units.notna()
    )
    limit = rows.limit.astype(float).fillna(USUAL_UNITS)  # of a policy that counts none
    first = rows.status.isin(PASSED_STATUSES) | (oracle & (rows.error_units <= limit))
    # Oracles that agree are one oracle: the verdict on the first, "imprecise" included, holds for the second.
    second = first.where(rows.oracles_units <= limit, rows.second_units <= limit)
    asked = rows.second_oracle.fillna("") != ""
    alone = rows.by_differences.eq(True)
    said = pd.Series("", index=rows.index)
    for name, where in {
        "both agree": asked & first & second,
        "only autograd agrees": asked & first & ~second,
        "only differences agree": asked & ~first & second,
        "neither agrees": asked & ~first & ~second,
        "no differences": ~asked & ~alone & first,
        "no differences, wrong": ~asked & ~alone & ~first,
        "differences alone": ~asked & alone & first,
        "differences alone, wrong": ~asked & alone & ~first,
    }.items():
        said = said.mask(where & compared, name)
    return said


def table_two_oracles(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per (op, variant, check, dtype, backend) with gradients: samples by answer, and the worst units.

    error_units: against autograd, or differences where they are the one oracle; second_units: against differences;
    oracles_units: between the two.
    """
    rows = keep_distinct_rows(rows)
    rows = rows.assign(agreement=compare_gradient_oracles(rows))
    rows = rows[rows.agreement != ""]
    keys = ["op", "variant", "check", "dtype", "backend"]
    groups = rows.groupby(keys)
    table = groups[["error_units", "second_units", "oracles_units"]].max()
    for name in reversed(MEANING):
        table.insert(0, name, (rows.agreement == name).groupby([rows[k] for k in keys]).sum())
    table.insert(0, "samples", groups.size())
    return table.reset_index()


def has_gradient_rows(report: Report) -> bool:
    """Whether a report has rows of gradients."""
    return not report.values("check").isdisjoint(checks.list_checks_where(gradient=True))


@view(90, only=has_gradient_rows)
def view_two_oracles(report: Report) -> View:
    """The two-oracle table."""
    return View("gradients", "Gradients by two oracles", table_two_oracles(report.rows), faces=("csv",))


def count_second_oracles(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per (check, second_oracle) of gradients that were compared, most rows first: how many rows and ops have
    it. Where there is none, ``second_oracle`` is "" and ``why`` the most frequent reason."""
    rows = keep_distinct_rows(rows)
    rows = rows[compare_gradient_oracles(rows) != ""]
    rows = rows.assign(second_oracle=rows.second_oracle.fillna(""), why=rows.no_second_oracle.fillna(""))
    found = rows.groupby(["check", "second_oracle"]).agg(
        rows=("case_id", "size"), ops=("op", "nunique"), why=("why", lambda x: x.mode().iloc[0])
    )
    return found.sort_values(["check", "rows"], ascending=[True, False]).reset_index()


@view(91, only=has_gradient_rows)
def build_second_oracles_view(report: Report) -> View:
    """How many gradients have an oracle that needs no derivative of the library's, and which."""
    frame = count_second_oracles(report.rows)
    return View("second_oracles", "Second oracles of gradients", frame, faces=("csv",))
