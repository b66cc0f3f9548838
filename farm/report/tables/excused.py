"""Passes that are no evidence because the noise floor excuses nearly any result, and the class that would judge them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from farm.report.tables.view import Report, View, ViewColumn, view
from tasks.judge.policy import GROSS
from tasks.model import OpClass, Status


def find_excused_passes(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per op and dtype whose weak passes are excused: op, variant, dtype, op_class, samples, excused,
    judged_by.

    excused: the largest share of a result that its limit does not ask for; judged_by: the class that would judge the
    op, "" where none of them does, or where the class is not the user's to choose. Of `distinct` rows.
    """
    kept = rows[rows["weak"] & (rows["status"] == Status.PASS.value) & (rows["excused"] >= GROSS)]
    keys = ["catalog", "op", "variant", "dtype", "op_class"]
    by_itself = pd.Series(
        [_is_elementwise_output(*pair) for pair in zip(kept["shapes"], kept["numel"])], kept.index, dtype=bool
    )
    found = (
        kept.assign(by_itself=by_itself)
        .groupby(keys, sort=True)
        .agg(samples=("case_id", "nunique"), excused=("excused", "max"), by_itself=("by_itself", "all"))
    )
    found = found.reset_index()
    own = found.pop("by_itself") & (found.pop("catalog") == "user")  # of the farm's own ops a table says what they are
    return found.assign(judged_by=own.map({True: OpClass.ELEMENTARY.value, False: ""}))


def _is_elementwise_output(shapes: str, numel: float) -> bool:
    """Whether an output may be made element by element: it has as many as the largest input."""
    sizes = [math.prod(int(n) for n in shape.split("x")) for shape in shapes.split() if shape != "scalar"]
    return max(sizes, default=1) == numel


@view(85, only=lambda report: (report.rows["excused"] >= GROSS).any())
def view_no_evidence(report: Report) -> Iterator[View]:
    """The ops whose samples are so steep that nearly any result passes."""
    if (found := find_excused_passes(report.rows)).empty:
        return
    yield View(
        "excused",
        "Weak: the noise floor excuses nearly any result",
        found,
        (
            *("op", "dtype", ("op_class", "judged as"), "samples"),
            ViewColumn("excused", lambda line: f"{100 * line['excused']:.0f} %", right=True),
            ("judged_by", "class that would judge it"),
        ),
        unit="ops and dtypes, a pass is no evidence",
        counted=True,
        notes=(
            "An elementwise kernel of yours is judged in ulps with `class: elementary`, which takes its inputs as exact. Any "
            "other kernel needs inputs on which its result depends less steeply.",
        ),
    )
