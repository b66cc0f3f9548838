"""Gradients that pass because they may be computed from a rounded result of the forward pass (tanh′ = 1 − y²), and lose what that has lost."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from farm.report.tables.view import Report, View, build_number_column, view
from tasks.judge.error_metrics import USUAL_UNITS
from tasks.model import Status


def find_kept_results(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per op, check, dtype and backend: rows, kept (the largest), limit. Of `distinct` rows."""
    limit = rows["limit"].astype(float).fillna(USUAL_UNITS)
    found = rows[(rows["status"] == Status.PASS.value) & (rows["kept"].astype(float) > limit)]
    keys = ["op", "variant", "check", "dtype", "backend"]
    return (
        found.groupby(keys, sort=True)
        .agg(rows=("case_id", "size"), kept=("kept", "max"), limit=("limit", "max"))
        .reset_index()
    )


@view(86, only=lambda report: report.rows["kept"].notna().any())
def view_kept_results(report: Report) -> Iterator[View]:
    """The gradients that a rounded result explains."""
    if (found := find_kept_results(report.rows)).empty:
        return
    yield View(
        "kept",
        "Gradients explained by the rounded result that they are computed from",
        found,
        (
            "op",
            "check",
            "dtype",
            "backend",
            "rows",
            build_number_column("kept", "units without that"),
            build_number_column("limit"),
        ),
        unit="ops, dtypes and backends, which pass",
        counted=True,
        notes=(
            "The derivative itself keeps its digits there. torch and other frameworks compute it as 1 - y² or y·(1 - y) from the "
            "rounded y; a kernel that computes it from the input is right without that excuse.",
        ),
    )
