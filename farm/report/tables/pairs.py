"""Every pair of backends on the same bytes: how often they give the same, and how far apart they are at most."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from farm.report.tables.agreement import measure_rows_apart
from farm.report.tables.coverage import keep_distinct_rows, list_frame_lines, sort_backend_names
from farm.report.tables.view import (
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    build_number_column,
    make_text_column,
    view,
)
from farm.report.words import DASH, format_percent, format_report_number
from tasks.model import OpClass

#: Of each row what is compared, and what is said of the case that is furthest apart.
_READ = [
    *("case_id", "digest", "label", "dtype", "output_digest", "signature", "error_units", "max_diff"),
    *("compute_precision", "op_class"),
]
_TOLD = ["one", "other", "compared", "same", "units", "units_op", "units_dtype", "diff", "diff_op", "diff_dtype"]


def list_backend_pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per pair of backends that were given the same bytes of some case and gave a result each, those furthest
    apart first.

    Columns: one, other (backends); compared (cases); same (of these, those with the very same output bytes); units (the
    largest distance of two outputs, in error units: at least, as far as signatures tell,
    `farm.report.tables.agreement.measure_rows_apart`) and units_op, units_dtype, where; diff (the largest absolute
    difference of two outputs: at most, for it is the sum of what both are off the reference) and diff_op, diff_dtype,
    where. NaN where no case tells.
    """
    rows = keep_distinct_rows(rows)
    rows = rows[rows["output_digest"] != ""].sort_values("run_id", kind="stable")
    rows = rows.drop_duplicates(["case_id", "backend"], keep="last")
    order = {
        backend: sort_backend_names(str(vendor), str(backend))
        for vendor, backend in rows[["vendor", "backend"]].drop_duplicates().itertuples(index=False)
    }
    of = {backend: rows.loc[rows["backend"] == backend, _READ] for backend in sorted(order, key=order.__getitem__)}
    made = [_compare_backend_pair(*two, of[two[0]], of[two[1]]) for two in itertools.combinations(of, 2)]
    found = pd.DataFrame([line for line in made if line["compared"]], columns=_TOLD)
    return found.sort_values(["units", "diff"], ascending=False, kind="stable").reset_index(drop=True)


def _compare_backend_pair(one: str, other: str, these: pd.DataFrame, those: pd.DataFrame) -> dict[str, Any]:
    both = these.merge(those, on=["case_id", "digest", "label", "dtype"], suffixes=("", "_other"))
    same = both["output_digest"] == both["output_digest_other"]
    differ = both[~same].reset_index(drop=True)
    units = pd.Series(
        [
            _measure_pair_apart(line, {name: line.get(f"{name}_other", line.get(name)) for name in _READ})
            for line in list_frame_lines(differ)
        ],
        dtype="float64",
    )
    told: dict[str, Any] = {"one": one, "other": other, "compared": len(both), "same": int(same.sum())}
    for name, sizes in (("units", units), ("diff", differ["max_diff"] + differ["max_diff_other"])):
        if sizes.notna().any():
            at = int(np.nanargmax(sizes.to_numpy()))
            told |= {name: float(sizes[at]), f"{name}_op": differ["label"][at], f"{name}_dtype": differ["dtype"][at]}
        else:
            nothing = 0.0 if same.all() else math.nan
            told |= {name: nothing, f"{name}_op": "", f"{name}_dtype": ""}
    return told


def _measure_pair_apart(one: Line, other: Line) -> float:
    """How far two results of a case are apart at least, in error units: where a signature is missing, as of one within
    its limit, what their distances from the reference differ by."""
    least, a, b = measure_rows_apart(one, other), one["error_units"], other["error_units"]
    alike = one["compute_precision"] == other["compute_precision"] and one["op_class"] != OpClass.RANDOM
    if least == least or not alike or math.isnan(a) or math.isnan(b):
        return least
    return least if math.isinf(a) and math.isinf(b) else abs(a - b)


def _make_distance_column(name: str, words: str) -> ViewColumn:
    """A distance, and the op and dtype where it is met."""

    def make(line: Line) -> ViewCell:
        where = f"{line[f'{name}_op']} {line[f'{name}_dtype']}".strip()
        return ViewCell(format_report_number(line[name]) if line[name] == line[name] else DASH, small=where)

    return ViewColumn(words, make, right=True, foreign=True)


def view_backend_pairs(rows: pd.DataFrame) -> View:
    """The table of `list_backend_pairs`."""
    found = list_backend_pairs(rows)
    return View(
        "pairs",
        "Pairs of backends on the same bytes",
        found,
        (
            *(make_text_column("one", "backend"), make_text_column("other", "and")),
            build_number_column("compared", "cases of both"),
            ViewColumn("same bytes", lambda line: format_percent(line["same"], line["compared"]), right=True),
            *(
                _make_distance_column("units", "furthest apart, units"),
                _make_distance_column("diff", "max diff, at most"),
            ),
        ),
        unit="pairs",
        counted=True,
        empty="no two backends gave results of the same case",
        notes=(
            "units: error units between the two outputs, at least. max diff: absolute difference of the two outputs, at most: the sum of "
            "what each is off the reference.",
        ),
        faces=("csv", "markdown", "page"),
        compares=True,
    )


@view(56, only=lambda report: len(report.values("backend")) > 1)
def view_pairs_of_report(report: Report) -> View | None:
    """The table, where there are two backends."""
    return view_backend_pairs(report.rows)
