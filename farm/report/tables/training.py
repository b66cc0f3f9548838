"""Training steps: how far loss and gradients diverge, in float32 and under autocast, per network and backend."""

from __future__ import annotations

import pandas as pd

from farm.report.tables.coverage import MEASURED_STATUSES, SEVERITY, rank_status_column
from farm.report.tables.view import Report, View, ViewColumn, view


def list_training_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per op, backend and dtype that a step was computed in; of `distinct` rows.

    Columns: op, variant, backend, check, dtype, samples; status: the worst; loss_divergence, gradient_divergence: the largest
    |loss − reference| / |reference| and ‖gradients − reference‖ / ‖reference‖; error_units, limit.
    """
    rows = rows[rows["status"].isin(MEASURED_STATUSES) & rows["gradient_divergence"].notna()]
    keys = ["op", "variant", "backend", "check", "dtype"]
    found = rows.assign(rank=rank_status_column(rows["status"])).groupby(keys, sort=True)
    worst = {name: (name, "max") for name in ("loss_divergence", "gradient_divergence", "error_units", "limit")}
    table = found.agg(samples=("case_id", "nunique"), rank=("rank", "min"), **worst).reset_index()
    table.insert(len(keys) + 1, "status", [SEVERITY[int(rank)] for rank in table.pop("rank")])
    return table.sort_values(
        ["op", "variant", "backend", "check", "dtype"], kind="stable", key=_sort_narrow_dtypes_last
    )


def _sort_narrow_dtypes_last(column: pd.Series) -> pd.Series:
    """float32 before what autocast computes in."""
    return column != "backward" if column.name == "check" else column


@view(65, only=lambda report: report.rows["gradient_divergence"].notna().any())
def view_training_step_rows(report: Report) -> View | None:
    """The table of training steps, where there are any."""
    if (found := list_training_steps(report.rows)).empty:
        return None
    return View(
        "training",
        "Training steps: divergence from float64",
        found,
        (
            *("op", "backend"),
            ViewColumn(
                "computed in", lambda line: ("autocast " if line["check"] == "amp" else "") + str(line["dtype"])
            ),
            *(
                ("loss_divergence", "loss"),
                ("gradient_divergence", "gradients"),
                ("error_units", "worst units"),
                "limit",
                "status",
            ),
        ),
        unit="steps",
        counted=True,
        notes=(
            "Loss: relative. Gradients: the norm of the difference over the norm of the right ones, all parameters together.",
        ),
    )
