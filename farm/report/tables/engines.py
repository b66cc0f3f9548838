"""Engines that serve: which relation each keeps, and by how much it is off."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pandas as pd

from farm.report.tables.coverage import keep_distinct_rows, rank_status_column
from farm.report.tables.view import Line, Report, View, ViewCell, ViewColumn, make_text_column, view
from farm.report.words import DASH, format_report_number
from tasks.checks.serving import ABOUT, Serving
from tasks.model import Status


def table_engine_relations(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per relation, decoder (or sampler) and dtype, in the order of `ABOUT`; two columns per backend: the
    worst status of its samples, and the largest error units of those of that status."""
    rows = keep_distinct_rows(rows)
    rows = rows[rows["check"] == Serving.name]
    order = {name: k for k, name in enumerate(ABOUT)}
    named = rows["op"].str.partition(":")[2]
    rows = rows.assign(
        relation=named, rank=rank_status_column(rows["status"]), order=named.map(order).fillna(len(order))
    )
    rows = rows.sort_values(
        ["order", "variant", "dtype", "rank", "error_units"], ascending=[True, True, True, True, False]
    )
    worst = rows.drop_duplicates(["relation", "variant", "dtype", "backend"])
    made = worst.pivot(
        index=["order", "relation", "variant", "dtype"], columns="backend", values=["status", "error_units"]
    )
    made.columns = [f"{at[1]}|{at[0]}" for at in made.columns.to_flat_index()]
    return made.reset_index().drop(columns="order")


def _make_relation_cell(backend: str, line: Line) -> ViewCell:
    status, units = line[f"{backend}|status"], line[f"{backend}|error_units"]
    if not isinstance(status, str):
        return ViewCell(DASH)
    return ViewCell(DASH if pd.isna(units) else format_report_number(float(units)), status=status)


def _keeps_relation(line: Line, backends: Sequence[str]) -> bool:
    """Whether no engine fails it."""
    return not any(isinstance(status := line[f"{one}|status"], str) and Status(status).failed for one in backends)


@view(41, only=lambda report: Serving.name in report.values("check"))
def view_engine_relations(report: Report) -> View:
    """Relations × engines, where engines were asked."""
    rows = report.rows[report.rows["check"] == Serving.name]
    backends = sorted(set(rows["backend"]))
    columns = [ViewColumn(one, functools.partial(_make_relation_cell, one), right=True) for one in backends]
    found = table_engine_relations(report.rows)
    lines = [{str(name): value for name, value in line.items()} for line in found.to_dict("records")]
    return View(
        "engines",
        "May this engine serve? Relations that it keeps",
        found,
        (
            make_text_column("relation"),
            ViewColumn("what is compared", lambda line: ABOUT.get(line["relation"], ""), faces=("markdown", "page")),
            make_text_column("variant", "of"),
            make_text_column("dtype"),
            *columns,
        ),
        lines=sorted(lines, key=lambda line: _keeps_relation(line, backends)),  # what an engine breaks comes first
        unit="cells",
        open=True,
        notes=(
            "In units of what rounding does to the float64 logits of the same requests; of samplers, standard deviations; of own answers, what another way does to them. A fault that every "
            "way to the logits has is seen by float64 alone.",
        ),
    )
