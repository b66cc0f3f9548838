"""The vendors side by side: what each covers and passes, and what it alone, or everybody, gets wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from farm.commandline import clean_line
from farm.report.once import once
from farm.report.tables.agreement import REFERENCE, format_row_units, get_row_units, group_agreeing_rows
from farm.report.tables.coverage import (
    FAILED_STATUSES,
    JUDGED_STATUSES,
    count_rows_once,
    coverage,
    find_blameless_rows,
    find_column_values,
    keep_distinct_rows,
    list_frame_lines,
    make_reproduce_commands,
    rank_status_column,
)
from farm.report.tables.view import (
    FACES,
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    make_op_column,
    make_text_column,
    view,
)
from farm.report.words import DASH, format_percent
from tasks import checks
from tasks.model import Status

_CELL = ["check", "op", "variant", "dtype"]
#: What is told of a cell in which vendors differ.
_TOLD = [
    *(*_CELL, "op_class", "alone", "everybody", "failed", "passed", "samples"),
    *("status", "units", "agree", "case_id", "backend", "reproduce"),
]


def by_vendor(rows: pd.DataFrame, by: str = "dtype") -> pd.DataFrame:
    """Coverage and pass rate of each (vendor, ``by``): index of two levels, columns as `farm.report.coverage`, each
    case once for all backends that run the same code (`farm.report.tables.coverage.count_rows_once`).

    ``by``: "dtype", "op_class", "catalog" or any other column of the lake. Besides, ``backends``: how many backends
    of the vendor have rows there; ``alone``: cells (check, op, variant, dtype) in which the vendor alone fails a sample
    that another vendor passes; ``everybody``: cells in which every vendor that was judged, two at least, fails a
    sample. ``by_vendor(rows)["pass_rate"].unstack()`` is vendor × dtype. Raises ValueError for a column that the lake
    lacks.
    """
    rows = keep_distinct_rows(rows)
    table = coverage(count_rows_once(rows), by=("vendor", by))
    table.insert(
        0,
        "backends",
        rows[~rows["check"].isin(checks.list_checks_where(runs=False))]
        .groupby(["vendor", by])["backend"]
        .nunique()
        .reindex(table.index, fill_value=0),
    )
    if len(find_column_values(rows, "vendor")) < 2:  # there is nobody to be compared with
        return table.assign(alone=0, everybody=0)
    found = unique(rows)
    extra = [by] if by not in found.columns else []
    if extra:
        found = found.merge(rows[["case_id", by]].drop_duplicates("case_id"), on="case_id", how="left")
    alone = found[found["alone"] != ""].groupby(["alone", by]).size()
    everybody = (
        found[found["everybody"]]
        .assign(vendor=found["failed"].str.split(", "))
        .explode("vendor")
        .groupby(["vendor", by])
        .size()
    )
    for name, counts in (("alone", alone), ("everybody", everybody)):
        table[name] = counts.rename_axis(table.index.names).reindex(table.index, fill_value=0).astype("int64")
    return table


def unique(rows: pd.DataFrame) -> pd.DataFrame:
    """Cells in which vendors differ: one vendor alone fails, or everybody does. The most severe first.

    One line per (check, op, variant, dtype) and kind, from its samples: a vendor fails a sample when one of its
    backends does (wrong, error, crash, timeout, oom); passes of weak samples are no evidence. Columns: check, op,
    variant, dtype, op_class; ``alone``: the vendor that alone failed samples that others passed ("" on the lines of
    everybody); ``everybody`` (bool): all vendors that were judged, two at least, failed; ``failed``, ``passed``: the
    vendors; ``samples``: how many samples are of this kind; ``status``, ``units``, ``case_id``, ``backend``: the worst
    of them; ``agree`` (bool): on that sample all results outside the reference agree with one another, which makes the
    reference suspicious where everybody fails; ``reproduce``: the command.
    """
    results = str(rows.attrs.get("results", "results"))
    return _list_vendor_differences(keep_distinct_rows(rows), results).copy()


@once
def _list_vendor_differences(rows: pd.DataFrame, results: str) -> pd.DataFrame:
    rows = rows[
        rows["status"].isin(JUDGED_STATUSES)
        & ~(rows["weak"] & (rows["status"] == Status.PASS.value))
        & ~rows["check"].isin(checks.list_checks_where(runs=False))
        & ~find_blameless_rows(rows)
    ]
    failed = rows["status"].isin(FAILED_STATUSES)
    votes = rows.assign(bad=failed).groupby(["case_id", "vendor"], sort=False)["bad"].any()
    per_case = votes.groupby(level="case_id", sort=False).agg(["sum", "size"])
    alone = per_case.index[(per_case["sum"] == 1) & (per_case["size"] > 1)]
    everybody = per_case.index[(per_case["sum"] == per_case["size"]) & (per_case["size"] > 1)]
    bad = rows[failed & rows["case_id"].isin(alone.union(everybody))]
    if bad.empty:
        return pd.DataFrame(columns=_TOLD).astype({"everybody": bool, "agree": bool, "samples": "int64"})
    who = votes.reset_index()
    names = {
        word: who[who["bad"] == value].groupby("case_id")["vendor"].agg(lambda x: ", ".join(sorted(x)))
        for word, value in (("failed", True), ("passed", False))
    }
    bad = bad.assign(
        everybody=bad["case_id"].isin(everybody),
        units=get_row_units(bad),
        rank=rank_status_column(bad["status"]),
        failed=bad["case_id"].map(names["failed"]),
        passed=bad["case_id"].map(names["passed"]).fillna(""),
    )
    bad["alone"] = bad["vendor"].where(~bad["everybody"], "")
    bad["size"] = -bad["units"].fillna(float("inf"))
    keys = [*_CELL, "alone", "everybody"]
    bad["samples"] = bad.groupby(keys, sort=False)["case_id"].transform("nunique")
    made = bad.sort_values(["rank", "size", *keys], kind="stable").drop_duplicates(keys)
    made["agree"] = (
        made["case_id"]
        .map(_are_outliers_of_one_mind(rows[rows["case_id"].isin(made.loc[made["everybody"], "case_id"])]))
        .eq(True)
    )
    made["reproduce"] = make_reproduce_commands(made, results)
    return made[_TOLD].reset_index(drop=True)


def _are_outliers_of_one_mind(rows: pd.DataFrame) -> pd.Series:
    """Per case_id: whether there are results outside the reference, of several vendors, and all agree with one
    another."""
    rows = rows.assign(group=group_agreeing_rows(rows))
    rows = rows[rows["group"] != ""]
    seen = rows.groupby("case_id")
    return (
        (seen["group"].nunique() == 1)
        & (seen["vendor"].nunique() > 1)
        & (seen["group"].first() != REFERENCE)
        & (seen["group"].first() != "?")
    )


def _choose_vendor_faces(report: Report) -> tuple[str, ...]:
    """On the terminal vendors are compared only where that was asked for."""
    return FACES if report.by == "vendor" else ("markdown", "csv", "page")


@view(40, only=lambda report: any(len(report.values(name)) > 1 for name in ("vendor", "dtype", "op_class")))
def view_vendors_side_by_side(report: Report) -> Iterator[View]:
    """vendor × dtype and vendor × op class."""
    faces = _choose_vendor_faces(report)

    def column(by: str, name: str) -> ViewColumn:
        def of(line: Line) -> ViewCell | str:
            one = line["cells"].get(name)
            if one is None:
                return DASH
            small = f"of {format_percent(one['judged'], one['valid'])}" + f", alone {one['alone']}" * bool(one["alone"])
            return ViewCell(format_percent(one["passed"], one["judged"]), small=small)

        return ViewColumn(clean_line(name) or DASH, of, right=True)

    for by in ("dtype", "op_class"):
        table = by_vendor(report.rows, by)
        lines = [
            {
                "vendor": vendor,
                "cells": dict(zip(group.index.get_level_values(by), list_frame_lines(group), strict=True)),
            }
            for vendor, group in table.groupby(level="vendor", sort=True)
        ]
        columns = sorted(set(table.index.get_level_values(by)))
        caption = f"Vendors by {by.replace('_', ' ')}: pass rate (passed/judged), of coverage (judged/valid)"
        yield View(
            f"vendor_by_{by}",
            f"{caption}; alone: cells that only this vendor fails",
            table,
            (make_text_column("vendor"), *(column(by, name) for name in columns)),
            lines=lines,
            index=True,
            most=10_000,
            faces=faces,
        )


@view(40, only=lambda report: len(report.values("vendor")) > 1)
def view_one_vendor_or_all(report: Report) -> Iterator[View]:
    """What one vendor gets wrong, then what all do."""
    faces, found = _choose_vendor_faces(report), unique(report.rows)
    yield View("only_one_or_everybody", "What only one vendor or all vendors get wrong", found, faces=("csv",))
    yield from (_view_wrong_vendor(found[found["everybody"] != alone], alone, faces) for alone in (True, False))


def _view_wrong_vendor(part: pd.DataFrame, alone: bool, faces: tuple[str, ...]) -> View:
    def last(line: Line) -> str:
        return clean_line(line["passed"]) if alone else "yes: suspect the reference" if line["agree"] else "no"

    def worst(line: Line) -> ViewCell:
        return ViewCell(
            f"{line['status']}, {format_row_units(line['units'], line['op_class'])}, {clean_line(line['backend'])}",
            status=line["status"],
        )

    everybody = "All vendors are wrong: check the reference, or the op itself"
    return View(
        "only_one" if alone else "everybody",
        "Only this vendor is wrong" if alone else everybody,
        part,
        (
            make_text_column("failed", "vendor" if alone else "vendors"),
            make_op_column(),
            make_text_column("dtype"),
            ViewColumn("samples", lambda line: str(line["samples"]), right=True),
            ViewColumn("worst", worst, foreign=True),
            ViewColumn("others pass" if alone else "agree with one another", last, foreign=alone),
        ),
        counted=True,
        turns="alone",
        empty="No sample that only one vendor gets wrong." if alone else "No sample that all vendors get wrong.",
        faces=tuple(face for face in faces if face != "csv"),
    )
